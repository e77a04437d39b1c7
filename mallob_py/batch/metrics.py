"""The metrics of a schedule: waiting, turnaround, slowdown, utilisation, and the energy of its nodes.

Times are seconds. A node's power depends on its state: busy with a job, or idle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.simulator import Schedule

#: the least run time [s] in the bounded slowdown: shorter jobs count as running for this time
SLOWDOWN_BOUND_S = 10.0


class Metrics(msgspec.Struct, frozen=True):
    """The metrics of one policy on one workload; times and slowdowns are means over its jobs.

    `slowdown` is turnaround divided by the static run time, the one on the nodes that a job asks for: so a
    policy that slows jobs down gains nothing by it, and a policy that speeds jobs up can come below 1.
    `stretched_slowdown` is turnaround divided by the run time under the policy. Both bounded slowdowns count
    run times below 10 s as 10 s, and a job's slowdown below 1 as 1. For rigid jobs on nodes of their own,
    stretched slowdowns equal the others. `utilisation` is the share of node-seconds that jobs held between
    the first submission and the last end (on shared nodes: the share of the first resource).
    """

    policy: str
    jobs: int
    makespan_s: float
    wait_s: float
    wait_max_s: float
    run_s: float
    turnaround_s: float
    slowdown: float
    bounded_slowdown: float
    stretched_slowdown: float
    stretched_bounded_slowdown: float
    utilisation: float
    resizes: int


def metrics_of(schedule: Schedule) -> Metrics:
    """Return the metrics of a schedule. Raises ValueError if it has no jobs."""
    jobs = schedule.workload.jobs
    if not jobs:
        raise ValueError("there are no jobs")
    submissions = np.array([job.submit_s for job in jobs])
    starts, ends = np.asarray(schedule.starts_s), np.asarray(schedule.ends_s)
    runs, turnarounds = ends - starts, ends - submissions
    static_runs = np.array([truth.run_s for truth in schedule.workload.truths])
    makespan_s = float(ends.max() - submissions.min())
    return Metrics(
        policy=schedule.policy,
        jobs=len(jobs),
        makespan_s=makespan_s,
        wait_s=float((starts - submissions).mean()),
        wait_max_s=float((starts - submissions).max()),
        run_s=float(runs.mean()),
        turnaround_s=float(turnarounds.mean()),
        slowdown=float((turnarounds / static_runs).mean()),
        bounded_slowdown=_bounded_slowdown(turnarounds, static_runs),
        stretched_slowdown=float((turnarounds / runs).mean()),
        stretched_bounded_slowdown=_bounded_slowdown(turnarounds, runs),
        utilisation=float(_held_s(schedule, ends).sum()) / (schedule.nodes * makespan_s),
        resizes=schedule.resizes,
    )


def _bounded_slowdown(turnarounds: NDArray[np.float64], runs: NDArray[np.float64]) -> float:
    return float(np.maximum(1.0, turnarounds / np.maximum(runs, SLOWDOWN_BOUND_S)).mean())


def _held_s(schedule: Schedule, ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return summands whose sum is the jobs' node-seconds; those of shared nodes count once."""
    sizes = np.array(_sizes(schedule))
    last = (ends - np.asarray(schedule.piece_starts_s)) * sizes
    former = [(piece.end_s - piece.start_s) * len(piece.nodes) for piece in schedule.pieces]
    twice = [-(span.end_s - span.start_s) * span.nodes for span in schedule.shared]
    return np.concatenate([last, np.array(former), np.array(twice)])


def _sizes(schedule: Schedule) -> Sequence[float]:
    """Return each job's last number of nodes; in a cluster, its amount of the first resource, divided by a
    node's mean amount.
    """
    cluster = schedule.workload.cluster
    if cluster is None:
        return [len(nodes) for nodes in schedule.allocations]
    amounts = [capacity[0] for capacity in cluster.capacities]
    mean = sum(amounts) / len(amounts)
    return [
        (job.demand[0] * len(nodes) if job.demand else sum(amounts[node] for node in nodes)) / mean
        for job, nodes in zip(schedule.workload.jobs, schedule.allocations, strict=True)
    ]


# --- malleable jobs ---------------------------------------------------------------------


class Apart(msgspec.Struct, frozen=True):
    """The results of malleable jobs and of all others: mean turnarounds [s] of both (None: no such jobs).

    `shrinks`, `grows`: mean numbers of a malleable job's resizes.
    """

    malleable_s: float | None
    others_s: float | None
    shrinks: float
    grows: float


def apart_of(schedule: Schedule) -> Apart:
    """Return the results of a schedule's malleable jobs and of its other jobs."""
    jobs = schedule.workload.jobs
    turnarounds = {
        is_malleable: [
            end_s - job.submit_s
            for job, end_s in zip(jobs, schedule.ends_s, strict=True)
            if job.is_malleable is is_malleable
        ]
        for is_malleable in (True, False)
    }
    sizes: dict[int, list[tuple[float, int]]] = {}
    for piece in schedule.all_pieces():
        sizes.setdefault(piece.job, []).append((piece.start_s, len(piece.nodes)))
    steps = [
        after - before
        for job, pieces in sizes.items()
        if jobs[job].is_malleable
        for (_, before), (_, after) in pairwise(sorted(pieces))
    ]
    count = max(1, len(turnarounds[True]))
    return Apart(
        fmean(turnarounds[True]) if turnarounds[True] else None,
        fmean(turnarounds[False]) if turnarounds[False] else None,
        sum(step < 0 for step in steps) / count,
        sum(step > 0 for step in steps) / count,
    )


# --- energy -----------------------------------------------------------------------------


class NodePower(msgspec.Struct, frozen=True):
    """The power [W] of one node, idle and busy."""

    idle_w: float = 100.0
    busy_w: float = 200.0


class Energy(msgspec.Struct, frozen=True):
    """Node-seconds and energy [J] by state of nodes, from the first submission to the last end."""

    busy_node_s: float
    idle_node_s: float
    busy_j: float
    idle_j: float

    @property
    def total_j(self) -> float:
        return self.busy_j + self.idle_j


def energy_of(schedule: Schedule, power: NodePower) -> Energy:
    """Return the energy of a schedule's nodes. Raises ValueError if the schedule has no jobs."""
    if not schedule.workload.jobs:
        raise ValueError("there are no jobs")
    begin_s = min(job.submit_s for job in schedule.workload.jobs)
    busy = math.fsum(busy_of_jobs(schedule))
    idle = max(0.0, schedule.nodes * (max(schedule.ends_s) - begin_s) - busy)
    return Energy(busy, idle, busy * power.busy_w, idle * power.idle_w)


def busy_of_jobs(schedule: Schedule) -> Sequence[float]:
    """Return the node-seconds of each job. The seconds of a shared node are divided among its jobs.

    A guest and its mate divide a node's seconds as they divide its cores; in a cluster, each unit on a node
    has an equal part.
    """
    busy = [0.0] * len(schedule.workload.jobs)
    if schedule.workload.cluster is not None:
        _divide_by_units(schedule, busy)
        return busy
    for piece in schedule.all_pieces():
        busy[piece.job] += (piece.end_s - piece.start_s) * len(piece.nodes)
    for span in schedule.shared:
        shared_s = (span.end_s - span.start_s) * span.nodes
        busy[span.guest] -= shared_s * (1.0 - span.factor)
        busy[span.mate] -= shared_s * span.factor
    return busy


def _divide_by_units(schedule: Schedule, busy: list[float]) -> None:
    #: node -> (time [s], job, number of units that the job adds there or, if negative, removes)
    changes: dict[int, list[tuple[float, int, int]]] = {}
    for piece in schedule.all_pieces():
        for node, units in Counter(piece.nodes).items():
            changes.setdefault(node, []).extend(
                [(piece.start_s, piece.job, units), (piece.end_s, piece.job, -units)]
            )
    for here in changes.values():
        here.sort()
        running, together, before_s = dict[int, int](), 0, 0.0
        for at_s, job, units in here:
            for one, has in running.items():
                busy[one] += (at_s - before_s) * has / together
            before_s, together = at_s, together + units
            running[job] = running.get(job, 0) + units
            if not running[job]:
                del running[job]
