"""The line of a client's jobs: which waiting job begins next, and which job at work makes room.

Pure: no clock, no files. Every epoch looks at all jobs at work (P 2.3), so thousands of jobs waiting for a PE
would slow all others down. So waiting jobs stay here, for little memory each. Jobs begin best first, by the
same *standing* that decides who gets a PE where there are more jobs than PEs (`protocol/balancing.py`). A
job's standing never changes while it waits, and later jobs get a lower one, so no job is overtaken for ever.

- At most `window` jobs are at work, a few times the number of PEs: no further job could have a PE.
- With n PEs, a job that would be among the n best jobs at work begins at once, since it would get a PE at
  once.
- With several users, a job counts with the priority that it would have at work (`users.py`), which falls with
  each job of its user at work: so a user with thousands of jobs does not hold up others. No further job
  begins of a user that has reached its limit.
- A job whose input stalls is `set_aside`: it stays at work, but takes no place.
- A job that goes on after its first turn is a *resident*, up to a number of residents per PE: it takes no
  place of the window. Another job may begin, and has its first turn at once; most jobs end in that turn.
- Beyond that number, the places of the window are for turns (*express*): a job after its turn is given up
  when another job waits (`next_set_back`), and waits for its next turn, which is twice as long (`put_again`).
  Jobs that were given up have a few places of their own, so new jobs never wait for them; the job that has
  had the fewest PE-seconds comes first. The lost work is a small part of what the PEs do (`_Loss`).
- A *lasting* job, which cannot begin anew, is never given up: before it runs it must `claim` a resident's
  place, if need be another job's place. If all residents are lasting, it has no place until one ends.
- A job of a user with less work than others becomes a resident before other users' jobs.

Every operation takes O(log n), but O(places + users) for jobs that are given up.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from mallob_py.protocol.balancing import standing
from mallob_py.protocol.config import Config, again_of, window_of
from mallob_py.protocol.job_life import Happening, JobState
from mallob_py.service.jobs.live import LiveJob, LiveJobs, Seat

_OUTDATED_MAX = 64
_RESIDENTS_MAX = 1024
#: bounds on the work that is lost by giving jobs up: a part of all work, and the PE-seconds per PE at once
_LOST_PART, _LOST_AT_ONCE_S = 0.05, 0.5
#: tolerated rounding error of the PE-seconds that may be lost; without it, a deadline would return for ever
_ROUNDING_S = 1e-9


def residents_of(pes: int, per_pe: int | None = None) -> int:
    """Return the greatest number of jobs that keep their process between turns: all must fit into memory.

    `per_pe`: `Config.residents`. A quarter is left for other uses, and for an uneven spread of the jobs.
    """
    kept = Config(residents=per_pe).residents_per_pe(pes) * pes
    return min(kept * 3 // 4, max(_RESIDENTS_MAX, 2 * pes))


_IN_WINDOW = (Seat.WINDOW, Seat.DUE)
_IN_EXPRESS = (Seat.EXPRESS, Seat.EXPRESS_DUE)
_RESIDING = (Seat.RESIDENT, Seat.LASTING)


class Shares(Protocol):
    """Each user's weight, and each user's limit on jobs at work."""

    def weight_of(self, user: str) -> float: ...

    def limit_of(self, user: str) -> float:
        """Return how many jobs of a user may be at work; inf: no limit."""
        ...


class Queue:
    """The waiting jobs of one user."""

    __slots__ = (
        *("again", "at_work", "gone", "held", "limit", "priorities", "user", "version", "waiting", "weight"),
    )

    def __init__(self, user: str, weight: float, limit: float) -> None:
        self.user = user
        self.weight = weight
        self.limit = limit
        #: heap of waiting jobs: (minus standing, job, record), best first; some of these jobs no longer wait
        self.waiting: list[tuple[float, int, LiveJob]] = []
        #: heap of jobs that were given up and wait again: (PE-seconds so far / priority, job, record)
        self.again: list[tuple[float, int, LiveJob]] = []
        #: heap like `waiting`, but of jobs that cannot begin anew and wait for a lasting place
        self.held: list[tuple[float, int, LiveJob]] = []
        #: number of jobs at work, and the sum of their priorities
        self.at_work = 0
        self.priorities = 0.0
        #: upper bound on the number of jobs in the heaps that no longer wait
        self.gone = 0
        #: number of changes that may have moved this queue among all queues
        self.version = 0

    @property
    def load(self) -> float:
        """Return the sum of priorities of the user's jobs at work, divided by the user's weight."""
        return self.priorities / self.weight

    @property
    def is_full(self) -> bool:
        return self.at_work >= self.limit

    def merit(self, standing: float, priority: float, before: float) -> float:
        """Return a beginning job's merit; `before`: sum of the priorities of its user's jobs at work."""
        return standing + math.log2(self.weight / (before + priority))

    def begin(self, priority: float) -> None:
        self.at_work += 1
        self.priorities += priority

    def end(self, priority: float) -> None:
        self.at_work -= 1
        # The sum is reset when no job is at work, since rounding errors would add up over weeks.
        self.priorities = max(0.0, self.priorities - priority) if self.at_work else 0.0

    def _heaps(self) -> Iterator[tuple[list[tuple[float, int, LiveJob]], JobState]]:
        yield self.waiting, JobState.QUEUED
        yield self.again, JobState.AGAIN
        yield self.held, JobState.PLACELESS

    def tidy(self) -> None:
        """Drop entries from the front of the heaps while their jobs no longer wait."""
        for heap, state in self._heaps():
            while heap and heap[0][2].state is not state:
                heapq.heappop(heap)

    def forget_one(self) -> None:
        """Record that a job no longer waits; drop all such jobs from the heaps when there are many."""
        self.gone += 1
        if 2 * self.gone > sum(len(heap) for heap, _ in self._heaps()) + _OUTDATED_MAX:
            self.gone = 0
            for heap, state in self._heaps():
                heap[:] = [each for each in heap if each[2].state is state]
                heapq.heapify(heap)


class _Loss:
    """Bounds the work lost by giving jobs up: to a part of the PEs' work, and to an amount at once."""

    def __init__(self) -> None:
        self._left_s, self._known_s = 0.0, -math.inf

    def left_s(self, now: float, pes: int) -> float:
        """Return the PE-seconds that may be lost now."""
        self._left_s = min(_LOST_AT_ONCE_S * pes, self._left_s + _LOST_PART * pes * (now - self._known_s))
        self._known_s = now
        return self._left_s

    def lose(self, lost_s: float) -> None:
        self._left_s -= lost_s

    def due_s(self, pes: int) -> float:
        """Return the time when some work may be lost."""
        return self._known_s + max(0.0, -self._left_s) / (_LOST_PART * pes)


class Line:
    """The jobs of one client that wait for their turn, and the jobs at work."""

    def __init__(
        self,
        jobs: LiveJobs,
        shares: Shares,
        pes: int,
        ageing_s: float,
        window: int = 0,
        residents_per_pe: int | None = None,
    ) -> None:
        """`window`: number of places in the window, at least one per PE; 0: as `window_of` returns.

        `residents_per_pe`: as `Config.residents`.
        """
        self._jobs = jobs
        self._shares = shares
        self._ageing_s = ageing_s
        self._window_given = window
        self._residents_per_pe = residents_per_pe
        self._queues: dict[str, Queue] = {}
        #: whether there are several users
        self._is_divided = False
        self._waiting = 0
        self._at_work: dict[int, LiveJob] = {}
        #: heap of queues, ordered by their first jobs: (minus merit, version, number, queue); entries with an
        #: older version are skipped
        self._heads: list[tuple[float, int, int, Queue]] = []
        self._numbers = itertools.count()
        #: merits of all jobs in the window, ascending
        self._merits: list[float] = []
        #: jobs that keep their process between turns, and jobs in the seats DUE and EXPRESS_DUE, each in
        #: order of arrival
        self._residents: dict[LiveJob, None] = {}
        self._due: dict[LiveJob, None] = {}
        self._lasting = 0
        self._express = 0
        self._loss = _Loss()
        self.resize(pes)

    def __len__(self) -> int:
        """Return the number of waiting jobs."""
        return self._waiting

    def resize(self, pes: int) -> None:
        """Note the number of PEs."""
        self._pes = pes
        self._window = max(self._window_given, pes) if self._window_given else window_of(pes)
        self._residents_max = residents_of(pes, self._residents_per_pe)
        for queue in self._queues.values():
            queue.limit = self._shares.limit_of(queue.user)
            self._put_head(queue)
        # Each new lasting place lets one of the jobs that wait for such a place into the line.
        room = max(self._residents_max, pes) - len(self._residents)
        while room > 0 and self._release():
            room -= 1
        while room > 0 and self.has_room and self._due:
            room -= 1
            self._reside_next()

    def put(self, job: LiveJob) -> None:
        """Have a job wait for its first turn, until `next` returns the job."""
        queue = self._queues.get(job.user)
        if queue is None:
            shares = self._shares
            queue = Queue(job.user, shares.weight_of(job.user), shares.limit_of(job.user))
            if len(self._queues) == 1:
                self._divide(*self._queues.values())
            self._queues[job.user] = queue
        job.seat = Seat.LINE
        job.standing = standing(job.terms.priority, job.since_s, self._ageing_s)
        self._waiting += 1
        heapq.heappush(queue.waiting, (-job.standing, job.id, job))
        if queue.waiting[0][2] is job:
            self._put_head(queue)

    def _divide(self, queue: Queue) -> None:
        """Compute the merits of the jobs at work when a second user comes; `queue`: the first user's."""
        priorities = 0.0
        for job in self._at_work.values():
            job.merit = queue.merit(job.standing, job.terms.priority, priorities)
            priorities += job.terms.priority
        self._merits = sorted(job.merit for job in self._at_work.values() if job.seat in _IN_WINDOW)
        self._is_divided = True
        self._put_head(queue)

    def put_again(self, job: LiveJob, had_s: float, lost_s: float) -> None:
        """Have a job that was given up wait for its next turn.

        `had_s`: PE-seconds that the job has had in all; `lost_s`: the lost part of `had_s`.
        """
        queue = self._leave(job)
        self._loss.lose(lost_s)
        self._waiting += 1
        heapq.heappush(queue.again, (had_s / job.terms.priority, job.id, job))

    def next(self) -> LiveJob | None:
        """Begin the next job and return it; None: no job may begin."""
        while (head := self._best()) is not None:
            merit, queue = head
            if len(self._merits) >= self._window and merit <= self._merits[-self._pes]:
                break
            _, _, job = heapq.heappop(queue.waiting)
            bisect.insort(self._merits, merit)
            return self._begin(job, queue, merit, Seat.WINDOW)
        if self._express < again_of(self._pes) and (again := self._best_again()) is not None:
            _, _, job = heapq.heappop(again.again)
            self._express += 1
            job.standing = 0.0
            return self._begin(job, again, 0.0, Seat.EXPRESS)
        return None

    def _begin(self, job: LiveJob, queue: Queue, merit: float, seat: Seat) -> LiveJob:
        job.seat, job.merit = seat, merit
        self._waiting -= 1
        self._at_work[job.id] = job
        queue.begin(job.terms.priority)
        self._put_head(queue)
        return job

    def set_aside(self, job: LiveJob) -> None:
        """Free a job's place while its input stalls."""
        if job.seat is Seat.WINDOW:
            self._take_merit(job)
            job.seat = Seat.ASIDE

    def bring_back(self, job: LiveJob) -> None:
        """Give a place to a job whose input had stalled; leave any other job unchanged."""
        if job.seat is Seat.ASIDE:
            job.seat = Seat.WINDOW
            bisect.insort(self._merits, job.merit)

    # --- jobs after their first turn ----------------------------------------------------------

    def settle(self, job: LiveJob) -> None:
        """Record that a job at work has had its first turn."""
        if job.seat not in _RESIDING and not self._find_room(job, Seat.RESIDENT):
            job.seat = Seat.EXPRESS_DUE if job.seat in _IN_EXPRESS else Seat.DUE
            self._due[job] = None

    def claim(self, job: LiveJob) -> bool:
        """Give a lasting place to a job that cannot begin anew; return False if it must wait for one."""
        if self._find_room(job, Seat.LASTING):
            return True
        queue = self._leave(job)
        self._jobs.happens(job, Happening.HAS_NO_PLACE)
        self._waiting += 1
        heapq.heappush(queue.held, (-job.standing, job.id, job))
        return False

    def lasting_before(self, job: LiveJob) -> int:
        """Return the number of lasting jobs, one of which must end before this job; 0: it waits for none."""
        return self._lasting if job.state is JobState.PLACELESS else 0

    def _find_room(self, job: LiveJob, seat: Seat) -> bool:
        is_lasting = seat is Seat.LASTING
        # Some jobs that cannot begin anew must run even where no job may keep its process between turns.
        if not (self.has_room or (is_lasting and len(self._residents) < self._pes)):
            if (other := self._resident_for(job, is_lasting)) is None:
                return False
            del self._residents[other]
            other.seat = Seat.DUE
            bisect.insort(self._merits, other.merit)
            self._due[other] = None
        self._reside(job, seat)
        return True

    def _release(self) -> bool:
        """Put a job that waits for a lasting place in line again: one of the user with the least load."""
        queues = [queue for queue in self._queues.values() if queue.held]
        while queues:
            queue = min(queues, key=lambda one: (one.load, one.held[0][:2]))
            minus_standing, number, job = heapq.heappop(queue.held)
            if job.state is JobState.PLACELESS:
                self._jobs.happens(job, Happening.HAS_PLACE)
                heapq.heappush(queue.waiting, (minus_standing, number, job))
                self._put_head(queue)
                return True
            if not queue.held:
                queues.remove(queue)
        return False

    def _resident_for(self, job: LiveJob, is_lasting: bool) -> LiveJob | None:
        """Return the job that must make room for `job`: a job of the user with the greatest load.

        That load must exceed the load of `job`'s user, unless `job` cannot begin anew. Of several jobs, the
        newest is returned.
        """
        if not (self._is_divided or is_lasting):
            return None
        least = -1.0 if is_lasting else self._queues[job.user].load
        worst: tuple[float, LiveJob] | None = None
        for other in self._residents:
            load = self._queues[other.user].load
            if other.seat is Seat.RESIDENT and load > least and (worst is None or load >= worst[0]):
                worst = load, other
        return None if worst is None else worst[1]

    def _reside_next(self) -> None:
        """Let the job whose turn ended first keep its process between turns (as a resident)."""
        job = next(iter(self._due))
        del self._due[job]
        self._reside(job, Seat.RESIDENT)

    def _reside(self, job: LiveJob, seat: Seat) -> None:
        self._take_merit(job)
        self._express -= job.seat in _IN_EXPRESS
        job.seat = seat
        self._residents[job] = None
        self._lasting += seat is Seat.LASTING

    @property
    def has_room(self) -> bool:
        """Tell whether one more job may keep its process between turns (as a resident)."""
        return len(self._residents) < self._residents_max

    def next_set_back(self, now: float) -> LiveJob | None:
        """Return, once, a job at work that must be given up for a waiting one.

        Of the jobs of the user with the greatest load, it is the one whose turn ended last: it loses least.
        """
        if not self._due or self._loss.left_s(now, self._pes) < -_ROUNDING_S:
            return None
        worst: tuple[float, LiveJob] | None = None
        for job in self._in_the_way():
            load = self._queues[job.user].load
            if worst is None or load >= worst[0]:
                worst = load, job
        if worst is None:
            return None
        job = worst[1]
        del self._due[job]
        job.seat = Seat.EXPRESS if job.seat is Seat.EXPRESS_DUE else Seat.WINDOW
        return job

    def set_back_due_s(self) -> float:
        """Return the time when `next_set_back` returns a job; inf: not before jobs come or end."""
        return math.inf if next(self._in_the_way(), None) is None else self._loss.due_s(self._pes)

    def _in_the_way(self) -> Iterator[LiveJob]:
        """Yield the jobs that have had their turn and hold places for which other jobs wait."""
        if self._due:
            waits = {
                Seat.DUE: len(self._merits) >= self._window and self._best() is not None,
                Seat.EXPRESS_DUE: self._express >= again_of(self._pes) and self._best_again() is not None,
            }
            yield from (job for job in self._due if job.seat is not None and waits[job.seat])

    def _best_again(self) -> Queue | None:
        """Return the queue whose first job has the next turn; its user has the smallest load."""
        queues = [queue for queue in self._queues.values() if queue.again and not queue.is_full]
        return min(queues, key=lambda queue: (queue.load, queue.again[0][:2]), default=None)

    # --- ends of jobs -------------------------------------------------------------------------

    def drop(self, job: LiveJob) -> None:
        """Forget an answered job, whether it is in line or at work."""
        if job.seat is None:
            return
        queue = self._queues[job.user]
        if job.seat is not Seat.LINE:
            self._leave(job)
        else:
            self._waiting -= 1
            queue.forget_one()
            self._put_head(queue)
        job.seat = None
        if not (queue.waiting or queue.again or queue.held or queue.at_work):
            del self._queues[queue.user]
            self._is_divided = len(self._queues) > 1

    def _leave(self, job: LiveJob) -> Queue:
        """Move a job from work to the line; return its queue. A resident's place goes to another job."""
        queue = self._queues[job.user]
        del self._at_work[job.id]
        self._take_merit(job)
        seat, job.seat = job.seat, Seat.LINE
        self._express -= seat in _IN_EXPRESS
        self._lasting -= seat is Seat.LASTING
        self._due.pop(job, None)
        if seat in _RESIDING:
            del self._residents[job]
            if not self._release() and self._due:
                self._reside_next()
        queue.end(job.terms.priority)
        self._put_head(queue)
        return queue

    def at_work(self) -> Iterator[int]:
        return iter(self._at_work)

    def first(self, count: int) -> list[int]:
        """Return at most `count` waiting jobs: the best job and other good jobs."""
        queues = sorted(
            self._queues.values(), key=lambda queue: queue.waiting[0][:2] if queue.waiting else (0.0, 0)
        )
        candidates = itertools.chain.from_iterable(queue.waiting[:count] for queue in queues[:count])
        waiting = (number for _, number, job in candidates if job.state is JobState.QUEUED)
        return list(itertools.islice(waiting, count))

    def check(self) -> None:
        """Raise AssertionError if counts and seats differ, a limit is exceeded, or a place stays empty."""
        seats = Counter(job.seat for job in self._at_work.values())
        assert seats[Seat.WINDOW] + seats[Seat.DUE] == len(self._merits), (
            "the merits in the window are not those of the jobs seated there"
        )
        assert seats[Seat.EXPRESS] + seats[Seat.EXPRESS_DUE] == self._express, "express places are lost"
        assert seats[Seat.RESIDENT] + seats[Seat.LASTING] == len(self._residents), "residents are lost"
        assert seats[Seat.LASTING] == self._lasting, "lasting residents are lost"
        waiting = sum(job.seat is Seat.LINE for job in self._jobs.values())
        assert waiting == self._waiting, f"{waiting} jobs wait, not {self._waiting}"
        for queue in self._queues.values():
            assert queue.at_work <= queue.limit, f"user {queue.user} has {queue.at_work} jobs at work"
        if (best := self._best()) is not None:
            is_full = len(self._merits) >= self._window and best[0] <= self._merits[-self._pes]
            assert is_full, f"a job of user {best[1].user} waits, and a place is empty"

    def _take_merit(self, job: LiveJob) -> None:
        if job.seat in _IN_WINDOW:
            del self._merits[bisect.bisect_left(self._merits, job.merit)]

    def _put_head(self, queue: Queue) -> None:
        """Note the present merit of a queue's first job."""
        queue.version += 1
        queue.tidy()
        if queue.waiting and not queue.is_full:
            heapq.heappush(self._heads, self._head(queue))
        if len(self._heads) > 2 * len(self._queues) + _OUTDATED_MAX:
            queues = self._queues.values()
            self._heads = [self._head(one) for one in queues if one.waiting and not one.is_full]
            heapq.heapify(self._heads)

    def _head(self, queue: Queue) -> tuple[float, int, int, Queue]:
        minus_standing, _, job = queue.waiting[0]
        merit = -minus_standing
        if self._is_divided:
            merit = queue.merit(-minus_standing, job.terms.priority, queue.priorities)
        return -merit, queue.version, next(self._numbers), queue

    def _best(self) -> tuple[float, Queue] | None:
        """Return the queue whose first job begins next, with its merit."""
        while self._heads:
            minus_merit, version, _, queue = self._heads[0]
            if version == queue.version:
                return -minus_merit, queue
            heapq.heappop(self._heads)
        return None
