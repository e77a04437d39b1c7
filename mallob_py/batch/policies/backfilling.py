"""Policies for rigid jobs in the order of arrival, with more or less overtaking; they resize no job."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mallob_py.batch.policy import Action, Start, View
from mallob_py.batch.shadow import ends_of, shadow_of


class Fcfs:
    """First come, first served: no job overtakes another."""

    name = "fcfs"
    wants_all_arrivals = False

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Sequence[Action]:
        free, actions = view.free, list[Action]()
        for job in view.queue:
            if job.nodes > free:
                break
            free -= job.nodes
            actions.append(Start(job.id, job.nodes))
        return actions


class Backfilling:
    """Start every job that fits, on all free nodes that it can use. Large jobs may starve."""

    name = "backfilling"
    wants_all_arrivals = False

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Sequence[Action]:
        free, actions = view.free, list[Action]()
        # A job that did not fit before does not fit after arrivals alone.
        candidates = view.queue if view.ended else view.queue[len(view.queue) - view.arrived :]
        for job in candidates:
            if not free:
                break
            if job.low <= free:
                size = min(job.high, free)
                free -= size
                actions.append(Start(job.id, size))
        return actions


class Easy:
    """EASY: the first job that does not fit has a reservation, which jobs behind it must not delay.

    The reservation is at the shadow time: the earliest time at which, by the estimates, enough nodes will be
    free. Another job starts if it fits now and either ends by the shadow time (by its estimate) or uses only
    extra nodes, which the reservation does not need; with `extra=False`, extra nodes may not be used. At most
    `depth` waiting jobs are considered, the head included (0: all).
    """

    wants_all_arrivals = False

    def __init__(self, depth: int = 0, extra: bool = True) -> None:
        if depth < 0:
            raise ValueError(f"depth is {depth}, below 0")
        self.name = "easy"
        self._depth = depth or math.inf
        self._uses_extra = extra
        self._head = -1
        #: shadow time [s] and number of extra nodes of the queue's head; None: not computed yet
        self._shadow: tuple[float, int] | None = None

    def begin(self, nodes: int) -> None:
        self._head = -1

    def decide(self, view: View) -> Sequence[Action]:
        queue, actions = view.queue, list[Action]()
        if not queue:
            return actions
        free, first = view.free, 0
        if view.ended or queue[0].id != self._head:
            self._head, self._shadow = -1, None
            for job in queue:
                if job.nodes > free:
                    self._head = job.id
                    break
                free -= job.nodes
                actions.append(Start(job.id, job.nodes))
            else:
                return actions
            # The shadow time is computed only when a job that might delay the head fits.
            started, first = len(actions), len(actions) + 1
        else:
            # The head and all jobs considered before still wait. With a depth, started jobs may have let
            # other jobs come within the depth.
            started, first = 0, 1 if self._depth < math.inf else len(queue) - view.arrived
        if not free:
            return actions
        now = view.now_s
        for place in range(first, int(min(len(queue), started + self._depth))):
            job = queue[place]
            size = job.nodes
            if size > free:
                continue
            if self._shadow is None:
                starting = [(one, one.nodes) for one in queue[:started]]
                self._shadow = shadow_of(ends_of(view), now, free, queue[started].nodes, starting)
            shadow_s, extra = self._shadow
            if now + job.estimate_s > shadow_s:
                if not self._uses_extra or size > extra:
                    continue
                self._shadow = (shadow_s, extra - size)
            actions.append(Start(job.id, size))
            free -= size
            if not free:
                break
        return actions
