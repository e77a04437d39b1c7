"""Evolving jobs, which say for how many nodes they expect work, compared with the same jobs as rigid or
malleable jobs.

In virtual time, on the batches of the ElasticJobScheduler paper: each evolving job tells the scheduler for
how many nodes it has work (`mallob_py.malleable.expectation`), from exact estimates. A resize costs the
published time, so an evolving job has work for a node only if the work takes longer than adding and releasing
the node.

With `--live`, on this host: batches of real bags (`bags`) whose jobs are all rigid, all malleable, or all
evolving, one after the other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from mallob_py.batch.costs import JVM_RESIZES, Delays
from mallob_py.batch.experiments import bags
from mallob_py.batch.job import Kind, Wish, Workload
from mallob_py.batch.metrics import Metrics, metrics_of
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.glb_batch import glb_batch
from mallob_py.experiments import frame
from mallob_py.experiments.frame import grid
from mallob_py.experiments.intervals import interval
from mallob_py.experiments.output import Output, Table
from mallob_py.malleable.expectation import BAND

Played = TypeVar("Played", Metrics, bags.Batch)

BATCHES = 10
POLICIES = ("easy", "elastic", "fair")
LIVE_POLICY = "elastic:cooldown-s=2,period-s=0.5"
LIVE_SEEDS = (1, 2, 3, 4)
KINDS = (Kind.RIGID, Kind.MALLEABLE, Kind.EVOLVING)
MEASURES: Mapping[str, Callable[[Metrics], float]] = {
    "makespan [s]": lambda one: one.makespan_s,
    "response [s]": lambda one: one.turnaround_s,
    "nodes in use [%]": lambda one: 100.0 * one.utilisation,
    "resizes per job": lambda one: one.resizes / one.jobs,
}
LIVE_MEASURES: Mapping[str, Callable[[bags.Batch], float]] = {
    "makespan [s]": lambda one: one.makespan_s,
    "response [s]": lambda one: one.turnaround_s,
    "orders per job": lambda one: (one.shrinks or 0.0) + (one.grows or 0.0),
    "CPU time [s]": lambda one: (one.used or 0.0) * one.makespan_s * (os.cpu_count() or 1),
    "cores used [%]": lambda one: 100.0 * (one.used or 0.0),
}
_READY_S = 6.0
#: the work left [s] for which an evolving job wishes for one node: the published costs of adding and
#: releasing a node
_PAYS_S = JVM_RESIZES.grow_s + JVM_RESIZES.shrink_s
_REMARKS = f"""\
Means over batches; a ± b is a mean with its 95 % interval. The last two columns are differences, batch by
batch, between evolving jobs and the same jobs as malleable and as rigid jobs; a difference is not significant
if its interval contains 0. Response is the time from submission to end. In virtual time, a resize stops a job
for {JVM_RESIZES.grow_s} s (grow) or {JVM_RESIZES.shrink_s} s (shrink), and an evolving job has work for one
node per {_PAYS_S:.1f} s of work left."""


class Run(frame.Run, frozen=True):
    policy: str
    kind: str
    batch: int


def run(output: Output, processes: int | None, traces: Path | None, live: bool = False) -> None:
    """Do all batches and write the tables; `live`: run real programs. Raises OSError, ReplayError."""
    if live:
        output.tables([_live_table(output)], _REMARKS)
        return
    runs = [
        Run(policy, kind.value, batch) for policy in POLICIES for kind in KINDS for batch in range(BATCHES)
    ]
    found = output.play(_play, runs, processes, Run.name)

    def of(policy: str, kind: Kind) -> list[Metrics]:
        return [found[Run(policy, kind.value, batch)] for batch in range(BATCHES)]

    output.tables([_table(policy, MEASURES, partial(of, policy)) for policy in POLICIES], _REMARKS)


def workload_of(kind: Kind, batch: int) -> Workload:
    """Return a batch whose jobs are all of this kind; an evolving job is a malleable job with wishes."""
    workload = glb_batch(batch, 0.0 if kind is Kind.RIGID else 1.0)
    if kind is not Kind.EVOLVING:
        return workload
    truths = [
        msgspec.structs.replace(truth, wishes=wishes_of(truth.run_s * job.nodes))
        for job, truth in zip(workload.jobs, workload.truths, strict=True)
    ]
    return msgspec.structs.replace(workload, truths=truths)


def wishes_of(work_s: float, pays_s: float = _PAYS_S) -> tuple[Wish, ...]:
    """Return the wishes of a job that knows its work [s on one node].

    A new wish comes up whenever the work left has fallen by the factor `BAND`.
    """
    wishes, left_s = list[Wish](), work_s
    while True:
        count = max(1, int(left_s / pays_s))
        wishes.append(Wish(1.0 - left_s / work_s, count))
        if count == 1:
            return tuple(wishes)
        left_s /= BAND


def _play(one: Run) -> Metrics:
    workload = workload_of(Kind(one.kind), one.batch)
    policy, delays = policy_of(one.policy), Delays(ready_s=_READY_S)
    return metrics_of(simulate(workload, policy, costs=JVM_RESIZES, delays=delays))


def _live_table(output: Output) -> Table:
    slots = os.cpu_count() or 1
    alone = bags.times_alone(output, slots)
    found: dict[Kind, list[bags.Batch]] = {kind: [] for kind in KINDS}
    for seed in LIVE_SEEDS:
        for kind in KINDS:
            share = 0.0 if kind is Kind.RIGID else 1.0
            programs, workload = bags.batch_of(seed, share, slots, alone, kind)
            name = f"{kind.value}, batch {seed}"
            play = partial(bags.played, programs, workload, LIVE_POLICY)
            found[kind].append(output.done(name, bags.Batch, play))
            print(f"{name}: done", file=sys.stderr)
    return _table(f"{LIVE_POLICY}, real bags on {slots} slots", LIVE_MEASURES, found.__getitem__)


def _table(
    title: str, measures: Mapping[str, Callable[[Played], float]], of: Callable[[Kind], Sequence[Played]]
) -> Table:
    def cell(measure: Callable[[Played], float], kinds: tuple[Kind, ...]) -> str:
        values = [list(map(measure, of(kind))) for kind in kinds]
        if len(values) == 1:
            return interval(values[0]).text(1)
        return interval([one - other for one, other in zip(*values, strict=True)]).text(1)

    columns: dict[str, tuple[Kind, ...]] = {kind.value: (kind,) for kind in KINDS}
    columns |= {f"evolving less {kind.value}": (Kind.EVOLVING, kind) for kind in (Kind.MALLEABLE, Kind.RIGID)}
    return grid(title, "measure", measures, columns, cell)
