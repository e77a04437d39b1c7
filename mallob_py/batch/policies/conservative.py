"""Conservative backfilling: every waiting job has a reservation, and none is ever delayed by another.

A job gets the earliest place in the profile of free nodes (by the estimates) that is there when it comes.
When a job ends early, the others are looked at in the order of their arrival, and each moves to the
earliest place that is there then, those behind it staying where they are: so nobody ever gets a later one.

Nearly all of these looks find nothing. A job can move only if more nodes than before are free somewhere in
front of its place; so what is kept is where this has happened since the last round, and jobs that are
larger than all that is free there are not looked at.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from mallob_py.batch.job import Job
from mallob_py.batch.policy import Action, Reserve, Start, View, Wake

#: how long a job that exceeds its estimate is taken to go on, again and again [s]
_GRACE_S = 60.0
#: changes that a profile has room for at first
_ROOM = 1024


class Profile:
    """How many nodes are free from when on, into the future; times [s] ascend, the last lasts for ever."""

    def __init__(self, now_s: float, free: int) -> None:
        self._all_times = np.empty(_ROOM)
        self._all_free = np.empty(_ROOM, dtype=np.int64)
        self._all_times[0], self._all_free[0] = now_s, free
        self._show(1)

    def _show(self, count: int) -> None:
        self._times, self._free = self._all_times[:count], self._all_free[:count]

    def add(self, begin_s: float, end_s: float, nodes: int) -> None:
        """Within a span, so many nodes more (less, if negative) are free."""
        if begin_s < end_s:
            first, last = self._cut(begin_s), self._cut(end_s)
            self._free[first:last] += nodes

    def _cut(self, time_s: float) -> int:
        times, count = self._times, len(self._times)
        place = int(times.searchsorted(time_s))
        if place < count and times[place] == time_s:
            return place
        if count == len(self._all_times):
            self._all_times = np.concatenate([self._all_times, np.empty(count)])
            self._all_free = np.concatenate([self._all_free, np.empty(count, dtype=np.int64)])
        self._show(count + 1)
        times, free = self._times, self._free
        times[place + 1 :], free[place + 1 :] = times[place:-1].copy(), free[place:-1].copy()
        times[place], free[place] = time_s, free[place - 1]
        return place

    def forget(self, now_s: float) -> None:
        """What was before now."""
        past = int(self._times.searchsorted(now_s, "right")) - 1
        if past > 0:
            self._all_times, self._all_free = self._all_times[past:], self._all_free[past:]
            self._show(len(self._times) - past)

    def most(self, begin_s: float, end_s: float) -> int:
        """The most nodes that are free at any time within a span."""
        first = max(0, int(self._times.searchsorted(begin_s, "right")) - 1)
        return int(self._free[first : int(self._times.searchsorted(end_s))].max(initial=0))

    def earliest(self, now_s: float, nodes: int, duration_s: float) -> float:
        """Since when so many nodes are free for so long."""
        times, free = self._times, self._free
        if free.item(0) >= nodes:
            begins_s, too_few = np.array([max(now_s, times[0])]), np.flatnonzero(free < nodes)
            begins_s = np.concatenate([begins_s, times[too_few + 1]])
        else:
            too_few = np.flatnonzero(free < nodes)
            begins_s, too_few = times[too_few + 1], too_few[1:]
        fits = begins_s[:-1] + duration_s <= times[too_few]
        place = int(fits.argmax()) if len(fits) else 0
        return float(begins_s[place] if len(fits) and fits[place] else begins_s[-1])

    def since(self, now_s: float, nodes: int, until_s: float) -> float:
        """Since when so many nodes are free right until then; infinite if they are not just before."""
        times, free = self._times, self._free
        place = int(times.searchsorted(until_s)) - 1
        if place < 0 or free.item(place) < nodes:
            return math.inf
        while place > 0 and free.item(place - 1) >= nodes:
            place -= 1
        return max(now_s, times.item(place))


class Conservative:
    """See the module's text."""

    wants_all_arrivals = True

    def __init__(self) -> None:
        self.name = "conservative"

    def begin(self, nodes: int) -> None:
        self._nodes = nodes
        self._profile = Profile(-math.inf, nodes)
        #: by waiting job: when it is to start
        self._places: dict[int, float] = {}
        #: (place, job), with outdated ones among them
        self._next: list[tuple[float, int]] = []
        #: by running job: the end that stands in the profile
        self._ends: dict[int, float] = {}
        #: where more nodes have become free since the others were looked at
        self._raised: list[tuple[float, float]] = []

    def decide(self, view: View) -> Sequence[Action]:
        now, profile, actions = view.now_s, self._profile, list[Action]()
        profile.forget(now)
        for gone in view.departed:
            end_s = self._ends.pop(gone.job.id)
            if end_s > now:
                profile.add(now, end_s, gone.job.nodes)
                self._raised.append((now, end_s))
        waited = len(view.queue) - view.arrived
        if view.ends and view.ends[0][0] < now:
            self._start_anew(view)
        elif view.departed and self._raised:
            self._move_up(view.queue[:waited], now)
        for job in view.queue[waited:]:
            if job.id not in self._places:
                self._place(job, profile.earliest(now, job.nodes, job.estimate_s))
            actions.append(Reserve(job.id, self._places[job.id]))
        self._start(view, actions)
        if self._next:
            # An end comes then, unless a job exceeds its estimate.
            place_s = self._next[0][0]
            actions.append(Wake(place_s if place_s > now else now + _GRACE_S))
        return actions

    def _move_up(self, waiting: Sequence[Job], now: float) -> None:
        profile, places = self._profile, self._places
        raised, self._raised = self._raised, []
        first_s = min(begin_s for begin_s, _ in raised)
        most = max(profile.most(begin_s, end_s) for begin_s, end_s in raised)
        #: by nodes and duration, as long as the profile stays as it is
        earliest: dict[tuple[int, float], float] = {}
        for job in waiting:
            if job.nodes > most:
                continue
            was_s = places[job.id]
            if was_s <= first_s:
                continue
            kind = (job.nodes, job.estimate_s)
            place_s = earliest.get(kind, -1.0)
            if place_s < 0.0:
                place_s = earliest[kind] = profile.earliest(now, *kind)
            # A place may lean on the one that the job has now.
            place_s = min(place_s, profile.since(now, job.nodes, was_s))
            if place_s >= was_s:
                continue
            profile.add(was_s, was_s + job.estimate_s, job.nodes)
            self._place(job, place_s)
            earliest.clear()
            left = (max(was_s, place_s + job.estimate_s), was_s + job.estimate_s)
            self._raised.append(left)
            first_s = min(first_s, left[0])
            most = max(most, profile.most(*left))

    def _place(self, job: Job, place_s: float) -> None:
        self._profile.add(place_s, place_s + job.estimate_s, -job.nodes)
        self._places[job.id] = place_s
        heapq.heappush(self._next, (place_s, job.id))

    def _start(self, view: View, actions: list[Action]) -> None:
        """Those whose time has come. At the same second, an end may still be on its way."""
        due: list[int] = []
        while self._next and self._next[0][0] <= view.now_s:
            place_s, number = heapq.heappop(self._next)
            if self._places.get(number) == place_s:
                due.append(number)
        if not due:
            return
        free = view.free
        numbers = [job.id for job in view.queue]
        for number in sorted(set(due)):
            job = view.queue[bisect_left(numbers, number)]
            if job.nodes <= free:
                free -= job.nodes
                actions.append(Start(number, job.nodes))
                self._ends[number] = self._places.pop(number) + job.estimate_s
            else:
                heapq.heappush(self._next, (self._places[number], number))

    def _start_anew(self, view: View) -> None:
        """Jobs exceed their estimates: reservations that count on their nodes cannot be kept."""
        now = view.now_s
        self._profile = profile = Profile(now, self._nodes)
        self._raised = []
        for end_s, _, running in view.ends:
            self._ends[running.job.id] = end_s if end_s > now else now + _GRACE_S
            profile.add(now, self._ends[running.job.id], -running.size)
        self._places.clear()
        self._next.clear()
        for job in view.queue:
            self._place(job, profile.earliest(now, job.nodes, job.estimate_s))
