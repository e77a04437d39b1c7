"""Two configurations of the batch system PBS on nodes that jobs share, which CP was compared with.

Source: Bridi et al., "A CP Scheduler for High-Performance Computers" (2016), section 7. The first job that
does not fit has a reservation at its shadow time: the earliest time at which all its units will have room by
the estimates. Another job starts if it has room now and either ends by the shadow time (by its estimate), or
leaves the first job its room at this time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from mallob_py.batch.cluster import Room, units_in
from mallob_py.batch.job import Job
from mallob_py.batch.policy import Action, PolicyError, Start, View

#: (estimated end [s], nodes, demand) of a running job
End = tuple[float, Sequence[int], tuple[float, ...]]


class _Pbs:
    wants_all_arrivals = True
    shares_nodes = True
    name: str

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth is {depth}, not at least 1")
        self._depth = depth

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Sequence[Action]:
        if not view.queue:
            return ()
        room, queue = room_of(view, self.name), self._ordered(view.queue)
        starts = backfill_starts(view.now_s, queue, room, ends_of(view), self._depth)
        return [Start(job.id, tuple(nodes)) for job, nodes in starts]

    def _ordered(self, queue: Sequence[Job]) -> Sequence[Job]:
        return queue


class PbsFifo(_Pbs):
    """Start jobs in the order of arrival; at most the first `depth` waiting jobs are considered."""

    def __init__(self, depth: int = 10) -> None:
        super().__init__(depth)
        self.name = "pbsfifo"


class PbsWalltime(_Pbs):
    """Start jobs by requested time, the shortest first; at most the first `depth` jobs are considered."""

    def __init__(self, depth: int = 400) -> None:
        super().__init__(depth)
        self.name = "pbswalltime"

    def _ordered(self, queue: Sequence[Job]) -> Sequence[Job]:
        return sorted(queue, key=lambda job: (job.estimate_s, job.id))


def room_of(view: View, policy: str) -> Room:
    """Return a copy of the nodes' free room, which the caller may change."""
    if view.room is None:
        raise PolicyError(f"{policy} needs a workload whose jobs share nodes, such as Eurora's logs")
    return view.room.copy()


def ends_of(view: View) -> list[End]:
    """Return the running jobs' estimated ends, sorted; jobs over their estimates end right after now."""
    soon_s = math.nextafter(view.now_s, math.inf)
    return [(max(end_s, soon_s), running.nodes, running.job.demand) for end_s, _, running in view.ends]


def backfill_starts(
    now_s: float, queue: Sequence[Job], room: Room, ends: list[End], depth: int = 0
) -> list[tuple[Job, list[int]]]:
    """Return (job that starts now, its nodes) for jobs of a queue; their nodes are taken from `room`.

    At most `depth` jobs are considered (0: all), counted from the first job that does not fit.
    """
    starts: list[tuple[Job, list[int]]] = []
    first = 0
    for job in queue:
        nodes = room.place(job.nodes, job.demand)
        if nodes is None:
            break
        room.take(nodes, job.demand)
        starts.append((job, nodes))
        first += 1
    others = queue[first + 1 : first + depth] if depth else queue[first + 1 :]
    if not others:
        return starts
    head, shadow = queue[first], None
    # Room only shrinks within one decision.
    hopeless: set[tuple[int, tuple[float, ...]]] = set()
    for job in others:
        if (job.nodes, job.demand) in hopeless:
            continue
        nodes = room.place(job.nodes, job.demand)
        if nodes is None:
            hopeless.add((job.nodes, job.demand))
            continue
        if shadow is None:
            begun: list[End] = sorted((now_s + one.estimate_s, where, one.demand) for one, where in starts)
            shadow = _shadow(head, room, list(heapq.merge(ends, begun)))
        shadow_s, then = shadow
        if now_s + job.estimate_s > shadow_s:
            then.take(nodes, job.demand)
            if then.units(head.demand).sum() < head.nodes:
                then.give(nodes, job.demand)
                continue
        room.take(nodes, job.demand)
        starts.append((job, nodes))
    return starts


def _shadow(head: Job, room: Room, ends: list[End]) -> tuple[float, Room]:
    """Return the time [s] at which `head` has room, and the room that it then leaves to others."""
    capacity = room.capacity
    places, nodes, amounts = list[int](), list[int](), list[Sequence[float]]()
    for place, (_, where, demand) in enumerate(ends):
        places += [place] * len(where)
        nodes += where
        amounts += [demand] * len(where) if demand else capacity[list(where)].tolist()
    left = np.zeros((len(ends), *capacity.shape))
    np.add.at(left, (places, nodes), amounts)
    np.cumsum(left, axis=0, out=left)
    left += room.left
    last = int(np.argmax(units_in(left, head.demand, capacity).sum(axis=1) >= head.nodes))
    while last + 1 < len(ends) and ends[last + 1][0] == ends[last][0]:
        last += 1
    return ends[last][0], Room(capacity, left[last])
