"""MEBF beside EASY: on generated workloads of the size of its publication's, and on parts of public traces.

The publication's trace (KIT-FH2-2016) is not at hand; `kit` (workload/generators.py) stands in for it. As
there, malleable jobs run on half to five times their preferred nodes, users know their run times, and the
intensive workloads have 25 % less time between submissions. What is not said otherwise is of jobs of medium
scalability, all of them malleable, with full costs.
"""

from __future__ import annotations

import math
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

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
from mallob_py.experiments.intervals import interval
from mallob_py.experiments.output import Output, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NODES = 500
SEEDS = (1, 2, 3, 4, 5)
INTENSIVE = 0.75
VARIANTS = ("handoff", "spare", "intensive")
GAPS = ("basic", "expand", "shrink")
#: the range of rho by scalability
RHO = {"high": (0.0, 0.1), "medium": (0.1, 0.2), "low": (0.2, 0.3)}
SHARES = (0.4, 0.6, 0.8, 1.0)
#: of the costs, which are published but for it
SCALES = (0.0, 0.5, 1.0, 100.0)
ERROR = 0.1
#: jobs by the nodes that they begin on, up to so many
_GROUPS = {"1 node": 1, "2 to 4": 4, "5 to 16": 16, "17 to 64": 64, "more": math.inf}
#: parts where jobs wait: the file, and the first job
_TRACES = {"HPC2N": (HPC2N.file, 120_000), "Curie": (CURIE.file, 180_000), "RICC": (RICC.file, 0)}
_TRACE_JOBS = 5_000
_EASY = "easy"

#: less turnaround than with EASY [%], as published, by what its table here calls a column
_ARRIVALS = {
    ("handoff", "1K intensive"): 40, ("spare", "1K intensive"): 37, ("intensive", "1K intensive"): 33,
    ("handoff", "5K intensive"): 47, ("spare", "5K intensive"): 49, ("intensive", "5K intensive"): 48,
}  # fmt: skip
_SCALABILITY = {
    ("handoff", "1K low"): 40, ("spare", "1K low"): 33, ("intensive", "1K low"): 37,
    ("intensive", "1K medium"): 42, ("spare", "1K high"): 17, ("spare", "5K low"): 49,
}  # fmt: skip
_SHARE = {("handoff", "60%"): 34, ("intensive", "80%"): 33}
_REMARKS = f"""\
Less mean turnaround than with EASY [%]; (P) is what was published, where the text tells it (of shares below
100 %, 34 and 33 are of the slowdown). Slowdowns there are turnarounds over one and the same mean run time,
so that their improvements are these, and tables 6 and 7 there are those of scalability and shares here.
Generated workloads: means of {len(SEEDS)} seeds with half of the 95 % interval; behind the first table's
numbers stand the least and the most. Costs are in seconds: {SCALES[-1]:g} times stands for jobs that
redistribute data for minutes."""


class Case(msgspec.Struct, frozen=True):
    """A workload. `trace`: a part of this one instead of a generated workload."""

    jobs: int = 1000
    factor: float = INTENSIVE
    scalability: str = "medium"
    share: float = 1.0
    scale: float = 1.0
    error: float = 0.0
    trace: str = ""
    exact: bool = True


class Run(msgspec.Struct, frozen=True):
    case: Case
    policy: str
    seed: int = 1

    def name(self) -> str:
        case = self.case
        if case.trace:
            return f"{case.trace}, {'exact' if case.exact else 'users'} estimates, {self.policy}"
        text = (
            f"{case.jobs} jobs x{case.factor:g}, scalability {case.scalability}, {case.share:.0%} malleable"
        )
        text += f", costs x{case.scale:g}, error {case.error:g}"
        return f"{text}, seed {self.seed}, {self.policy}"


class Measured(msgspec.Struct, frozen=True):
    """`backfills`: jobs that started before one that had come earlier; `expands_by_size`: of jobs that began
    on as many nodes as `_GROUPS` says.
    """

    turnaround_s: float
    utilisation: float
    resizes: int
    shrinks: int = 0
    expands: int = 0
    backfills: int = 0
    expands_by_size: tuple[int, ...] = ()


#: a table: its title, and columns with the case and, of MEBF, the gaps; what was published of it
_Columns = dict[str, tuple[Case, str]]
TABLES: tuple[tuple[str, _Columns, dict[tuple[str, str], int]], ...] = (
    (
        "Arrivals",
        {
            f"{jobs // 1000}K {name}": (Case(jobs, factor), "basic")
            for jobs in (1000, 5000)
            for name, factor in (("normal", 1.0), ("intensive", INTENSIVE))
        },
        _ARRIVALS,
    ),
    (
        "Scalability",
        {
            f"{jobs // 1000}K {level}": (Case(jobs, scalability=level), "basic")
            for jobs in (1000, 5000)
            for level in RHO
        },
        _SCALABILITY,
    ),
    (
        "Costs of resizes, 5K, high scalability",
        {f"{scale:g} times": (Case(5000, scalability="high", scale=scale), "basic") for scale in SCALES},
        {},
    ),
    (
        "Share of malleable jobs, 1K",
        {f"{share:.0%}": (Case(share=share), "basic") for share in SHARES},
        _SHARE,
    ),
    (
        "Share and scalability, 1K",
        {
            f"{share:.0%} {level}": (Case(scalability=level, share=share), "basic")
            for share in (0.6, 0.8)
            for level in RHO
        },
        {("handoff", "60% medium"): 34, ("intensive", "80% medium"): 33},
    ),
    *(
        (
            f"Gaps, {jobs // 1000}K",
            {f"{level} {gaps}": (Case(jobs, scalability=level), gaps) for level in RHO for gaps in GAPS},
            {},
        )
        for jobs in (1000, 5000)
    ),
    ("Gaps, 5K, normal arrivals", {gaps: (Case(5000, 1.0), gaps) for gaps in GAPS}, {}),
    (
        f"True rho larger by {ERROR:g}",
        {
            f"{jobs // 1000}K {name}": (Case(jobs, error=error), "basic")
            for jobs in (1000, 5000)
            for name, error in (("no error", 0.0), ("error", ERROR))
        },
        {},
    ),
)


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Parts of traces are left out without these. OSError, SwfError: one cannot be read."""
    here = [name for name, (file, _) in _TRACES.items() if path_in(traces, file)]
    columns = {
        f"{name}, {'exact' if exact else 'users'}": (Case(_TRACE_JOBS, 1.0, trace=name, exact=exact), "basic")
        for name in here
        for exact in (True, False)
    }
    tables = [
        *TABLES,
        *([(f"Parts of traces, {_TRACE_JOBS} jobs, by estimates", columns, {})] if here else []),
    ]
    runs = [one for _, columns, _ in tables for one in _runs(columns)]
    results = output.play(partial(_play, traces), runs, processes, Run.name)
    shown = [_table(*table, results, not place) for place, table in enumerate(tables)]
    output.tables([*shown, _events(results), _sizes(results), _utilisation(results)], _REMARKS)
    for name, table in (("mebf-scalability", TABLES[1]), ("mebf-shares", TABLES[3])):
        output.figure(name, partial(_draw, table, results))


def _runs(columns: _Columns) -> list[Run]:
    return [
        Run(case, policy, seed)
        for case, gaps in columns.values()
        for policy in (_EASY, *(_policy(variant, gaps) for variant in VARIANTS))
        for seed in ((1,) if case.trace else SEEDS)
    ]


def _policy(variant: str, gaps: str) -> str:
    return f"mebf:variant={variant},gaps={gaps}"


@cache
def _part(trace: str, traces: Path) -> Workload:
    """Return a number of jobs of a trace."""
    file, first = _TRACES[trace]
    case = next((case for case in sd.CASES if case.name == trace), None)
    if case is None:
        path = path_in(traces, file)
        assert path is not None
        return workload_of(read_swf(path), name=trace, rows=slice(first, first + _TRACE_JOBS))
    whole = sd.load(case, traces)
    part = slice(first, first + _TRACE_JOBS)
    jobs = [
        msgspec.structs.replace(job, id=number, kind=Kind.RIGID)
        for number, job in enumerate(whole.jobs[part])
    ]
    return msgspec.structs.replace(whole, jobs=jobs, truths=whole.truths[part])


def workload_for(case: Case, seed: int, traces: Path | None) -> Workload:
    """Return the workload of a case, with this seed."""
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
    workload = workload_for(one.case, one.seed, traces)
    schedule = simulate(workload, policy_of(one.policy), costs=Redistribution(one.case.scale))
    return measured(schedule)


def measured(schedule: Schedule) -> Measured:
    metrics = metrics_of(schedule)
    pieces: dict[int, list[tuple[float, int]]] = {}
    for piece in schedule.all_pieces():
        pieces.setdefault(piece.job, []).append((piece.start_s, len(piece.nodes)))
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
        metrics.resizes,
        shrinks,
        sum(by_size),
        backfills,
        tuple(by_size),
    )


def gains(case: Case, policy: str, results: dict[Run, Measured]) -> list[float]:
    """Less turnaround than with EASY [%], for each seed."""
    return [
        100.0 * (1.0 - result.turnaround_s / results[Run(case, _EASY, one.seed)].turnaround_s)
        for one, result in results.items()
        if one.case == case and one.policy == policy
    ]


def _table(
    title: str,
    columns: _Columns,
    published: dict[tuple[str, str], int],
    results: dict[Run, Measured],
    with_range: bool,
) -> Table:
    rows = []
    for variant in VARIANTS:
        cells = list[str]()
        for name, (case, gaps) in columns.items():
            found = gains(case, _policy(variant, gaps), results)
            text = interval(found).text(0)
            if with_range:
                text += f" [{min(found):.0f}, {max(found):.0f}]"
            if (variant, name) in published:
                text += f" ({published[variant, name]} P)"
            cells.append(text)
        rows.append((variant, *cells))
    return Table(f"{title}: less turnaround than with EASY [%]", ("mebf", *columns), tuple(rows))


def _of(results: dict[Run, Measured], case: Case, policy: str) -> list[Measured]:
    return [result for one, result in results.items() if one.case == case and one.policy == policy]


def _events(results: dict[Run, Measured]) -> Table:
    """Shares of shrinking, expanding and overtaking among these three [%], over all seeds."""
    rows = list[tuple[str, ...]]()
    for jobs in (1000, 5000):
        for level in RHO:
            for variant in VARIANTS:
                found = _of(results, Case(jobs, scalability=level), _policy(variant, "basic"))
                counts = [
                    sum(one.shrinks for one in found),
                    sum(one.expands for one in found),
                    sum(one.backfills for one in found),
                ]
                total = max(1, sum(counts))
                cells = [f"{100.0 * count / total:.0f}" for count in counts]
                rows.append((f"{jobs // 1000}K {level}", variant, *cells, str(total // max(1, len(found)))))
    header = ("scalability", "mebf", "shrink [%]", "expand [%]", "backfill [%]", "events a workload")
    return Table("Events, intensive arrivals", header, tuple(rows))


def _sizes(results: dict[Run, Measured]) -> Table:
    """Where expansions go [%], by the nodes that a job began on; 1K, intensive, medium."""
    rows = list[tuple[str, ...]]()
    for variant in VARIANTS:
        found = _of(results, Case(), _policy(variant, "basic"))
        sums = [sum(one.expands_by_size[place] for one in found) for place in range(len(_GROUPS))]
        rows.append((variant, *(f"{100.0 * one / max(1, sum(sums)):.0f}" for one in sums)))
    return Table("Expansions by first size, 1K [%]", ("mebf", *_GROUPS), tuple(rows))


def _utilisation(results: dict[Run, Measured]) -> Table:
    """Node-seconds in use [%], with half of the 95 % interval over seeds."""
    columns = {
        f"{jobs // 1000}K {level}": Case(jobs, scalability=level) for jobs in (1000, 5000) for level in RHO
    }
    columns = {name: case for name, case in columns.items() if _of(results, case, _EASY)}
    rows = [
        (
            policy if policy == _EASY else policy.partition("=")[2].partition(",")[0],
            *(
                interval([100.0 * one.utilisation for one in _of(results, case, policy)]).text(1)
                for case in columns.values()
            ),
        )
        for policy in (_EASY, *(_policy(variant, "basic") for variant in VARIANTS))
    ]
    return Table("Utilisation, intensive arrivals [%]", ("policy", *columns), tuple(rows))


def _draw(
    table: tuple[str, _Columns, dict[tuple[str, str], int]], results: dict[Run, Measured], figure: Figure
) -> None:
    """One line per variant; what was published as crosses."""
    title, columns, published = table
    axes = figure.subplots()
    for variant in VARIANTS:
        means = []
        for case, gaps in columns.values():
            found = gains(case, _policy(variant, gaps), results)
            means.append(sum(found) / len(found))
        (line,) = axes.plot(list(columns), means, "o-", label=variant)
        said = {name: value for (who, name), value in published.items() if who == variant}
        axes.plot(list(said), list(said.values()), "x", color=line.get_color(), markersize=9)
    axes.axhline(0.0, color="grey", linewidth=0.8)
    axes.set(title=f"MEBF: {title} (crosses: published)", ylabel="less turnaround than with EASY [%]")
    axes.legend()
