"""`mallob-py batch generate | simulate | explain | experiment`: batch schedulers, simulated on traces.

`generate` writes a workload from a published model as a trace; `simulate` runs policies side by side on a
trace, `explain` says why a simulated job started when it did, `experiment` repeats published experiments.
Modules that only one command needs are imported by this command's function.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mallob_py.batch.job import Kind, Workload
from mallob_py.batch.policy import PolicyError
from mallob_py.batch.registry import PolicyTextError, policy_of
from mallob_py.batch.simulator import EventOrder
from mallob_py.batch.workload.changes import HALF_TO_DOUBLE, LINEAR_SPEED, make_malleable
from mallob_py.batch.workload.elastisim import read_elastisim
from mallob_py.batch.workload.eurora import EURORA_SUFFIX, read_eurora
from mallob_py.batch.workload.job_table import SUFFIX, read_job_table
from mallob_py.batch.workload.swf import SwfError, read_swf, workload_of
from mallob_py.cli import CommandError, batch_options
from mallob_py.runtime.notices import say

if TYPE_CHECKING:
    from mallob_py.batch.explanation import Explanation, Moment
    from mallob_py.batch.metrics import Metrics

_EXPERIMENTS = "mallob_py.batch.experiments"
_HEADER = (
    "policy", "jobs", "makespan [s]", "wait [s]", "longest", "turnaround [s]", "slowdown", "bounded", "busy",
    "resizes",
)  # fmt: skip
#: greatest number of jobs that a line names
_NAMED = 8
#: greatest number of spans shown for one wait
_SPANS = 40


# --- traces -------------------------------------------------------------------------------


def load(options: batch_options.TraceOptions) -> Workload:
    """Read the workload; report omitted jobs on standard error. Raises the errors that `worded` converts."""
    workload = _read(options)
    if not options.malleable:
        return workload
    nodes, speedup = options.malleable_range or HALF_TO_DOUBLE, options.speedup or LINEAR_SPEED
    changed = make_malleable(workload, options.malleable, nodes, speedup, options.seed)
    return msgspec.structs.replace(changed, name=f"{workload.name}, {options.malleable:.0%} malleable")


def _read(options: batch_options.TraceOptions) -> Workload:
    path = Path(options.trace)
    if path.suffix == EURORA_SUFFIX:
        return read_eurora(path)[0]
    if ".json" in path.suffixes:
        return read_elastisim(path, options.nodes or None)
    read = read_job_table if SUFFIX in path.suffixes else read_swf
    swf = read(path, options.strict)
    for line in swf.damaged:
        say(f"mallob-py: left out: {line}")
    workload = workload_of(
        swf,
        name=path.name,
        nodes=options.nodes,
        processors_per_node=options.cores_per_node,
        partition=options.partition,
        rows=slice(options.first) if options.first else None,
        minimal_run_s=options.minimal_run,
    )
    for remark in workload.remarks:
        say(f"mallob-py: {remark}")
    if workload.left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in workload.left_out)
        say(f"mallob-py: jobs left out: {reasons}")
    return workload


@contextmanager
def worded(trace: str) -> Iterator[None]:
    """Convert errors about traces and policies into CommandError."""
    try:
        yield
    except (PolicyTextError, PolicyError, SwfError, ValueError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename or trace}: {error.strerror}") from None


# --- generate ----------------------------------------------------------------------------


def run_generate(options: batch_options.BatchGenerateOptions) -> int:
    from mallob_py.batch.workload.elastisim import write_elastisim
    from mallob_py.batch.workload.generators import GENERATORS
    from mallob_py.batch.workload.swf import write_trace

    if options.kind not in GENERATORS:
        raise CommandError(f"no workload {options.kind!r} (there are {', '.join(GENERATORS)})")
    generator = GENERATORS[options.kind]
    try:
        workload = generator.make(
            options.jobs or generator.jobs, options.nodes or generator.nodes, options.seed
        )
        path = _generated_path(options, workload)
        if ".json" in path.suffixes:
            write_elastisim(workload, path)
        else:
            write_trace(workload, path)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from None
    print(f"wrote {path}: {workload.name}, {len(workload.jobs)} jobs, {workload.nodes} nodes")
    return 0


def _generated_path(options: batch_options.BatchGenerateOptions, workload: Workload) -> Path:
    if options.output is not None:
        return Path(options.output)
    is_rigid = all(job.kind is Kind.RIGID for job in workload.jobs)
    return Path(f"{options.kind}.{'swf' if is_rigid else 'json'}")


# --- simulate -----------------------------------------------------------------------------


def run_simulate(options: batch_options.BatchSimulateOptions) -> int:
    from concurrent.futures.process import BrokenProcessPool

    from mallob_py.batch.metrics import NodePower
    from mallob_py.batch.page import page
    from mallob_py.batch.runs import Setting, side_by_side

    folder = None if options.output is None else Path(options.output)
    with worded(options.trace):
        policies = [policy_of(text) for text in options.policy]
        workload = load(options)
        for policy in policies:
            if (warning := getattr(policy, "warning", None)) and (why := warning(workload.jobs)):
                say(f"mallob-py: policy {policy.name}: {why}")
        power = NodePower(options.idle_watts, options.busy_watts)
        setting = Setting(workload, EventOrder(options.order), options.resize_cost, power, folder)
        try:
            results = side_by_side(setting, options.policy, options.jobs)
        except BrokenProcessPool:
            raise CommandError(
                "a run was killed from outside; was the memory too small? (see --jobs)"
            ) from None
        if folder is not None:
            index = folder / "index.html"
            index.write_text(page(_title(workload), results, power), encoding="utf-8")
            print(f"wrote {index}", file=sys.stderr)
            if workload.jobs and not any(result.pictures for result in results):
                say("no charts: matplotlib is missing (pip install 'mallob-py[plot]')")
    metrics = [result.metrics for result in results]
    print(msgspec.json.encode(metrics).decode() if options.json else _table(workload, metrics))
    return 0


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
            one.resizes,
        )
        for one in results
    ]
    return f"{_title(workload)}\n\n{format_table(_HEADER, rows)}"


# --- explain ------------------------------------------------------------------------------


def run_explain(options: batch_options.BatchExplainOptions) -> int:
    if options.job is None:
        from mallob_py.cli.batch_live import explain_live

        return explain_live(options, int(options.trace))
    from mallob_py.batch.explanation import explain

    with worded(options.trace):
        policy = policy_of(options.policy)
        workload = load(options)
        explanation = explain(
            workload, policy, options.job, costs=options.resize_cost, order=EventOrder(options.order)
        )
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
    # Of a long wait, only the beginning and the end are shown.
    shown = spans if len(spans) <= _SPANS else [*spans[: _SPANS // 2], *spans[-_SPANS // 2 :]]
    yield ""
    for place, span in enumerate(shown):
        if len(shown) < len(spans) and place == _SPANS // 2:
            yield f"... ({len(spans) - len(shown)} further spans left out)"
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
        position = "the job is the head of the queue"
    else:
        head = f"job {first.head.number} with {_nodes(first.head.low)}"
        position = f"place {first.place} of the queue, whose head is {head}"
    if first.shadow_s is not None:
        position += f"; by estimates the head gets its nodes at {_s(first.shadow_s)} s"
    yield f"    {position}"
    if first.hindrance is Hindrance.PASSED_OVER and first.shadow_s is not None:
        end_s = first.at_s + job.estimate_s
        if end_s > first.shadow_s:
            yield f"    started now, it would end at {_s(end_s)} s by its estimate, which may delay the head"
    started = [number for moment in span for number in moment.started]
    if started:
        yield f"    started meanwhile: {_numbers(started)}"
    promises = [moment.promise_s for moment in span if moment.promise_s is not None]
    if promises:
        yield f"    the job has a reservation for {_s(promises[-1])} s"


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


def run_experiment(options: batch_options.BatchExperimentOptions) -> int:
    from concurrent.futures.process import BrokenProcessPool

    from mallob_py.batch.live.replay import ReplayError
    from mallob_py.experiments.output import Output

    if options.name not in (names := experiment_names()):
        raise CommandError(f"no experiment {options.name!r} (there are {', '.join(names) or 'none'})")
    traces = None if options.traces is None else Path(options.traces)
    if traces is not None and not traces.is_dir():
        raise CommandError(f"--traces {traces}: no such folder")
    module = importlib.import_module(f"{_EXPERIMENTS}.{options.name}")
    settings = {name: True for name in ("full", "live") if getattr(options, name)}
    known = inspect.signature(module.run).parameters
    if options.full and "full" not in known:
        raise CommandError(f"--full: the experiment {options.name} has only one size")
    if options.live and "live" not in known:
        raise CommandError(f"--live: the experiment {options.name} runs no processes")
    if options.resume and not (options.live or options.name == "bags"):
        raise CommandError(
            "--resume: only `bags` and experiments with --live, which start real processes, can be resumed"
        )
    try:
        output = Output(Path(options.output), options.name, options.resume)
    except OSError as error:
        raise CommandError(f"--output {options.output}: {error.strerror}") from None
    try:
        module.run(output, options.jobs, traces, **settings)
    except (SwfError, PolicyError, ValueError, ReplayError) as error:
        raise CommandError(str(error)) from None
    except BrokenProcessPool:
        raise CommandError("a run was killed from outside; was the memory too small? (see --jobs)") from None
    return 0


def experiment_names() -> tuple[str, ...]:
    """Return the names of the modules of `mallob_py.batch.experiments` that have a function `run`."""
    found = (module.name for module in pkgutil.iter_modules(importlib.import_module(_EXPERIMENTS).__path__))
    return tuple(
        name for name in sorted(found) if hasattr(importlib.import_module(f"{_EXPERIMENTS}.{name}"), "run")
    )
