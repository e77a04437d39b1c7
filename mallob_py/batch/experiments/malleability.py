"""Agreement policies by share of malleable jobs; which jobs are malleable is drawn at random ten times.

The question of a study of three supercomputers' traces (arXiv 2602.17318): how much is gained if only some
jobs are malleable, and does it pay to keep jobs at their preferred number of nodes (`size=keep`)? The study's
job tables are not available; the jobs here are a part of each of two public traces, if these are available,
and generated jobs. A malleable job runs on half to twice its nodes with the speed n^(1-rho) on n nodes, rho
drawn uniformly from 0 to 0.3; it can be resized at any time, at no cost.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mallob_py.batch.experiments.fair import CASES, SPEEDUPS, part_of
from mallob_py.batch.experiments.traces import missing, path_in
from mallob_py.batch.metrics import Metrics, metrics_of
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.changes import make_malleable
from mallob_py.experiments import frame
from mallob_py.experiments.frame import draw, grid
from mallob_py.experiments.intervals import interval
from mallob_py.experiments.output import Output, Table

_NAMES = ("KTH", "HPC2N", "Lublin")
_BASE = "easy"
POLICIES = tuple(f"agreement:size={size}" for size in ("min", "pref", "keep", "average"))
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
SEEDS = range(10)
MEASURES = {
    "turnaround": "turnaround_s",
    "wait": "wait_s",
    "makespan": "makespan_s",
    "utilisation": "utilisation",
}
_REMARKS = """\
Relative to EASY on the same jobs, all rigid; below 1 is better, except for utilisation. Means over ten
drawings of which jobs are malleable; a ± b is a mean with its 95 % interval over the drawings. At 100 %,
drawings differ only in the speedups of jobs."""


class Run(frame.Run, frozen=True):
    case: str
    policy: str
    share: float = 0.0
    seed: int = 0


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Do all runs and write tables; without traces, only for generated jobs. Raises OSError, SwfError."""
    known = [case for case in CASES if case.name in _NAMES]
    cases = [case.name for case in known if case.trace is None or path_in(traces, case.trace.file)]
    if traces is not None and len(cases) == 1:
        raise missing("malleability", (case.trace.file for case in known if case.trace))
    runs = [Run(case, _BASE) for case in cases]
    runs += [
        Run(case, policy, share, seed)
        for case in cases
        for share in SHARES
        for seed in SEEDS
        for policy in POLICIES
    ]
    results = output.play(partial(_play, traces), runs, processes, Run.name)
    tables = [_table(case, measure, results) for measure in MEASURES for case in cases]
    output.tables(tables, _REMARKS)
    for case, table in zip(cases, tables, strict=False):
        output.figure(f"malleability-{case.lower()}", partial(draw, table))


def _play(traces: Path | None, one: Run) -> Metrics:
    case = next(case for case in CASES if case.name == one.case)
    jobs = part_of(one.case, case.parts[0], traces)
    workload = make_malleable(jobs, one.share, speedup=SPEEDUPS["power"], seed=one.seed)
    return metrics_of(simulate(workload, policy_of(one.policy)))


def _table(case: str, measure: str, results: dict[Run, Metrics]) -> Table:
    field = MEASURES[measure]
    base = getattr(results[Run(case, _BASE)], field)

    def cell(policy: str, share: float) -> str:
        values = [getattr(results[Run(case, policy, share, seed)], field) / base for seed in SEEDS]
        return interval(values).text()

    columns = {f"{share:.0%}": share for share in SHARES}
    return grid(
        f"{case}: {measure}, relative to EASY", "policy", {one: one for one in POLICIES}, columns, cell
    )
