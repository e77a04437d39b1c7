"""All policies on the same jobs, by share of malleable jobs, by costs of resizes, and by speedup.

The question: under which conditions is which policy best, and how good is decentralized fair share (`fair`)?
The jobs are parts of four public traces, if these are available, and generated jobs (`lublin`). A malleable
job runs on half to twice its requested nodes, or on half to five times as in the MEBF paper; its speed on n
nodes is n^(1-rho), with rho drawn uniformly from 0 to 0.3, or follows Amdahl or Downey. Jobs malleable at one
share are also malleable at each larger share. Resizes cost nothing, or the time measured on jobs of several
JVMs: 3.8 s for each added node and 2.9 s for each released node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from mallob_py.batch.costs import JVM_NODES, FreeResizes
from mallob_py.batch.experiments.traces import CURIE, HPC2N, KTH, RICC, Trace, missing, path_in
from mallob_py.batch.job import Workload
from mallob_py.batch.metrics import Metrics, metrics_of
from mallob_py.batch.registry import policy_names, policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.speedup import Amdahl, Downey, Power
from mallob_py.batch.workload.changes import (
    HALF_TO_DOUBLE,
    NodeRange,
    SpeedModel,
    make_malleable,
    with_arrivals_scaled,
)
from mallob_py.batch.workload.lublin import lublin
from mallob_py.experiments import frame
from mallob_py.experiments.frame import draw, grid, with_winners
from mallob_py.experiments.intervals import interval
from mallob_py.experiments.output import Output, Table

_BASE = "easy"
#: the policies that resize no job, so that neither costs of resizes nor speedups matter
UNRESIZED = ("conservative", "backfilling", "elastic-easy", "sd:check=no,depth=0")
RESIZING = (
    "elastic",
    "agreement",
    "mebf",
    "mebf:variant=intensive,gaps=shrink",
    "fair",
    "fair:overtake=any",
    "curve",
    "curve:curve=power:0.2",
    "curve:curve=fitted",
    "curve:gain=speed",
)
#: pairs of policies that are compared with each other, part by part
PAIRS = (
    *((policy, "fair") for policy in RESIZING if policy.startswith("curve")),
    ("curve:curve=fitted", "curve:curve=power:0.2"),
)
MEASURES = {
    "turnaround": "turnaround_s",
    "bounded slowdown": "bounded_slowdown",
    "longest wait": "wait_max_s",
}
_WIDE = NodeRange(0.5, 5.0)
SPEEDUPS = {
    "power": SpeedModel(Power, 0.0, 0.3),
    "Amdahl": SpeedModel(Amdahl, 0.0, 0.1),
    "Downey": SpeedModel(Downey, 0.0, 1.0),
    "rho to .9": SpeedModel(Power, 0.0, 0.9),
}
_REMARKS = """\
Means over parts of the trace, or over seeds, relative to EASY on the same jobs, which treats all as rigid;
below 1 is better. a ± b is a mean with its 95 % interval over the parts. Ahead of all others: the policy
whose difference to each other policy, part by part, has an interval that excludes 0. 40%, 100%: share of
malleable jobs. 0.5:5: malleable jobs run on half to five times their nodes; else on half to twice their
nodes. JVM: resizes cost 3.8 s for each added node and 2.9 s for each released node. rho to .9: rho is drawn
from 0 to 0.9. Bounded slowdown is turnaround divided by the run time on the nodes that a job asks for, or by
10 s if that is shorter. A / B: turnaround under policy A relative to turnaround under policy B."""


class Jobs(msgspec.Struct, frozen=True):
    """Parts of a trace: `count` jobs from each row in `parts` on. Without a trace, `parts` are seeds."""

    name: str
    trace: Trace | None
    count: int
    parts: tuple[int, ...]


CASES = (
    Jobs("KTH", KTH, 500, (1_500, 3_000, 7_500, 12_000, 15_000)),
    Jobs("HPC2N", HPC2N, 500, (13_500, 40_900, 67_500, 148_500, 189_000)),
    Jobs("RICC", RICC, 500, (180_000, 225_000, 235_000, 260_000, 418_000)),
    Jobs("Curie", CURIE, 500, (10_000, 45_000, 50_000, 54_500, 90_000)),
    Jobs("Lublin", None, 500, (1, 2, 3, 4, 5)),
)
#: the number of nodes for generated jobs, and the factor by which the gaps between their arrivals are
#: multiplied
_NODES = 128
_ARRIVALS = 0.6


class Kind(msgspec.Struct, frozen=True):
    """A column: share of malleable jobs, their range of nodes and speedup, and whether resizes take time."""

    share: float = 1.0
    costs: bool = False
    wide: bool = False
    speedup: str = "power"


KINDS = {
    "40%": Kind(0.4),
    "100%": Kind(),
    "100%, JVM": Kind(costs=True),
    "100%, 0.5:5": Kind(wide=True),
    "100%, Amdahl": Kind(speedup="Amdahl"),
    "100%, Downey": Kind(speedup="Downey"),
    "100%, 0.5:5, rho to .9": Kind(wide=True, speedup="rho to .9"),
}


class Run(frame.Run, frozen=True):
    case: str
    part: int
    policy: str
    kind: str = ""


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Do all runs and write tables; without traces, only for generated jobs. Raises OSError, SwfError."""
    cases = [case for case in CASES if case.trace is None or path_in(traces, case.trace.file)]
    if traces is not None and len(cases) == 1:
        raise missing("fair", (case.trace.file for case in CASES if case.trace))
    runs = [Run(case.name, part, _BASE) for case in cases for part in case.parts]
    runs += [
        Run(case.name, part, policy, kind)
        for case in cases
        for part in case.parts
        for policy, kind in cells()
    ]
    results = output.play(partial(_play, traces), runs, processes, Run.name)
    tables = [_table(case, measure, results) for measure in MEASURES for case in cases]
    output.tables([*tables, _pairs(cases, results)], _REMARKS)
    for case, table in zip(cases, tables, strict=False):
        output.figure(f"fair-{case.name.lower()}", partial(draw, table))


def cells() -> Iterator[tuple[str, str]]:
    """Yield (policy, name of the kind) for the runs of all installed policies."""
    there = policy_names()
    for policy in (*UNRESIZED, *RESIZING):
        if policy.partition(":")[0] in there:
            yield from ((policy, kind) for kind in (KINDS if policy in RESIZING else ("40%", "100%")))


def workload_for(one: Run, traces: Path | None) -> Workload:
    kind = KINDS.get(one.kind, Kind(0.0))
    nodes = _WIDE if kind.wide else HALF_TO_DOUBLE
    return make_malleable(part_of(one.case, one.part, traces), kind.share, nodes, SPEEDUPS[kind.speedup])


def _play(traces: Path | None, one: Run) -> Metrics:
    costs = JVM_NODES if KINDS.get(one.kind, Kind()).costs else FreeResizes()
    return metrics_of(simulate(workload_for(one, traces), policy_of(one.policy), costs=costs))


@lru_cache(maxsize=1)
def part_of(name: str, part: int, traces: Path | None) -> Workload:
    case = next(case for case in CASES if case.name == name)
    if case.trace is None:
        return with_arrivals_scaled(lublin(case.count, _NODES, part), _ARRIVALS)
    assert traces is not None
    return case.trace.part(traces, slice(part, part + case.count))


def _table(case: Jobs, measure: str, results: dict[Run, Metrics]) -> Table:
    def ratios(policy: str, kind: str) -> list[float]:
        return _ratios(case, measure, results, (policy, kind), (_BASE, ""))

    played = set(cells())
    rows = {policy: policy for policy, _ in cells()}
    what = f"{case.name}: {measure}, relative to EASY, {len(case.parts)} parts of {case.count} jobs"

    def cell(policy: str, kind: str) -> str:
        return interval(ratios(policy, kind)).text() if (policy, kind) in played else ""

    table = grid(what, "policy", rows, {kind: kind for kind in KINDS}, cell)
    return with_winners(
        table, [{row: ratios(row, kind) for row in rows if (row, kind) in played} for kind in KINDS]
    )


def _pairs(cases: list[Jobs], results: dict[Run, Metrics]) -> Table:
    """Return the table of turnarounds of `PAIRS`, for each kind and case."""

    def cell(row: tuple[str, str, str], case: Jobs) -> str:
        above, below, kind = row
        return interval(_ratios(case, "turnaround", results, (above, kind), (below, kind))).text()

    rows = {f"{kind}: {above} / {below}": (above, below, kind) for kind in KINDS for above, below in PAIRS}
    title = "Turnaround relative to another policy, part by part"
    return grid(title, "malleable jobs: policies", rows, {case.name: case for case in cases}, cell)


def _ratios(
    case: Jobs, measure: str, results: dict[Run, Metrics], above: tuple[str, str], below: tuple[str, str]
) -> list[float]:
    """Return a measure under `above` relative to `below`, both (policy, kind), for each part."""
    field = MEASURES[measure]
    return [
        _over(
            getattr(results[Run(case.name, part, *above)], field),
            getattr(results[Run(case.name, part, *below)], field),
        )
        for part in case.parts
    ]


def _over(own: float, base: float) -> float:
    """Return own / base. If `base` is 0 (a longest wait, if no job waits): 1 if `own` is 0, else infinity."""
    return own / base if base else 1.0 if not own else math.inf
