"""Which of the jobs that could begin do begin, so that only as many are at work as can matter.

Pure: no clock, no files. Every epoch looks at all jobs at work (P 2.3), so thousands that wait for a PE
would slow all others down. They wait here instead, for a few words of memory each. Jobs begin best first,
by the same *standing* that decides who gets a PE where there are more jobs than PEs
(`protocol/balancing.py`): a job's standing never changes while it waits, later ones fall behind, so none is
overtaken for ever.

- At most `window` jobs are at work, a few times the number of PEs: nobody beyond could have a PE.
- Unless a job is better than the first so many at work as there are PEs: it would get a PE at once, so it
  begins at once.
- Where users share, a job counts with the priority that it would have at work (`users.py`), which falls with
  each job of its user that is at work already: a user with thousands of jobs does not hold up the others.
- A job whose input does not come is `set_aside`: it is at work, but takes nobody's place.

Every operation takes O(log n).
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Iterator

from mallob_py.protocol.balancing import standing

_OUTDATED_MAX = 64


def window_of(pes: int) -> int:
    """How many jobs are to be at work: enough for each PE, for those that follow, for reading inputs."""
    return 2 * pes + 16


class _Line:
    """The waiting jobs of one user, or of all."""

    __slots__ = ("at_work", "priorities", "user", "version", "waiting", "weight")

    def __init__(self, user: str, weight: float | None) -> None:
        self.user = user
        #: None: priorities count as they are
        self.weight = weight
        #: (minus standing, job), best first; jobs that wait no more stay until they come up
        self.waiting: list[tuple[float, int]] = []
        #: how many jobs, and the sum of their priorities
        self.at_work = 0
        self.priorities = 0.0
        #: counts what may change its head's place among the heads of all lines
        self.version = 0

    def merit(self, standing: float, priority: float) -> float:
        """What a job counts with if it begins now."""
        if self.weight is None:
            return standing
        return standing + math.log2(self.weight / (self.priorities + priority))

    def begin(self, priority: float) -> None:
        self.at_work += 1
        self.priorities += priority

    def end(self, priority: float) -> None:
        self.at_work -= 1
        # Exact again whenever nobody is at work, since jobs come and go for weeks.
        self.priorities = max(0.0, self.priorities - priority) if self.at_work else 0.0


class _AtWork:
    __slots__ = ("is_aside", "line", "merit", "priority")

    def __init__(self, line: _Line, priority: float, merit: float) -> None:
        self.line = line
        self.priority = priority
        self.merit = merit
        self.is_aside = False


class JobQueue:
    """The jobs of one client that wait for their beginning, and those at work."""

    def __init__(
        self, pes: int, ageing_s: float, weight_of: Callable[[str], float] | None = None, window: int = 0
    ) -> None:
        """`weight_of`: a user's weight; None if users are not told apart. `window` 0: as `window_of` says."""
        self._pes = pes
        self._ageing_s = ageing_s
        self._weight_of = weight_of
        self._window_given = window
        self._window = window or window_of(pes)
        self._lines: dict[str, _Line] = {}
        #: the line and priority of each waiting job
        self.waiting: dict[int, tuple[_Line, float]] = {}
        self._at_work: dict[int, _AtWork] = {}
        #: (minus merit, version, number, line); what is not of the line's present version is passed over
        self._heads: list[tuple[float, int, int, _Line]] = []
        self._numbers = itertools.count()
        #: of all at work that are not set aside, ascending
        self._merits: list[float] = []

    def __len__(self) -> int:
        """How many wait."""
        return len(self.waiting)

    def resize(self, pes: int) -> None:
        """There are so many PEs now."""
        self._pes = pes
        self._window = self._window_given or window_of(pes)

    def put(self, job: int, user: str, priority: float, since_s: float) -> None:
        """A job could begin, and waits `since_s`; `next` will name it."""
        key = "" if self._weight_of is None else user
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key, None if self._weight_of is None else self._weight_of(user))
        self.waiting[job] = (line, priority)
        heapq.heappush(line.waiting, (-standing(priority, since_s, self._ageing_s), job))
        if line.waiting[0][1] == job:
            self._put_head(line)

    def next(self) -> int | None:
        """A job that begins now, named once; None if all that wait go on waiting."""
        while (head := self._best()) is not None:
            merit, line = head
            if len(self._merits) >= self._window and merit <= self._merits[-self._pes]:
                return None
            _, job = heapq.heappop(line.waiting)
            _, priority = self.waiting.pop(job)
            self._at_work[job] = _AtWork(line, priority, merit)
            bisect.insort(self._merits, merit)
            line.begin(priority)
            self._put_head(line)
            return job
        return None

    def set_aside(self, job: int) -> None:
        """A job at work stands still for a reason that is none of ours."""
        self._take_merit(self._at_work[job])
        self._at_work[job].is_aside = True

    def bring_back(self, job: int) -> None:
        """It goes on."""
        one = self._at_work[job]
        if one.is_aside:
            one.is_aside = False
            bisect.insort(self._merits, one.merit)

    def drop(self, job: int) -> None:
        """A job is over, whether it has begun or waits here, or is not known at all."""
        if (waiting := self.waiting.pop(job, None)) is not None:
            line, _ = waiting
        elif (one := self._at_work.pop(job, None)) is not None:
            line = one.line
            self._take_merit(one)
            line.end(one.priority)
        else:
            return
        self._put_head(line)
        if not line.waiting and not line.at_work:
            del self._lines[line.user]

    def at_work(self) -> Iterator[int]:
        return iter(self._at_work)

    def first(self, count: int) -> list[int]:
        """Some of those that wait: the best is among them, and others that are good."""
        lines = sorted(self._lines.values(), key=lambda line: line.waiting[0] if line.waiting else (0.0, 0))
        candidates = itertools.chain.from_iterable(line.waiting[:count] for line in lines[:count])
        waiting = (job for _, job in candidates if job in self.waiting)
        return list(itertools.islice(waiting, count))

    def _take_merit(self, one: _AtWork) -> None:
        if not one.is_aside:
            del self._merits[bisect.bisect_left(self._merits, one.merit)]

    def _put_head(self, line: _Line) -> None:
        """Note the place of a line's first job, which may be another one than before."""
        line.version += 1
        while line.waiting and line.waiting[0][1] not in self.waiting:
            heapq.heappop(line.waiting)
        if line.waiting:
            heapq.heappush(self._heads, self._head(line))
        if len(self._heads) > 2 * len(self._lines) + _OUTDATED_MAX:
            self._heads = [self._head(one) for one in self._lines.values() if one.waiting]
            heapq.heapify(self._heads)

    def _head(self, line: _Line) -> tuple[float, int, int, _Line]:
        minus_standing, job = line.waiting[0]
        merit = line.merit(-minus_standing, self.waiting[job][1])
        return -merit, line.version, next(self._numbers), line

    def _best(self) -> tuple[float, _Line] | None:
        """The line whose first job is to begin before all others, with what that counts with."""
        while self._heads:
            minus_merit, version, _, line = self._heads[0]
            if version == line.version:
                return -minus_merit, line
            heapq.heappop(self._heads)
        return None
