"""`mallob-py batch simulate | explain | experiment`: policies for whole jobs, played on traces.

`simulate` has policies side by side on one trace, `explain` says why a job of such a schedule started when
it did, `experiment` repeats what was published. What only one of them needs it imports itself.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from mallob_py.batch.job import Workload
from mallob_py.batch.policy import Action, Policy, PolicyError, View
from mallob_py.batch.registry import PolicyTextError, policy_of
from mallob_py.batch.workload.elastisim import PUBLISHED_NODES, read_elastisim
from mallob_py.batch.workload.eurora import EURORA_SUFFIX, read_eurora
from mallob_py.batch.workload.swf import SwfError, read_swf, workload_of
from mallob_py.cli import CommandError
from mallob_py.cli.batch_options import (
    BatchExperimentOptions,
    BatchExplainOptions,
    BatchSimulateOptions,
    TraceOptions,
)

if TYPE_CHECKING:
    from mallob_py.batch.energy import Power
    from mallob_py.batch.explanation import Explanation, Moment
    from mallob_py.batch.metrics import Metrics
    from mallob_py.batch.page import Result
    from mallob_py.batch.simulator import Outcome

_EXPERIMENTS = "mallob_py.batch.experiments"
_PERIOD_S = 0.3
_HEADER = (
    "policy", "jobs", "makespan [s]", "wait [s]", "longest", "turnaround [s]", "slowdown", "bounded", "busy",
)  # fmt: skip
#: so many numbers of jobs are named, and so many spans of a wait told
_NAMED = 8
_SPANS = 40


# --- traces -------------------------------------------------------------------------------


def load(options: TraceOptions) -> Workload:
    """The workload; what is left out of the trace is said on standard error. Errors: see `worded`."""
    path = Path(options.trace)
    if path.suffix == EURORA_SUFFIX:
        return read_eurora(path)[0]
    if ".json" in path.suffixes:
        return read_elastisim(path, options.nodes or PUBLISHED_NODES)
    swf = read_swf(path, options.strict)
    for line in swf.damaged:
        print(f"mallob-py: left out: {line}", file=sys.stderr)
    workload = workload_of(
        swf,
        name=path.name,
        nodes=options.nodes,
        processors_per_node=options.cores_per_node,
        partition=options.partition,
        rows=slice(options.jobs) if options.jobs else None,
        minimal_run_s=options.minimal_run,
    )
    if workload.left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in workload.left_out)
        print(f"mallob-py: jobs left out: {reasons}", file=sys.stderr)
    return workload


@contextmanager
def worded(trace: str) -> Iterator[None]:
    """Errors of traces and policies as CommandError."""
    try:
        yield
    except (PolicyTextError, PolicyError, SwfError, ValueError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename or trace}: {error.strerror}") from None


class WithProgress:
    """A policy as it is, which says on standard error how far it has got; for terminals."""

    def __init__(self, policy: Policy, workload: Workload) -> None:
        self.name = policy.name
        self.wants_all_arrivals = policy.wants_all_arrivals
        self.wants_resize_points = getattr(policy, "wants_resize_points", False)
        self._policy = policy
        self._submissions_end_s = workload.jobs[-1].submit_s if workload.jobs else 0.0
        self._began_s = self._next_s = time.monotonic()

    def begin(self, nodes: int) -> None:
        self._policy.begin(nodes)

    def decide(self, view: View) -> Iterable[Action]:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PERIOD_S
            share = min(1.0, view.now_s / (self._submissions_end_s or 1.0))
            text = f"{self.name}: {share:.0%} of the time, {len(view.queue)} jobs wait"
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        return self._policy.decide(view)

    def done(self) -> None:
        print(f"\r{self.name}: {time.monotonic() - self._began_s:.1f} s\x1b[K", file=sys.stderr)


# --- simulate -----------------------------------------------------------------------------


def run_simulate(options: BatchSimulateOptions) -> int:
    import msgspec

    from mallob_py.batch.energy import Power
    from mallob_py.batch.metrics import Metrics, metrics_of
    from mallob_py.batch.page import Result, page

    with worded(options.trace):
        policies = [policy_of(text) for text in options.policy]
        workload = load(options)
        power = Power(options.idle_watts, options.busy_watts)
        metrics, results = list[Metrics](), list[Result]()
        for policy in policies:
            outcome = _played(workload, policy)
            metrics.append(metrics_of(outcome))
            if options.output:
                folder = Path(options.output) / _folder_names(options.policy)[len(results)]
                results.append(_written(outcome, metrics[-1], folder, power))
        if options.output:
            index = Path(options.output) / "index.html"
            index.write_text(page(_title(workload), results, power), encoding="utf-8")
            print(f"wrote {index}", file=sys.stderr)
    print(msgspec.json.encode(metrics).decode() if options.json else _table(workload, metrics))
    return 0


def _played(workload: Workload, policy: Policy) -> Outcome:
    from mallob_py.batch.simulator import simulate

    if not sys.stderr.isatty():
        return simulate(workload, policy)
    shown = WithProgress(policy, workload)
    try:
        return simulate(workload, shown)
    finally:
        shown.done()


def _written(outcome: Outcome, metrics: Metrics, folder: Path, power: Power) -> Result:
    from mallob_py.batch.energy import energy_of
    from mallob_py.batch.page import Result
    from mallob_py.batch.pictures import draw_gantt, draw_utilisation
    from mallob_py.batch.schedule_files import write_schedule
    from mallob_py.experiments.output import Output

    write_schedule(outcome, folder, power)
    output = Output(folder, "simulation")
    output.keep(outcome.policy, metrics)
    output.figure("utilisation", lambda figure: draw_utilisation(outcome, figure))
    output.figure("gantt", lambda figure: draw_gantt(outcome, figure))
    # A grid or thousands of boxes are smaller as PNG, a curve looks better as SVG.
    pictures = [folder / "utilisation.svg", folder / "gantt.png"]
    return Result(metrics, energy_of(outcome, power), [path for path in pictures if path.exists()])


def _folder_names(policies: tuple[str, ...]) -> list[str]:
    """A name for each that is one on all file systems: easy:depth=10 is easy-depth-10."""
    names = list[str]()
    for text in policies:
        name = plain = re.sub(r"[^A-Za-z0-9_.+]+", "-", text).strip("-.")
        number = 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


def _title(workload: Workload) -> str:
    return f"{workload.name}: {len(workload.jobs)} jobs, {workload.nodes} nodes"


def _table(workload: Workload, results: list[Metrics]) -> str:
    from mallob_py.text_table import format_table

    rows = [
        (
            one.policy,
            one.jobs,
            one.makespan_s,
            one.wait_s,
            one.wait_max_s,
            one.turnaround_s,
            one.slowdown,
            one.bounded_slowdown,
            one.utilisation,
        )
        for one in results
    ]
    return f"{_title(workload)}\n\n{format_table(_HEADER, rows)}"


# --- explain ------------------------------------------------------------------------------


def run_explain(options: BatchExplainOptions) -> int:
    from mallob_py.batch.explanation import explain

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
    from mallob_py.batch.explanation import Hindrance

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


# --- experiment ---------------------------------------------------------------------------


def run_experiment(options: BatchExperimentOptions) -> int:
    from concurrent.futures.process import BrokenProcessPool

    from mallob_py.experiments.output import Output

    if options.name not in (names := experiment_names()):
        raise CommandError(f"no experiment {options.name!r} (there are {', '.join(names) or 'none'})")
    traces = None if options.traces is None else Path(options.traces)
    if traces is not None and not traces.is_dir():
        raise CommandError(f"--traces {traces}: no such folder")
    module = importlib.import_module(f"{_EXPERIMENTS}.{options.name}")
    try:
        output = Output(Path(options.output), options.name)
    except OSError as error:
        raise CommandError(f"--output {options.output}: {error.strerror}") from None
    try:
        module.run(output, options.jobs, traces)
    except (SwfError, PolicyError, ValueError) as error:
        raise CommandError(str(error)) from None
    except BrokenProcessPool:
        raise CommandError("a run was killed from outside; was the memory too small? (see --jobs)") from None
    return 0


def experiment_names() -> tuple[str, ...]:
    """The modules of `mallob_py.batch.experiments` that can be run; others are helpers of theirs."""
    found = (module.name for module in pkgutil.iter_modules(importlib.import_module(_EXPERIMENTS).__path__))
    return tuple(
        name for name in sorted(found) if hasattr(importlib.import_module(f"{_EXPERIMENTS}.{name}"), "run")
    )
