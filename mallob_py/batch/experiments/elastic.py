"""ElasticJobScheduler's policies on batches of 25 jobs on 32 nodes, by the share of malleable jobs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec

from mallob_py.batch.costs import JVM_RESIZES, FreeResizes
from mallob_py.batch.metrics import apart_of, metrics_of
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.glb_batch import glb_batch
from mallob_py.experiments import frame
from mallob_py.experiments.frame import beside, draw, grid, with_winners
from mallob_py.experiments.intervals import interval
from mallob_py.experiments.output import Output, Table

BATCHES = 10
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_ELASTIC = "elastic:ready-s=6"
POLICIES = (
    "elastic-fcfs",
    "backfilling",
    "elastic-easy",
    _ELASTIC,
    "elastic:start=code,shrink=code,grow=code,ready-s=6",
    "fair",
)
#: measure -> (policy, share of malleable jobs) -> published number
PUBLISHED: dict[str, dict[tuple[str, float], float]] = {
    "makespan [s]": {
        ("elastic-fcfs", 0.0): 1157, ("elastic-fcfs", 1.0): 1022, ("backfilling", 0.0): 1035,
        ("backfilling", 1.0): 1005, ("elastic-easy", 0.0): 1172, ("elastic-easy", 1.0): 1014,
        (_ELASTIC, 0.0): 1168, (_ELASTIC, 1.0): 1006,
    },
    "utilisation [%]": {
        ("elastic-fcfs", 0.0): 75.5, ("elastic-fcfs", 1.0): 88.2, ("backfilling", 0.0): 84.5,
        ("backfilling", 1.0): 89.5, ("elastic-easy", 0.0): 74.8, ("elastic-easy", 1.0): 88.8,
        (_ELASTIC, 0.0): 74.8, (_ELASTIC, 1.0): 90.5,
    },
    "turnaround [s]": {
        ("elastic-fcfs", 0.0): 366, ("elastic-fcfs", 1.0): 306, ("backfilling", 0.0): 284,
        ("backfilling", 1.0): 282, (_ELASTIC, 0.0): 369, (_ELASTIC, 1.0): 353,
    },
    "shrinks": {(_ELASTIC, 0.2): 0.78, (_ELASTIC, 1.0): 0.71},
    "grows": {(_ELASTIC, 0.2): 0.96, (_ELASTIC, 1.0): 0.58},
}  # fmt: skip
_REMARKS = f"""\
Means of {BATCHES} batches; a ± b: mean with its 95 % interval. (P) marks published numbers, measured on a
real cluster. Run times were not published as numbers: those here follow from the paper's aim of 8
node-hours per batch, and speedup is linear. So only the directions can be compared. Resizes cost nothing, or
{JVM_RESIZES.grow_s} s to grow and {JVM_RESIZES.shrink_s} s to shrink (the published means), during which a
job stands still. Ahead: the policy whose difference to each other policy, batch by batch, has an interval
that excludes 0. Shrinks, grows: orders per malleable job. Less at 100% than at 0%: the difference between a
batch without malleable jobs and the same batch with only malleable jobs."""


class Run(frame.Run, frozen=True):
    policy: str
    share: float
    batch: int
    costs: bool = False


class Played(msgspec.Struct, frozen=True):
    """The results of a simulated batch. `turnarounds_s`: for each job, (turnaround [s], is it malleable)."""

    measures: dict[str, float]
    turnarounds_s: list[tuple[float, bool]]


Results = dict[Run, Played]


def run(
    output: Output, processes: int | None, traces: Path | None, full: bool = False, live: bool = False
) -> None:
    """Write the tables, which takes seconds and needs no traces.

    `live`: run a batch as real processes instead, which takes minutes; with `full`, for more shares of
    malleable jobs.
    """
    if live:
        from mallob_py.batch.experiments import elastic_live

        elastic_live.run_live(output, elastic_live.SHARES_IN_FULL if full else elastic_live.SHARES)
        return
    if full:
        raise ValueError("--full needs --live: the simulated experiment elastic always has its full size")
    rows = [(policy, False) for policy in POLICIES]
    rows += [(policy, True) for policy in POLICIES if policy.startswith(("elastic:", "fair"))]
    runs = [
        Run(policy, share, batch, costs)
        for policy, costs in rows
        for share in SHARES
        for batch in range(BATCHES)
    ]
    results = output.play(_play, runs, processes, Run.name)
    tables = [_table(measure, rows, results) for measure in PUBLISHED]
    output.tables([*tables, _gains(results)], _REMARKS)
    for name, table in zip(("makespan", "utilisation", "turnaround"), tables, strict=False):
        output.figure(f"elastic-{name}", partial(draw, table))


def _play(one: Run) -> Played:
    costs = JVM_RESIZES if one.costs else FreeResizes()
    schedule = simulate(glb_batch(one.batch, one.share), policy_of(one.policy), costs=costs)
    metrics, apart = metrics_of(schedule), apart_of(schedule)
    measures = {
        "makespan [s]": metrics.makespan_s,
        "utilisation [%]": 100.0 * metrics.utilisation,
        "turnaround [s]": metrics.turnaround_s,
        "shrinks": apart.shrinks,
        "grows": apart.grows,
    }
    return Played(
        measures,
        [
            (end_s - job.submit_s, job.is_malleable)
            for job, end_s in zip(schedule.workload.jobs, schedule.ends_s, strict=True)
        ],
    )


def _table(measure: str, rows: list[tuple[str, bool]], results: Results) -> Table:
    digits = 2 if measure in ("shrinks", "grows") else 0

    def values(row: tuple[str, bool], share: float) -> list[float]:
        policy, costs = row
        return [results[Run(policy, share, batch, costs)].measures[measure] for batch in range(BATCHES)]

    def cell(row: tuple[str, bool], share: float) -> str:
        said = None if row[1] else PUBLISHED[measure].get((row[0], share))
        return beside(interval(values(row, share)).text(digits), said)

    def less(row: tuple[str, bool]) -> str:
        pairs = zip(values(row, 0.0), values(row, 1.0), strict=True)
        return interval([rigid - malleable for rigid, malleable in pairs]).text(digits)

    labels = {f"{policy}, resizes cost" if costs else policy: (policy, costs) for policy, costs in rows}
    columns = {f"{share:.0%}": share for share in SHARES}
    table = grid(f"{measure}, by the share of malleable jobs", "policy", labels, columns, cell)
    free = {label: row for label, row in labels.items() if not row[1]}
    table = with_winners(
        table, [{label: values(row, share) for label, row in free.items()} for share in columns.values()]
    )
    lines = [(*line, less(labels[str(line[0])]) if line[0] in labels else "") for line in table.rows]
    return Table(table.title, (*table.header, "less at 100% than at 0%"), tuple(lines))


def _gains(results: Results) -> Table:
    """Return mean turnarounds of malleable and of rigid jobs, relative to batches of only rigid jobs."""

    def cell(row: tuple[str, bool], share: float) -> str:
        policy, kind = row
        ratios = []
        for batch in range(BATCHES):
            own = results[Run(policy, share, batch)].turnarounds_s
            rigid = results[Run(policy, 0.0, batch)].turnarounds_s
            pairs = [(one[0], other[0]) for one, other in zip(own, rigid, strict=True) if one[1] is kind]
            if pairs:
                ratios.append(sum(one for one, _ in pairs) / sum(other for _, other in pairs))
        return interval(ratios).text() if ratios else ""

    rows = {
        f"{policy}, {'malleable' if kind else 'rigid'} jobs": (policy, kind)
        for policy in ("elastic-easy", _ELASTIC, "fair")
        for kind in (True, False)
    }
    columns = {f"{share:.0%}": share for share in SHARES[1:]}
    return grid("Turnaround relative to that of the same jobs if all are rigid", "jobs", rows, columns, cell)
