"""Conservative backfilling: every waiting job has a reservation, which no other job ever delays.

When a job arrives, it gets the earliest place (a reserved span of time) in the profile of free nodes, by the
estimates. When a job ends early, the waiting jobs are considered in the order of arrival: each moves to the
earliest place that is then free, while the jobs behind it keep theirs. So no job ever gets a later place.

Places move only after ends, so nothing is recomputed after submissions alone.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Sequence

from mallob_py.batch.job import Job
from mallob_py.batch.policies.profile import Profile, row_of
from mallob_py.batch.policy import Action, Reserve, Start, View, Wake

#: the further run time [s] that is assumed of an overdue job, repeatedly
_GRACE_S = 60.0

#: number of waiting jobs for which new rows have room
_ROOM = 1024


class _Waiting:
    """The waiting jobs' places in the order of the queue, as rows of numbers with spare room at the end."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.nodes = row_of([0] * _ROOM, int)
        self.estimates_s = row_of([0.0] * _ROOM, float)
        #: the time [s] at which each job's place begins
        self.places_s = row_of([0.0] * _ROOM, float)

    def row(self, job: int) -> int:
        return bisect_left(self.ids, job)

    def place_s(self, job: int) -> float:
        """Return the time [s] at which a job's place begins; NaN: the job waits no longer."""
        row = self.row(job)
        return float(self.places_s[row]) if row < len(self.ids) and self.ids[row] == job else math.nan

    def append(self, job: Job, place_s: float) -> None:
        row = len(self.ids)
        if row == len(self.nodes):
            self.nodes = row_of([*self.nodes, *self.nodes], int)
            self.estimates_s = row_of([*self.estimates_s, *self.estimates_s], float)
            self.places_s = row_of([*self.places_s, *self.places_s], float)
        self.ids.append(job.id)
        self.nodes[row], self.estimates_s[row], self.places_s[row] = job.nodes, job.estimate_s, place_s

    def remove(self, row: int) -> None:
        count = len(self.ids)
        del self.ids[row]
        for values in (self.nodes, self.estimates_s, self.places_s):
            values[row : count - 1] = values[row + 1 : count]


class Conservative:
    """Conservative backfilling; see the module's docstring."""

    wants_all_arrivals = True

    def __init__(self) -> None:
        self.name = "conservative"

    def begin(self, nodes: int) -> None:
        self._nodes = nodes
        self._is_new = True
        self._profile = Profile(-math.inf, nodes)
        self._waiting = _Waiting()
        #: heap of (begin of a job's place [s], job), with outdated entries
        self._next: list[tuple[float, int]] = []
        #: running job -> end [s] that the profile assumes
        self._ends: dict[int, float] = {}
        #: whether nodes have become free early since the waiting jobs were last considered
        self._raised = False

    def decide(self, view: View) -> Sequence[Action]:
        now, profile, actions = view.now_s, self._profile, list[Action]()
        profile.forget(now)
        for gone in view.departed:
            end_s = self._ends.pop(gone.job.id, -math.inf)
            if end_s > now:
                profile.add(now, end_s, gone.size)
                self._raised = True
        if view.ends and (self._is_new or view.ends[0][0] < now):
            self._start_anew(view)
        else:
            if view.departed and self._raised:
                self._move_up(now)
            for job in view.queue[len(view.queue) - view.arrived :]:
                self._place(job, now)
        for job in view.queue[len(view.queue) - view.arrived :]:
            actions.append(Reserve(job.id, self._waiting.place_s(job.id)))
        self._is_new = False
        self._start(view, actions)
        if self._next:
            # The first place begins when a running job ends, unless that job is overdue.
            place_s = self._next[0][0]
            actions.append(Wake(place_s if place_s > now else now + _GRACE_S))
        return actions

    def _move_up(self, now: float) -> None:
        waiting = self._waiting
        moved = self._profile.move_up(
            now, len(waiting.ids), waiting.nodes, waiting.estimates_s, waiting.places_s
        )
        for row in moved:
            heapq.heappush(self._next, (float(waiting.places_s[row]), waiting.ids[row]))
        # Moved jobs have made room, which jobs before them in the queue may use.
        self._raised = bool(moved)

    def _place(self, job: Job, now: float) -> None:
        place_s = self._profile.earliest(now, job.nodes, job.estimate_s)
        self._profile.add(place_s, place_s + job.estimate_s, -job.nodes)
        self._waiting.append(job, place_s)
        heapq.heappush(self._next, (place_s, job.id))

    def _start(self, view: View, actions: list[Action]) -> None:
        """Start the jobs whose places begin now, if enough nodes are free: a job that is to end now may still
        have some.
        """
        waiting, due = self._waiting, set[int]()
        while self._next and self._next[0][0] <= view.now_s:
            place_s, number = heapq.heappop(self._next)
            if waiting.place_s(number) == place_s:
                due.add(number)
        free = view.free
        for number in sorted(due):
            row = waiting.row(number)
            nodes, place_s = int(waiting.nodes[row]), float(waiting.places_s[row])
            if nodes <= free:
                free -= nodes
                actions.append(Start(number, nodes))
                self._ends[number] = place_s + float(waiting.estimates_s[row])
                waiting.remove(row)
            else:
                heapq.heappush(self._next, (place_s, number))

    def _start_anew(self, view: View) -> None:
        """Plan all places anew: an overdue job still has nodes that are reserved for waiting jobs.

        This is also needed if jobs already run when the policy begins.
        """
        now = view.now_s
        self._profile = profile = Profile(now, self._nodes)
        self._raised = False
        for end_s, _, running in view.ends:
            self._ends[running.job.id] = end_s if end_s > now else now + _GRACE_S
            profile.add(now, self._ends[running.job.id], -running.size)
        self._waiting = _Waiting()
        self._next.clear()
        for job in view.queue:
            self._place(job, now)
