"""All policies on the same traces, with more and more malleable jobs and with resizes that cost time.

The question: who wins when, and where does decentralized fair share stand, which nobody has measured beside
the others? The jobs are busy parts of four public traces. A malleable job runs on half to twice the nodes
that it asks for, at a speed of n^(1-rho), rho evenly from 0 to 0.3; those of a share are among those of each
larger share. Resizes cost nothing, or 3.8 s for each node that comes and 2.9 s for each that goes, as
measured of jobs of several JVMs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mallob_py.batch.costs import JVM_NODES, JVM_RESIZES, FreeResizes, PerNode, ResizeCost
from mallob_py.batch.experiments.traces import CURIE, HPC2N, KTH, RICC, Trace, missing, path_in
from mallob_py.batch.job import Workload
from mallob_py.batch.metrics import Metrics, metrics_of
from mallob_py.batch.registry import policy_names, policy_of
from mallob_py.batch.simulator import Schedule, simulate
from mallob_py.batch.speedup import Power
from mallob_py.batch.workload.changes import HALF_TO_DOUBLE, SpeedModel, make_malleable
from mallob_py.experiments.intervals import interval, winner
from mallob_py.experiments.output import Output, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
#: start and resize nobody but rigid jobs: a share of malleable jobs is nothing to them
RIGID = ("easy", "fcfs", "conservative")
#: choose sizes at the start, or let jobs share nodes; resize nobody
UNRESIZED = ("backfilling", "elastic-easy", "sd:check=no,depth=0")
RESIZING = (
    "elastic",
    "agreement",
    "mebf",
    "mebf:variant=intensive,gaps=shrink",
    "fair",
    "fair:by=nodes",
    "fair:overtake=any",
)
COSTS: dict[str, ResizeCost] = {
    "0": FreeResizes(),
    "JVM": JVM_NODES,
    "JVM/10": PerNode(JVM_NODES.grow_s / 10, JVM_NODES.shrink_s / 10),
    "JVM a resize": JVM_RESIZES,
}
#: at all shares; the others where all jobs are malleable
_MAIN_COSTS = ("0", "JVM")
#: on other parts of the traces
_OF_OTHERS = ("elastic", "agreement", "mebf", "fair", "fair:overtake=any")
_SHARES_OF_OTHERS = (0.4, 1.0)
#: (share, cost) of what is shown of all traces side by side
_OVERVIEW = ((0.0, "0"), (0.4, "0"), (1.0, "0"), (1.0, "JVM"))
#: of the slowdown: what is divided by which run time
_DEFINITIONS = (
    ("slowdown", "slowdown"),
    ("bounded", "bounded_slowdown"),
    ("stretched", "stretched_slowdown"),
    ("str. bounded", "stretched_bounded_slowdown"),
)
_SPEEDUP = SpeedModel(Power, 0.0, 0.3)
_BASE = "easy"
_REMARKS = """\
Means over jobs relative to EASY, which knows no malleable jobs; below 1 is better. Cost: how long a job
stands still at a resize: JVM 3.8 s for each node that comes and 2.9 s for each that goes, JVM a resize
14.55 s to grow and 7.41 s to shrink, both as measured (ElasticJobScheduler). Malleable jobs run on half to
twice their nodes, with speed n^(1-rho), rho evenly from 0 to 0.3. Bounded slowdown is over the
static run time, that on the nodes a job asks for, 10 s at least; stretched is over the time that it ran.
Behind ± is half of the 95 % interval over the other parts; who is ahead of each other policy is named only
where the intervals of all differences, part by part, exclude 0."""


class Case(msgspec.Struct, frozen=True):
    """A part of a trace: its rows, those of the full run, and the first rows of other parts as long."""

    trace: Trace
    rows: tuple[int, int]
    full_rows: tuple[int, int]
    others: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.trace.name


CASES = (
    Case(KTH, (7_500, 8_300), (5_000, 15_000), (1_500, 3_000, 9_000, 12_000, 15_000)),
    Case(HPC2N, (40_900, 41_700), (40_000, 50_000), (13_500, 67_500, 135_000, 148_500, 189_000)),
    Case(RICC, (418_000, 418_700), (414_770, 424_770), (180_000, 225_000, 235_000, 260_000, 355_000)),
    Case(CURIE, (54_500, 55_200), (50_000, 60_000), (5_000, 10_000, 45_000, 50_000, 90_000)),
)


class Run(msgspec.Struct, frozen=True):
    """`other`: the first row of another part of the trace, if it is not the usual one."""

    case: str
    policy: str
    share: float
    cost: str
    other: int | None = None

    def name(self) -> str:
        part = "" if self.other is None else f" from row {self.other}"
        return f"{self.case}{part} {self.policy} {self.share:.0%} cost {self.cost}"

    def base(self) -> Run:
        """Return the run that this one is compared with."""
        return Run(self.case, _BASE, 0.0, "0", self.other)


class Measured(msgspec.Struct, frozen=True):
    """`took_s`: of the simulation. `gains`: on other parts, the mean turnarounds of those jobs that are
    malleable and of those that are not, over that of the same jobs under EASY (None: there are none).
    """

    metrics: Metrics
    took_s: float
    gains: tuple[float | None, float | None] = (None, None)


Measures = dict[Run, Measured]


def run(output: Output, processes: int | None, traces: Path | None, full: bool = False) -> None:
    """Raises ValueError if none of the traces is in the folder; OSError, SwfError: one cannot be read."""
    cases = [case for case in CASES if path_in(traces, case.trace.file)]
    if traces is None or not cases:
        raise missing("fair", (case.trace.file for case in CASES))
    runs = [one for case in cases for one in runs_of(case.name)]
    runs += [] if full else [one for case in cases for one in runs_of_others(case)]
    results = output.play(partial(_play, traces, full), runs, processes, Run.name)
    tables = [
        _overview("Mean turnaround, relative to EASY", cases, results, "turnaround_s"),
        _overview("Bounded slowdown, relative to EASY", cases, results, "bounded_slowdown"),
        _definitions(cases, results),
    ]
    tables += [] if full else [table for case in cases if case.others for table in _of_others(case, results)]
    for case in cases:
        first, last = case.full_rows if full else case.rows
        title = f"{case.name}, rows {first} to {last - 1}, {case.trace.nodes} nodes"
        easy = results[Run(case.name, _BASE, 0.0, "0")].metrics
        base = f"EASY: {easy.turnaround_s:.0f} s, {easy.bounded_slowdown:.1f}; busy {easy.utilisation:.2f}"
        tables += [
            _by_share(f"{title}: turnaround ({base})", case.name, results, "turnaround_s"),
            _by_share(f"{title}: bounded slowdown", case.name, results, "bounded_slowdown"),
        ]
    tables += [_by_cost(results), _winners(results)]
    output.tables(tables, _REMARKS)
    for case in cases:
        output.figure(f"fair-{case.name.lower()}", partial(_draw, case.name, results))


def policies(names: tuple[str, ...]) -> list[str]:
    """Return those of the policies that are installed."""
    there = policy_names()
    return [text for text in names if text.partition(":")[0] in there]


def runs_of(case: str) -> list[Run]:
    runs = [Run(case, policy, 0.0, "0") for policy in policies(RIGID)]
    runs += [Run(case, policy, share, "0") for policy in policies(UNRESIZED) for share in SHARES]
    for policy in policies(RESIZING):
        # Without malleable jobs, nothing is resized.
        runs += [
            Run(case, policy, share, cost) for cost in _MAIN_COSTS for share in SHARES if share or cost == "0"
        ]
        runs += [Run(case, policy, 1.0, cost) for cost in COSTS if cost not in _MAIN_COSTS]
    return runs


def runs_of_others(case: Case) -> list[Run]:
    return [
        run
        for other in case.others
        for run in (
            Run(case.name, _BASE, 0.0, "0", other),
            *(
                Run(case.name, policy, share, "0", other)
                for share in _SHARES_OF_OTHERS
                for policy in policies(_OF_OTHERS)
            ),
        )
    ]


def _play(traces: Path, full: bool, one: Run) -> Measured:
    case = next(case for case in CASES if case.name == one.case)
    first, last = case.full_rows if full else case.rows
    if one.other is not None:
        first, last = one.other, one.other + last - first
    workload = make_malleable(_load(case, traces, first, last), one.share, HALF_TO_DOUBLE, _SPEEDUP)
    began_s = time.monotonic()
    schedule = simulate(workload, policy_of(one.policy), costs=COSTS[one.cost])
    took_s = time.monotonic() - began_s
    gains = (None, None) if one.other is None or not one.share else _gains(schedule)
    return Measured(metrics_of(schedule), took_s, gains)


def _gains(schedule: Schedule) -> tuple[float | None, float | None]:
    """Return `Measured.gains`: of the jobs that are malleable, and of all others."""
    jobs = schedule.workload.jobs
    base = simulate(schedule.workload, policy_of(_BASE))
    own_s = [end_s - job.submit_s for job, end_s in zip(jobs, schedule.ends_s, strict=True)]
    base_s = [end_s - job.submit_s for job, end_s in zip(jobs, base.ends_s, strict=True)]

    def ratio(kind: bool) -> float | None:
        places = [place for place, job in enumerate(jobs) if job.is_malleable is kind]
        return (
            sum(own_s[place] for place in places) / sum(base_s[place] for place in places) if places else None
        )

    return ratio(True), ratio(False)


@lru_cache(maxsize=1)
def _load(case: Case, traces: Path, first: int, last: int) -> Workload:
    return case.trace.part(traces, slice(first, last))


# --- tables and figures ---------------------------------------------------------------------


def _ratio(results: Measures, one: Run, metric: str) -> float:
    base: float = getattr(results[one.base()].metrics, metric)
    own: float = getattr(results[one].metrics, metric)
    # Where nobody waits under EASY, the longest wait is 0.
    return own / base if base else 1.0 if not own else math.inf


def _rows(case: str, results: Measures) -> list[tuple[str, str]]:
    """(policy, cost) of the runs at all shares."""
    return list(
        dict.fromkeys(
            (one.policy, one.cost) for one in results if one.case == case and one.cost in _MAIN_COSTS
        )
    )


def _at(case: str, policy: str, share: float, cost: str) -> Run:
    """The run that stands for this cell."""
    if policy in RIGID:
        return Run(case, policy, 0.0, "0")
    return Run(case, policy, share, cost if share else "0")


def _overview(title: str, cases: Iterable[Case], results: Measures, metric: str) -> Table:
    """All policies on all traces at some shares, and where resizes cost time; empty: as at the left."""
    rows = list[tuple[str, ...]]()
    for policy in policies((*RIGID, *UNRESIZED, *RESIZING)):
        if policy == _BASE:
            continue
        cells = list[str]()
        for case in cases:
            for share, cost in _OVERVIEW:
                is_new = share == 0.0 or (policy not in RIGID if cost == "0" else policy in RESIZING)
                one = Run(case.name, policy, share, cost)
                cells.append(f"{_ratio(results, one, metric):.2f}" if is_new else "")
        rows.append((policy, *cells))
    names = [f"{share:.0%}" if cost == "0" else cost for share, cost in _OVERVIEW]
    return Table(title, ("policy", *(f"{case.name} {name}" for case in cases for name in names)), tuple(rows))


def _definitions(cases: Iterable[Case], results: Measures) -> Table:
    """All policies where all jobs are malleable and resizes cost nothing, by each definition of slowdown."""
    rows = [
        (
            policy,
            *(
                f"{_ratio(results, _at(case.name, policy, 1.0, '0'), metric):.2f}"
                for case in cases
                for _, metric in _DEFINITIONS
            ),
        )
        for policy in policies((*RIGID, *UNRESIZED, *RESIZING))
        if policy != _BASE
    ]
    header = ("policy", *(f"{case.name} {name}" for case in cases for name, _ in _DEFINITIONS))
    return Table("All jobs malleable: slowdowns, relative to EASY", header, tuple(rows))


def _by_share(title: str, case: str, results: Measures, metric: str) -> Table:
    rows = tuple(
        (
            policy,
            "" if policy not in RESIZING else cost,
            *(f"{_ratio(results, _at(case, policy, share, cost), metric):.3f}" for share in SHARES),
        )
        for policy, cost in _rows(case, results)
    )
    return Table(title, ("policy", "cost", *(f"{share:.0%}" for share in SHARES)), rows)


def _by_cost(results: Measures) -> Table:
    """Where all jobs are malleable; resizes in brackets."""
    cases = list(dict.fromkeys(one.case for one in results))
    rows = list[tuple[str, ...]]()
    for policy in policies(RESIZING):
        for cost in COSTS:
            cells = list[str]()
            for case in cases:
                one = Run(case, policy, 1.0, cost)
                cells.append(f"{_ratio(results, one, 'turnaround_s'):.3f} ({results[one].metrics.resizes})")
            rows.append((policy, cost, *cells))
    return Table("All jobs malleable: turnaround (resizes)", ("policy", "cost", *cases), tuple(rows))


def _winners(results: Measures) -> Table:
    """Return which policy has the least mean turnaround, and how much more `fair` has."""
    rows = list[tuple[str, ...]]()
    for case in dict.fromkeys(one.case for one in results):
        for cost in _MAIN_COSTS:
            cells = list[str]()
            for share in SHARES:
                ratios = {
                    policy: _ratio(
                        results, _at(case, policy, share, cost if policy in RESIZING else "0"), "turnaround_s"
                    )
                    for policy, of_cost in _rows(case, results)
                    if of_cost == cost or policy not in RESIZING
                }
                best = min(ratios, key=lambda policy: ratios[policy])
                behind = ratios["fair"] / ratios[best] - 1.0
                cells.append(best if best == "fair" else f"{best} (fair {behind:+.1%})")
            rows.append((case, cost, *cells))
    return Table(
        "Least mean turnaround", ("trace", "cost", *(f"{share:.0%}" for share in SHARES)), tuple(rows)
    )


def _of_others(case: Case, results: Measures) -> list[Table]:
    """Intervals of means over the other parts, and who is ahead of each other by them; who gains."""
    rows, gains = list[tuple[str, ...]](), list[tuple[str, ...]]()
    measures = ("turnaround_s", "bounded_slowdown", "wait_max_s")
    columns = [(share, measure) for share in _SHARES_OF_OTHERS for measure in measures]
    found: dict[tuple[float, str], dict[str, list[float]]] = {column: {} for column in columns}
    for policy in policies(_OF_OTHERS):
        cells = list[str]()
        for share, measure in columns:
            runs = [Run(case.name, policy, share, "0", other) for other in case.others]
            values = found[share, measure][policy] = [_ratio(results, one, measure) for one in runs]
            cells.append(interval(values).text())
        rows.append((policy, *cells))
        both = [(share, place) for share in _SHARES_OF_OTHERS for place in (0, 1) if share < 1.0 or not place]
        ratios = [
            [results[Run(case.name, policy, share, "0", other)].gains[place] for other in case.others]
            for share, place in both
        ]
        known = [[one for one in values if one is not None] for values in ratios]
        gains.append((policy, *(interval(values).text() if values else "" for values in known)))
    rows.append(("ahead of each other", *(winner(found[column]) or "none" for column in columns)))
    names = ("turnaround", "bounded slowdown", "longest wait")
    header = ("policy", *(f"{share:.0%}: {name}" for share in _SHARES_OF_OTHERS for name in names))
    begins = ", ".join(map(str, case.others))
    title = f"{case.name}, {len(case.others)} other parts, from rows {begins}"
    kinds = ("policy", "40%: malleable jobs", "40%: rigid jobs", "100%: malleable jobs")
    return [
        Table(title, header, tuple(rows)),
        Table(
            f"{case.name}, other parts: turnaround over that of the same jobs under EASY", kinds, tuple(gains)
        ),
    ]


def _draw(case: str, results: Measures, figure: Figure) -> None:
    """Turnaround against the share, a line per policy; dashed with costs."""
    from matplotlib import colormaps

    axes = figure.subplots()
    rows = [(policy, cost) for policy, cost in _rows(case, results) if policy != _BASE]
    shown = list(dict.fromkeys(policy for policy, _ in rows))
    for policy, cost in rows:
        ratios = [_ratio(results, _at(case, policy, share, cost), "turnaround_s") for share in SHARES]
        axes.plot(
            [100.0 * share for share in SHARES],
            ratios,
            "o-" if cost == "0" else "x--",
            color=colormaps["tab20"](shown.index(policy) % 20),
            label=policy if cost == "0" else None,
        )
    axes.axhline(1.0, color="grey", linewidth=0.8)
    # FCFS and jobs that starve are far above: what is compared lies below.
    axes.set(
        title=f"{case} (dashed: resizes cost {JVM_NODES.grow_s:g} and {JVM_NODES.shrink_s:g} s a node)",
        xlabel="malleable jobs [%]",
        ylabel="mean turnaround / EASY",
        ylim=(0.0, 1.6),
    )
    figure.legend(loc="outside right upper", fontsize="small")
