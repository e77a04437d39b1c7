"""What will be left of shared nodes at what time, by estimates and plans."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from mallob_py.batch.cluster import Room, units_in
from mallob_py.batch.job import Job
from mallob_py.batch.policies.pbs import End


class Timeline:
    """A step function of time: from `_times_s[k]` to the next, `_left[k]` is left (node, resource)."""

    def __init__(self, now_s: float, room: Room, ends: Sequence[End]) -> None:
        self._capacity = room.capacity
        self._times_s = [now_s]
        steps = [room.left]
        then = room.copy()
        for end_s, nodes, demand in ends:
            then.give(nodes, demand)
            if end_s == self._times_s[-1]:
                steps[-1] = then.left.copy()
            else:
                self._times_s.append(end_s)
                steps.append(then.left.copy())
        self._left = np.array(steps)

    def place(self, job: Job) -> tuple[float, list[int]]:
        """The earliest time [s] from which a job has room for its estimated run time, and its nodes there.

        They are taken for it. It must have room on the empty machine.
        """
        times_s = self._times_s
        units = units_in(self._left, job.demand, self._capacity)
        for first in np.flatnonzero(units.sum(axis=1) >= job.nodes).tolist():
            last = bisect_left(times_s, times_s[first] + job.estimate_s, first + 1)
            if units[first:last].min(axis=0).sum() >= job.nodes:
                break
        start_s, room = times_s[first], Room(self._capacity, self._left[first:last].min(axis=0))
        nodes = room.place(job.nodes, job.demand)
        assert nodes is not None
        self.take(job, start_s, nodes)
        return start_s, nodes

    def place_now(self, job: Job) -> list[int] | None:
        """Nodes that a job can have from now on for its estimated run time; they are taken for it."""
        last = bisect_left(self._times_s, self._times_s[0] + job.estimate_s, 1)
        room = Room(self._capacity, self._left[:last].min(axis=0))
        nodes = room.place(job.nodes, job.demand)
        if nodes is not None:
            self.take(job, self._times_s[0], nodes)
        return nodes

    def take(self, job: Job, start_s: float, nodes: Sequence[int]) -> None:
        """A job has these nodes from then on for its estimated run time."""
        self._cut(start_s)
        self._cut(start_s + job.estimate_s)
        first = bisect_left(self._times_s, start_s)
        last = bisect_left(self._times_s, start_s + job.estimate_s)
        for left in self._left[first:last]:
            Room(self._capacity, left).take(nodes, job.demand)

    def _cut(self, at_s: float) -> None:
        """Let a step begin at this time."""
        place = bisect_left(self._times_s, at_s)
        if place < len(self._times_s) and self._times_s[place] == at_s:
            return
        self._times_s.insert(place, at_s)
        self._left = np.insert(self._left, place, self._left[place - 1], axis=0)
