"""MEBF beside EASY: on generated workloads as large as the published ones, and on parts of public traces.

The trace of the MEBF paper (KIT-FH2-2016) is not available; `kit` (workload/generators.py) replaces it. As in
the paper, malleable jobs run on half to five times their preferred nodes, users know their run times, and the
intensive workloads have 25 % less time between submissions. By default, all jobs are malleable, of medium
scalability, with full costs of resizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import msgspec

from mallob_py.batch.costs import Redistribution
from mallob_py.batch.experiments import sd
from mallob_py.batch.experiments.traces import CURIE, HPC2N, RICC, path_in
from mallob_py.batch.job import Kind, Workload
from mallob_py.batch.metrics import metrics_of
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import Schedule, simulate
from mallob_py.batch.speedup import Power
from mallob_py.batch.workload.changes import (
    NodeRange,
    SpeedModel,
    make_malleable,
    with_arrivals_scaled,
    with_exact_estimates,
    with_model_error,
)
from mallob_py.batch.workload.generators import kit_shape
from mallob_py.batch.workload.swf import read_swf, workload_of
from mallob_py.experiments import frame
from mallob_py.experiments.frame import beside, draw, grid
from mallob_py.experiments.intervals import interval
from mallob_py.experiments.output import Output, Table

NODES = 500
SEEDS = (1, 2, 3, 4, 5)
INTENSIVE = 0.75
VARIANTS = ("handoff", "spare", "intensive")
GAPS = ("basic", "expand", "shrink")
#: scalability -> range of rho
RHO = {"high": (0.0, 0.1), "medium": (0.1, 0.2), "low": (0.2, 0.3)}
SHARES = (0.4, 0.6, 0.8, 1.0)
#: values of `Redistribution.scale`, which was not published
SCALES = (0.0, 0.5, 1.0, 100.0)
ERROR = 0.1
#: name of a group of jobs, by their first number of nodes -> greatest number of nodes in the group
_GROUPS = {"1 node": 1, "2 to 4": 4, "5 to 16": 16, "17 to 64": 64, "more": math.inf}
#: trace -> (file, first job) of a part in which jobs wait
_TRACES = {"HPC2N": (HPC2N.file, 120_000), "Curie": (CURIE.file, 180_000), "RICC": (RICC.file, 0)}
_TRACE_JOBS = 5_000
_TENTHS = 10
_EASY = "easy"
_EVENTS = ("shrinks", "expands", "backfills")
_REMARKS = f"""\
Reduction of mean turnaround relative to EASY [%]; (P) marks numbers from the MEBF paper's text (34 and 33,
for shares below 100 %, are reductions of the slowdown). The paper's slowdowns are turnarounds divided
by one mean run time, so both reductions are equal, and its tables 6 and 7 correspond to scalability and
shares here. Generated workloads: means of {len(SEEDS)} seeds with half of the 95 % interval; in the first
table, brackets contain the smallest and the greatest number. Costs are in seconds: {SCALES[-1]:g} times
stands for jobs that redistribute data for minutes. Utilisation: share of node-seconds, and by how much it
exceeds EASY's."""


class Case(msgspec.Struct, frozen=True):
    """A workload, and MEBF's setting `gaps`. `trace`: the trace to play in part; "": generated jobs."""

    jobs: int = 1000
    factor: float = INTENSIVE
    scalability: str = "medium"
    share: float = 1.0
    scale: float = 1.0
    error: float = 0.0
    trace: str = ""
    exact: bool = True
    gaps: str = "basic"

    def policy(self, variant: str) -> str:
        return variant if variant == _EASY else f"mebf:variant={variant},gaps={self.gaps}"


class Run(frame.Run, Case, frozen=True, kw_only=True):
    policy_text: str
    seed: int = 1


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a run. `backfills`: number of jobs that started before a job submitted earlier.

    `expands_by_size`: number of expansions for each group of jobs in `_GROUPS`. `tenths`: utilisation in each
    tenth of the makespan.
    """

    turnaround_s: float
    utilisation: float
    shrinks: int = 0
    expands: int = 0
    backfills: int = 0
    expands_by_size: tuple[int, ...] = ()
    tenths: tuple[float, ...] = ()


Results = dict[Run, Measured]


class Study(msgspec.Struct, frozen=True):
    """A table: its columns, and (variant, column) -> published reduction of turnaround [%]."""

    title: str
    columns: dict[str, Case]
    published: dict[tuple[str, str], int] = {}


def _sizes(**more: object) -> dict[str, Case]:
    return {
        f"{jobs // 1000}K {level}": Case(jobs, scalability=level, **more)  # type: ignore[arg-type]
        for jobs in (1000, 5000)
        for level in RHO
    }


STUDIES = (
    Study(
        "Arrivals",
        {
            f"{jobs // 1000}K {name}": Case(jobs, factor)
            for jobs in (1000, 5000)
            for name, factor in (("normal", 1.0), ("intensive", INTENSIVE))
        },
        {
            ("handoff", "1K intensive"): 40, ("spare", "1K intensive"): 37, ("intensive", "1K intensive"): 33,
            ("handoff", "5K intensive"): 47, ("spare", "5K intensive"): 49, ("intensive", "5K intensive"): 48,
        },
    ),
    Study(
        "Scalability",
        _sizes(),
        {
            ("handoff", "1K low"): 40, ("spare", "1K low"): 33, ("intensive", "1K low"): 37,
            ("intensive", "1K medium"): 42, ("spare", "1K high"): 17, ("spare", "5K low"): 49,
        },
    ),
    Study(
        "Costs of resizes, 5K, high scalability",
        {f"{scale:g} times": Case(5000, scalability="high", scale=scale) for scale in SCALES},
    ),
    Study(
        "Share of malleable jobs, 1K",
        {f"{share:.0%}": Case(share=share) for share in SHARES},
        {("handoff", "60%"): 34, ("intensive", "80%"): 33},
    ),
    Study(
        "Share and scalability, 1K",
        {f"{at:.0%} {level}": Case(scalability=level, share=at) for at in (0.6, 0.8) for level in RHO},
        {("handoff", "60% medium"): 34, ("intensive", "80% medium"): 33},
    ),
    *(
        Study(
            f"Gaps, {jobs // 1000}K",
            {f"{level} {gaps}": Case(jobs, scalability=level, gaps=gaps) for level in RHO for gaps in GAPS},
        )
        for jobs in (1000, 5000)
    ),
    Study("Gaps, 5K, normal arrivals", {gaps: Case(5000, 1.0, gaps=gaps) for gaps in GAPS}),
    Study(
        f"True rho larger by {ERROR:g}",
        {
            f"{jobs // 1000}K {name}": Case(jobs, error=error)
            for jobs in (1000, 5000)
            for name, error in (("no error", 0.0), ("error", ERROR))
        },
    ),
)  # fmt: skip


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Do all cases and write tables; without traces, only for generated jobs. Raises OSError, SwfError."""
    of_traces = {
        f"{name}, {'exact' if exact else 'users'}": Case(_TRACE_JOBS, 1.0, trace=name, exact=exact)
        for name, (file, _) in _TRACES.items()
        if path_in(traces, file)
        for exact in (True, False)
    }
    studies = [*STUDIES]
    if of_traces:
        studies.append(Study(f"Parts of traces, {_TRACE_JOBS} jobs, by estimates", of_traces))
    cases = [case for study in studies for case in study.columns.values()]
    runs = [
        one for case in cases for variant in (_EASY, *VARIANTS) for one in runs_of(case, case.policy(variant))
    ]
    results = output.play(partial(_play, traces), runs, processes, Run.name)
    shown = [_table(study, results, not place) for place, study in enumerate(studies)]
    output.tables([*shown, *_more_tables(results)], _REMARKS)
    for name, table in (("mebf-scalability", shown[1]), ("mebf-shares", shown[3])):
        output.figure(name, partial(draw, table))


def runs_of(case: Case, policy: str) -> list[Run]:
    seeds = (1,) if case.trace else SEEDS
    settings = msgspec.structs.asdict(case)
    if policy == _EASY:
        settings["gaps"] = "basic"
    return [Run(policy_text=policy, seed=seed, **settings) for seed in seeds]


@cache
def _part(trace: str, traces: Path) -> Workload:
    """Return the part of a trace that is played."""
    file, first = _TRACES[trace]
    part = slice(first, first + _TRACE_JOBS)
    if trace not in sd.CASES:
        path = path_in(traces, file)
        assert path is not None
        return workload_of(read_swf(path), name=trace, rows=part)
    whole = sd.load(trace, traces)
    jobs = [
        msgspec.structs.replace(job, id=number, kind=Kind.RIGID)
        for number, job in enumerate(whole.jobs[part])
    ]
    return msgspec.structs.replace(whole, jobs=jobs, truths=whole.truths[part])


def workload_for(case: Case, seed: int, traces: Path | None) -> Workload:
    """Return the workload of a case and a seed."""
    if case.trace:
        assert traces is not None
        plain = _part(case.trace, traces)
        plain = with_exact_estimates(plain) if case.exact else plain
    else:
        plain = kit_shape(case.jobs, NODES, seed)
    speedup = SpeedModel(Power, *RHO[case.scalability])
    plain = with_arrivals_scaled(plain, case.factor)
    return with_model_error(make_malleable(plain, case.share, NodeRange(0.5, 5.0), speedup, seed), case.error)


def _play(traces: Path | None, one: Run) -> Measured:
    workload = workload_for(one, one.seed, traces)
    return measured(simulate(workload, policy_of(one.policy_text), costs=Redistribution(one.scale)))


def measured(schedule: Schedule) -> Measured:
    metrics = metrics_of(schedule)
    pieces: dict[int, list[tuple[float, int]]] = {}
    tenths = [0.0] * _TENTHS
    first_s = min(job.submit_s for job in schedule.workload.jobs)
    width_s = metrics.makespan_s / _TENTHS
    for piece in schedule.all_pieces():
        pieces.setdefault(piece.job, []).append((piece.start_s, len(piece.nodes)))
        for tenth in range(_TENTHS):
            begin_s = first_s + tenth * width_s
            spent_s = min(piece.end_s, begin_s + width_s) - max(piece.start_s, begin_s)
            tenths[tenth] += max(0.0, spent_s) * len(piece.nodes) / (width_s * schedule.nodes)
    shrinks, by_size = 0, [0] * len(_GROUPS)
    for own in pieces.values():
        sizes = [size for _, size in sorted(own)]
        steps = [after - before for before, after in pairwise(sizes)]
        shrinks += sum(step < 0 for step in steps)
        group = next(place for place, most in enumerate(_GROUPS.values()) if sizes[0] <= most)
        by_size[group] += sum(step > 0 for step in steps)
    latest_s, backfills = -math.inf, 0
    for start_s in schedule.starts_s:
        backfills += start_s < latest_s
        latest_s = max(latest_s, start_s)
    return Measured(
        metrics.turnaround_s,
        metrics.utilisation,
        shrinks,
        sum(by_size),
        backfills,
        tuple(by_size),
        tuple(tenths),
    )


# --- tables -------------------------------------------------------------------------------


def _of(results: Results, case: Case, variant: str) -> list[Measured]:
    return [results[one] for one in runs_of(case, case.policy(variant))]


def gains(case: Case, variant: str, results: Results) -> list[float]:
    """Return the reduction of mean turnaround relative to EASY [%], for each seed."""
    pairs = zip(_of(results, case, variant), _of(results, case, _EASY), strict=True)
    return [100.0 * (1.0 - own.turnaround_s / easy.turnaround_s) for own, easy in pairs]


def _table(study: Study, results: Results, with_range: bool) -> Table:
    def cell(variant: str, name: str) -> str:
        found = gains(study.columns[name], variant, results)
        text = interval(found).text(0)
        if with_range:
            text += f" [{min(found):.0f}, {max(found):.0f}]"
        return beside(text, study.published.get((variant, name)))

    columns = {name: name for name in study.columns}
    return grid(f"{study.title}: less turnaround than with EASY [%]", "mebf", _same(VARIANTS), columns, cell)


def _same(names: tuple[str, ...]) -> dict[str, str]:
    return {name: name for name in names}


def _share_of_events(row: tuple[str, str], case: Case, results: Results) -> str:
    """Return the share of an event, such as shrinks, among all events [%]."""
    variant, event = row
    found = _of(results, case, variant)
    counts = {name: sum(getattr(one, name) for one in found) for name in _EVENTS}
    return f"{100.0 * counts[event] / max(1, sum(counts.values())):.0f}"


def _busy(variant: str, case: Case, of: Callable[[Measured], float], results: Results) -> str:
    own = [100.0 * of(one) for one in _of(results, case, variant)]
    if variant == _EASY:
        return interval(own).text(1)
    easy = [100.0 * of(one) for one in _of(results, case, _EASY)]
    more = interval([mine - theirs for mine, theirs in zip(own, easy, strict=True)])
    return f"{interval(own).text(1)} ({more.mean:+.1f} ± {more.half:.1f})"


def first_size(variant: str, place: int, results: Results) -> str:
    """Return which share [%] of all expansions belongs to jobs that began with a size of group `place`.

    The groups are `_GROUPS`; the share is a mean over seeds.
    """
    played = _of(results, Case(), variant)
    return interval([100.0 * one.expands_by_size[place] / max(1, one.expands) for one in played]).text(0)


def _more_tables(results: Results) -> list[Table]:
    """Return tables of events, of expansions, and of utilisation as a whole and over time."""
    columns = {name: case for name, case in _sizes().items() if runs_of(case, _EASY)[0] in results}
    if not columns:
        return []
    events = {f"{variant}, {event}": (variant, event) for event in _EVENTS for variant in VARIANTS}
    tenths = {f"tenth {place + 1}": place for place in range(_TENTHS)}
    groups = {name: place for place, name in enumerate(_GROUPS)}
    everyone, high = _same((_EASY, *VARIANTS)), Case(scalability="high")
    return [
        grid(
            "Share of each event among all events, intensive arrivals [%]",
            "mebf",
            events,
            columns,
            lambda row, case: _share_of_events(row, case, results),
        ),
        grid(
            "Utilisation, intensive arrivals [%]",
            "policy",
            everyone,
            columns,
            lambda row, case: _busy(row, case, lambda one: one.utilisation, results),
        ),
        grid(
            "Utilisation over time, 1K intensive, high scalability [%]",
            "policy",
            everyone,
            tenths,
            lambda row, place: _busy(row, high, lambda one: one.tenths[place], results),
        ),
        grid(
            "Expansions by first size, 1K [%]",
            "mebf",
            _same(VARIANTS),
            groups,
            lambda row, place: first_size(row, place, results),
        ),
    ]
