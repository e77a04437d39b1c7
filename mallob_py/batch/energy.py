"""Energy by what nodes do: busy ones run a job, the others are idle. Power is in watts, energy in joules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from mallob_py.batch.simulator import Schedule


class Power(msgspec.Struct, frozen=True):
    """What one node takes [W]."""

    idle_w: float = 100.0
    busy_w: float = 200.0


class Energy(msgspec.Struct, frozen=True):
    """Node-seconds and energy [J] of each state, from the first submission to the last end."""

    busy_node_s: float
    idle_node_s: float
    busy_j: float
    idle_j: float

    @property
    def total_j(self) -> float:
        return self.busy_j + self.idle_j


def energy_of(schedule: Schedule, power: Power) -> Energy:
    """ValueError: there are no jobs."""
    if not schedule.workload.jobs:
        raise ValueError("there are no jobs")
    begin_s = min(job.submit_s for job in schedule.workload.jobs)
    busy = math.fsum(busy_of_jobs(schedule))
    idle = max(0.0, schedule.nodes * (max(schedule.ends_s) - begin_s) - busy)
    return Energy(busy, idle, busy * power.busy_w, idle * power.idle_w)


def busy_of_jobs(schedule: Schedule) -> Sequence[float]:
    """Node-seconds of each job. A node that several jobs share is busy once, and divided among them.

    A guest and its mate have it as they have its cores; on nodes with several resources, each unit has as
    much.
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
    #: by node: (time, job, units that come)
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
