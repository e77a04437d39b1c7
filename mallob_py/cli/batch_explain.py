"""`mallob-py batch explain TRACE JOB`: why a job of a simulated schedule started when it did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from mallob_py.batch.explanation import Explanation, Hindrance, Moment, explain
from mallob_py.batch.registry import policy_of
from mallob_py.cli.batch_options import BatchExplainOptions
from mallob_py.cli.batch_trace import load, worded

#: so many numbers of jobs are named, and so many spans of a wait told
_NAMED = 8
_SPANS = 40


def run(options: BatchExplainOptions) -> int:
    with worded(options.trace):
        policy = policy_of(options.policy)
        workload = load(options)
        explanation = explain(workload, policy, options.job)
    print("\n".join(_lines(explanation)))
    return 0


def _lines(told: Explanation) -> Iterator[str]:
    job = told.job
    of_user = f", user {job.user}" if job.user else ""
    yield (
        f"job {job.number} ({_nodes(job.low, job.high)}, estimate {_s(job.estimate_s)} s{of_user}),"
        f" policy {told.policy}"
    )
    yield (
        f"submitted at {_s(job.submit_s)} s, started at {_s(told.start_s)} s on {_nodes(told.nodes)}"
        f" after {_s(told.start_s - job.submit_s)} s, ended at {_s(told.end_s)} s"
    )
    spans = [list(span) for _, span in groupby(told.moments, lambda one: (one.hindrance, one.head.id))]
    # A long wait: its beginning and its end.
    shown = spans if len(spans) <= _SPANS else [*spans[: _SPANS // 2], *spans[-_SPANS // 2 :]]
    yield ""
    for place, span in enumerate(shown):
        if len(shown) < len(spans) and place == _SPANS // 2:
            yield f"... ({len(spans) - len(shown)} such spans left out)"
        yield from _span_lines(told, span)
    yield from _start_lines(told)


def _span_lines(told: Explanation, span: Sequence[Moment]) -> Iterator[str]:
    job, first = told.job, span[0]
    frees = [moment.free for moment in span]
    free = f"{min(frees)}" if min(frees) == max(frees) else f"{min(frees)} to {max(frees)}"
    needs = f"needs {job.low}, {free} free, {_jobs_run(first.running)}"
    looks = "1 decision" if len(span) == 1 else f"{len(span)} decisions until {_s(span[-1].at_s)} s"
    yield f"at {_s(first.at_s)} s ({looks}): {first.hindrance.value}: {needs}"
    if first.head.id == job.id:
        position = "it is the head of the queue"
    else:
        head = f"job {first.head.number} with {_nodes(first.head.low)}"
        position = f"place {first.place} of the queue, whose head is {head}"
    if first.shadow_s is not None:
        position += f"; by the estimates the head has its nodes at {_s(first.shadow_s)} s"
    yield f"    {position}"
    if first.hindrance is Hindrance.PASSED_OVER and first.shadow_s is not None:
        end_s = first.at_s + job.estimate_s
        if end_s > first.shadow_s:
            yield f"    started now it would end at {_s(end_s)} s by its estimate, which may delay the head"
    started = [number for moment in span for number in moment.started]
    if started:
        yield f"    started meanwhile: {_numbers(started)}"
    promises = [moment.promise_s for moment in span if moment.promise_s is not None]
    if promises:
        yield f"    it has a reservation for {_s(promises[-1])} s"


def _start_lines(told: Explanation) -> Iterator[str]:
    freed = []
    if told.ended_at_start:
        freed.append(f"ended then: {_numbers(told.ended_at_start)}")
    if told.resized_at_start:
        freed.append(f"resized then: {_numbers(told.resized_at_start)}")
    how = f" ({'; '.join(freed)})" if freed else ""
    yield f"at {_s(told.start_s)} s: started, {_nodes(told.free_at_start)} free{how}"
    if told.overtaken_by:
        yield f"submitted later and started earlier: {_numbers(told.overtaken_by)}"


def _jobs_run(count: int) -> str:
    return "1 job runs" if count == 1 else f"{count} jobs run"


def _s(seconds: float) -> str:
    return f"{seconds:.1f}".removesuffix(".0")


def _nodes(low: int, high: int = 0) -> str:
    if high > low:
        return f"{low} to {high} nodes"
    return "1 node" if low == 1 else f"{low} nodes"


def _numbers(numbers: Sequence[int]) -> str:
    named = ", ".join(map(str, numbers[:_NAMED]))
    kind = "job" if len(numbers) == 1 else "jobs"
    return f"{kind} {named}" + (f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else "")
