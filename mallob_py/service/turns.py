"""The turns of a client's live jobs: which of those that could begin does so next.

A job that the book names as ready first waits for its trial if it is a *suspect* (it was at work at crashes);
then, where users are told apart, until its user may have another one at work; then in the queue. Terms that
jobs work with change as others come and go: that is told from here, too, and of users to other clients.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import msgspec

from mallob_py.log_events import LogEvent
from mallob_py.protocol.balancing import standing
from mallob_py.protocol.config import Config, again_of, window_of
from mallob_py.protocol.effects import Spent
from mallob_py.runtime.rank import Rank
from mallob_py.service.inputs import comes_through_pipe
from mallob_py.service.jobs.bookkeeping import JobState, LiveJob, LiveJobs
from mallob_py.service.jobs.crashes import RunningJobs, Suspects
from mallob_py.service.jobs.users import Terms, UserBook, UserMessage

_OUTDATED_MAX = 64
_RESIDENTS_MAX = 1024
#: what may be lost of the PEs' work by giving jobs up: a part of all, and per PE at once
_LOST_PART, _LOST_AT_ONCE_S = 0.05, 0.5


def residents_of(pes: int, per_pe: int | None = None) -> int:
    """Return the number of jobs beyond the window that may go on and on in turns: what all images can bear.

    `per_pe`: `Config.residents`. A quarter is left for others, and since they are not where there is most
    room.
    """
    kept = Config(residents=per_pe).residents_per_pe(pes) * pes
    return min(kept * 3 // 4, max(_RESIDENTS_MAX, 2 * pes))


class _Line:
    """The waiting jobs of one user, or of all."""

    __slots__ = ("again", "at_work", "held", "priorities", "user", "version", "waiting", "weight")

    def __init__(self, user: str, weight: float | None) -> None:
        self.user = user
        #: None: priorities count as they are
        self.weight = weight
        #: (minus standing, job), best first; jobs that wait no more stay until they come up
        self.waiting: list[tuple[float, int]] = []
        #: (what it has had by its priority, job): the same of those that have been given up
        self.again: list[tuple[float, int]] = []
        #: as `waiting`: those that cannot begin for want of a resident's place
        self.held: list[tuple[float, int]] = []
        #: how many jobs, and the sum of their priorities
        self.at_work = 0
        self.priorities = 0.0
        #: counts what may change its head's place among the heads of all lines
        self.version = 0

    @property
    def load(self) -> float:
        """Return the user's work beside that of others; 0 if users are not told apart."""
        return 0.0 if self.weight is None else self.priorities / self.weight

    def merit(self, standing: float, priority: float, before: float) -> float:
        """Return the merit of a job that begins. `before`: the priorities at work."""
        if self.weight is None:
            return standing
        return standing + math.log2(self.weight / (before + priority))

    def begin(self, priority: float) -> None:
        self.at_work += 1
        self.priorities += priority

    def end(self, priority: float) -> None:
        self.at_work -= 1
        # Exact again whenever nobody is at work, since jobs come and go for weeks.
        self.priorities = max(0.0, self.priorities - priority) if self.at_work else 0.0


class _AtWork:
    __slots__ = ("is_again", "is_aside", "line", "merit", "priority", "standing")

    def __init__(
        self, line: _Line, priority: float, standing: float, merit: float, is_again: bool = False
    ) -> None:
        self.line = line
        self.priority = priority
        self.standing = standing
        self.merit = merit
        #: it takes no place of the window
        self.is_aside = is_again
        #: it has been given up before, and has one of the places of such jobs
        self.is_again = is_again


class _Loss:
    """Bounds the work lost by giving jobs up: to a part of what the PEs do, and some at once."""

    def __init__(self) -> None:
        self._left_s, self._known_s = 0.0, -math.inf

    def left_s(self, now: float, pes: int) -> float:
        """Return what may be lost now, in PE-seconds."""
        self._left_s = min(_LOST_AT_ONCE_S * pes, self._left_s + _LOST_PART * pes * (now - self._known_s))
        self._known_s = now
        return self._left_s

    def lose(self, lost_s: float) -> None:
        self._left_s -= lost_s

    def due_s(self, pes: int) -> float:
        """Return when something may be lost."""
        return self._known_s + max(0.0, -self._left_s) / (_LOST_PART * pes)


class JobQueue:
    """The jobs of one client that wait for their beginning, and those at work.

    Pure: no clock, no files. Every epoch looks at all jobs at work (P 2.3), so thousands that wait for a PE
    would slow all others down. They wait here instead, for a few words of memory each. Jobs begin best first,
    by the same *standing* that decides who gets a PE where there are more jobs than PEs
    (`protocol/balancing.py`): a job's standing never changes while it waits, later ones fall behind, so none
    is overtaken for ever.

    - At most `window` jobs are at work, a few times the number of PEs: nobody beyond could have a PE.
    - Unless a job is better than the first so many at work as there are PEs: it would get a PE at once, so it
      begins at once.
    - Where several users have jobs, a job counts with the priority that it would have at work (`users.py`),
      which falls with each job of its user that is at work already: a user with thousands of jobs does not
      hold up the others.
    - A job whose input does not come is `set_aside`: it is at work, but takes nobody's place.
    - So is one that has had its first turn and goes on, up to a number of jobs per PE: it is a *resident*.
      Another one may begin, and has its first turn at once. Most jobs end in that.
    - Beyond that number, the places of the window are for turns (*express*): a job that has had its turn is
      to be given up when another one waits (`next_set_back`), and waits for its next turn, twice as long
      (`put_again`). Those that do have a few places of their own, so that new jobs never wait for them; the
      one that has had least comes first. What is lost by that is a small part of what the PEs do (`_Loss`).
    - A job that cannot begin anew (it is *lasting*) is never given up: it has to `claim` a resident's place
      before it runs, another one's if need be. Where all residents are such jobs it is held until one ends.
    - Of a user who has less at work than others a job is a resident instead of another one.

    Every operation takes O(log n), but those for jobs that are given up, O(places and users).
    """

    def __init__(
        self,
        pes: int,
        ageing_s: float,
        weight_of: Callable[[str], float] | None = None,
        window: int = 0,
        residents_per_pe: int | None = None,
    ) -> None:
        """`weight_of`: a user's weight; None if users are not told apart. `window` 0: as `window_of` says.

        `residents_per_pe`: as `Config.residents`.
        """
        self._ageing_s = ageing_s
        self._weight_of = weight_of
        self._window_given = window
        self._residents_per_pe = residents_per_pe
        self._lines: dict[str, _Line] = {}
        #: there is more than one user
        self._is_divided = False
        #: the line and priority of each waiting job
        self.waiting: dict[int, tuple[_Line, float]] = {}
        self._at_work: dict[int, _AtWork] = {}
        #: (minus merit, version, number, line); what is not of the line's present version is passed over
        self._heads: list[tuple[float, int, int, _Line]] = []
        self._numbers = itertools.count()
        #: of all at work that are not set aside, ascending
        self._merits: list[float] = []
        self._residents: dict[int, None] = {}
        #: at work, have had their turn, and are no residents
        self._had_turn: dict[int, None] = {}
        #: residents that cannot begin anew
        self._lasting: set[int] = set()
        #: they wait until one of those ends
        self._held: set[int] = set()
        #: given up, and waiting for their next turn
        self._again: set[int] = set()
        self._again_at_work = 0
        self._loss = _Loss()
        self.resize(pes)

    def __len__(self) -> int:
        """Return the number of jobs that wait."""
        return len(self.waiting)

    def resize(self, pes: int) -> None:
        """There are so many PEs now."""
        self._pes = pes
        self._window = self._window_given or window_of(pes)
        self._residents_max = residents_of(pes, self._residents_per_pe)
        # What a resident's end would do for one, more room does for as many as there is room for.
        room = max(self._residents_max, pes) - len(self._residents)
        while room > 0 and self._release():
            room -= 1
        while room > 0 and self.has_room and self._had_turn:
            room -= 1
            self._reside_next()

    def put(self, job: int, user: str, priority: float, since_s: float) -> None:
        """A job could begin, and waits `since_s`; `next` will name it."""
        key = "" if self._weight_of is None else user
        line = self._lines.get(key)
        if line is None:
            line = _Line(key, None if self._weight_of is None else self._weight_of(user))
            if len(self._lines) == 1:
                self._divide(*self._lines.values())
            self._lines[key] = line
        self.waiting[job] = (line, priority)
        heapq.heappush(line.waiting, (-standing(priority, since_s, self._ageing_s), job))
        if line.waiting[0][1] == job:
            self._put_head(line)

    def _divide(self, line: _Line) -> None:
        """Count what the user has at work from now on, as another one comes."""
        priorities = 0.0
        for one in self._at_work.values():
            one.merit = line.merit(one.standing, one.priority, priorities)
            priorities += one.priority
        self._merits = sorted(one.merit for one in self._at_work.values() if not one.is_aside)
        self._is_divided = True
        self._put_head(line)

    def put_again(self, job: int, had_s: float, lost_s: float) -> None:
        """A job at work has been given up, and waits for its next turn.

        `had_s`: PE-seconds that it has had in all; `lost_s`: those in vain.
        """
        one = self._at_work[job]
        self._leave(job, one)
        self._loss.lose(lost_s)
        self.waiting[job] = (one.line, one.priority)
        self._again.add(job)
        heapq.heappush(one.line.again, (had_s / one.priority, job))

    def next(self) -> int | None:
        """A job that begins now, named once; None if all that wait go on waiting."""
        while (head := self._best()) is not None:
            merit, line = head
            if len(self._merits) >= self._window and merit <= self._merits[-self._pes]:
                break
            minus_standing, job = heapq.heappop(line.waiting)
            self._begin(job, -minus_standing, merit)
            bisect.insort(self._merits, merit)
            return job
        if self._again_at_work < again_of(self._pes) and (again := self._best_again()) is not None:
            _, job = heapq.heappop(again.again)
            self._again.discard(job)
            self._begin(job, 0.0, 0.0, is_again=True)
            self._again_at_work += 1
            return job
        return None

    def _begin(self, job: int, standing: float, merit: float, is_again: bool = False) -> None:
        line, priority = self.waiting.pop(job)
        self._at_work[job] = _AtWork(line, priority, standing, merit, is_again)
        line.begin(priority)
        self._put_head(line)

    def set_aside(self, job: int) -> None:
        """A job at work stands still for a reason that is none of ours."""
        self._take_merit(self._at_work[job])
        self._at_work[job].is_aside = True

    def bring_back(self, job: int) -> None:
        """It goes on."""
        one = self._at_work[job]
        if one.is_aside and not one.is_again:
            one.is_aside = False
            bisect.insort(self._merits, one.merit)

    # --- jobs that go on and on ---------------------------------------------------------------

    def settle(self, job: int) -> None:
        """A job at work has had its turn."""
        if job not in self._residents and not self._find_room(job, False):
            self._had_turn[job] = None

    def claim(self, job: int) -> bool:
        """Make a job that cannot begin anew a resident; False if it has to wait until one such ends."""
        if self._find_room(job, True):
            self._lasting.add(job)
            return True
        one = self._at_work[job]
        self._leave(job, one)
        self.waiting[job] = (one.line, one.priority)
        self._held.add(job)
        heapq.heappush(one.line.held, (-one.standing, job))
        return False

    def lasting_before(self, job: int) -> int:
        """Return the number of such jobs, one of which is to end before this one; 0: it is not held."""
        return len(self._lasting) if job in self._held else 0

    def _find_room(self, job: int, is_lasting: bool) -> bool:
        # Even without residents some that cannot begin anew are to run.
        if not (self.has_room or (is_lasting and len(self._residents) < self._pes)):
            if (other := self._resident_for(job, is_lasting)) is None:
                return False
            del self._residents[other]
            self.bring_back(other)
            self._had_turn[other] = None
        self._reside(job)
        return True

    def _release(self) -> bool:
        """Let one that was held begin: of the user who has least at work."""
        lines = [line for line in self._lines.values() if line.held] if self._held else []
        while lines:
            line = min(lines, key=lambda one: (one.load, one.held[0]))
            minus_standing, job = heapq.heappop(line.held)
            if job in self._held:
                self._held.remove(job)
                heapq.heappush(line.waiting, (minus_standing, job))
                self._put_head(line)
                return True
            if not line.held:
                lines.remove(line)
        return False

    def _resident_for(self, job: int, is_lasting: bool) -> int | None:
        """Return the resident that makes room: of the user who has most at work, and more than this job's.

        For a job that cannot begin anew it may be any user. Of several residents it is the last one.
        """
        if not (self._is_divided or is_lasting):
            return None
        least = -1.0 if is_lasting else self._at_work[job].line.load
        candidates = (
            (self._at_work[other].line.load, number, other)
            for number, other in enumerate(self._residents)
            if other not in self._lasting and self._at_work[other].line.load > least
        )
        worst = max(candidates, default=None)
        return None if worst is None else worst[2]

    def _reside_next(self) -> None:
        """The one that has had its turn first is a resident from now on."""
        job = next(iter(self._had_turn))
        del self._had_turn[job]
        self._reside(job)

    def _reside(self, job: int) -> None:
        one = self._at_work[job]
        self._residents[job] = None
        self._again_at_work -= one.is_again
        one.is_again = False
        if not one.is_aside:
            self.set_aside(job)

    @property
    def has_room(self) -> bool:
        """Return whether there may be more residents."""
        return len(self._residents) < self._residents_max

    def next_set_back(self, now: float) -> int | None:
        """Name, once, a job at work that is to be given up, since another one waits for its place.

        One of the user who has most at work; of these the last one that has had its turn, which loses least.
        """
        if not self._had_turn or self._loss.left_s(now, self._pes) <= 0.0:
            return None
        candidates = (
            (self._at_work[job].line.load, number, job) for number, job in enumerate(self._in_the_way())
        )
        if (worst := max(candidates, default=None)) is None:
            return None
        del self._had_turn[worst[2]]
        return worst[2]

    def set_back_due_s(self) -> float:
        """Return when `next_set_back` names one; inf: not before others come or end."""
        return math.inf if next(self._in_the_way(), None) is None else self._loss.due_s(self._pes)

    def _in_the_way(self) -> Iterator[int]:
        """Yield the jobs that have had their turn and whose places are those that others wait for."""
        if self._had_turn:
            waits = {False: self._first_waits(), True: self._again_waits()}
            yield from (job for job in self._had_turn if waits[self._at_work[job].is_again])

    def _first_waits(self) -> bool:
        return len(self._merits) >= self._window and self._best() is not None

    def _again_waits(self) -> bool:
        return self._again_at_work >= again_of(self._pes) and bool(self._again)

    def _best_again(self) -> _Line | None:
        """Return the line whose first job is to be at work again: of the user who has least at work."""
        lines = [line for line in self._lines.values() if line.again] if self._again else []
        return min(lines, key=lambda line: (line.load, line.again[0]), default=None)

    # --- ends ---------------------------------------------------------------------------------

    def drop(self, job: int) -> None:
        """A job is over, whether it has begun or waits here, or is not known at all."""
        if (waiting := self.waiting.pop(job, None)) is not None:
            line, _ = waiting
            self._again.discard(job)
            self._held.discard(job)
            self._put_head(line)
        elif (one := self._at_work.get(job)) is not None:
            line = one.line
            self._leave(job, one)
        else:
            return
        if not (line.waiting or line.again or line.held or line.at_work):
            del self._lines[line.user]
            self._is_divided = len(self._lines) > 1

    def _leave(self, job: int, one: _AtWork) -> None:
        """A job is at work no more. If it was a resident, one that has had its turn is that now."""
        del self._at_work[job]
        self._take_merit(one)
        self._again_at_work -= one.is_again
        self._lasting.discard(job)
        self._had_turn.pop(job, None)
        if job in self._residents:
            del self._residents[job]
            if not self._release() and self._had_turn:
                self._reside_next()
        one.line.end(one.priority)
        self._put_head(one.line)

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
        while line.again and line.again[0][1] not in self._again:
            heapq.heappop(line.again)
        while line.held and line.held[0][1] not in self._held:
            heapq.heappop(line.held)
        while line.waiting and line.waiting[0][1] not in self.waiting:
            heapq.heappop(line.waiting)
        if line.waiting:
            heapq.heappush(self._heads, self._head(line))
        if len(self._heads) > 2 * len(self._lines) + _OUTDATED_MAX:
            self._heads = [self._head(one) for one in self._lines.values() if one.waiting]
            heapq.heapify(self._heads)

    def _head(self, line: _Line) -> tuple[float, int, int, _Line]:
        minus_standing, job = line.waiting[0]
        merit = -minus_standing
        if self._is_divided:
            merit = line.merit(-minus_standing, self.waiting[job][1], line.priorities)
        return -merit, line.version, next(self._numbers), line

    def _best(self) -> tuple[float, _Line] | None:
        """The line whose first job is to begin before all others, with what that counts with."""
        while self._heads:
            minus_merit, version, _, line = self._heads[0]
            if version == line.version:
                return -minus_merit, line
            heapq.heappop(self._heads)
        return None


#: so often at most do jobs get other terms
_TERMS_PERIOD_S = 0.1


class ClientMessage(msgspec.Struct, frozen=True, array_like=True):
    """From one client to another."""

    source: int
    dest: int
    message: UserMessage


decode_client_message = msgspec.msgpack.Decoder(ClientMessage).decode


class Turns:
    """The turns of one client's jobs."""

    def __init__(
        self,
        rank: Rank,
        jobs: LiveJobs,
        queue: JobQueue,
        users: UserBook | None,
        running: RunningJobs,
        client: int,
        client_ranks: Sequence[int],
    ) -> None:
        """`users`: None if they are not told apart."""
        self._rank = rank
        self._jobs = jobs
        self._queue = queue
        self._users = users
        self._running = running
        self._client = client
        self._client_ranks = client_ranks
        self._suspects = Suspects(rank.now())
        self._next_terms_s = -math.inf
        #: (when, job): the wallclock limits of jobs that have been given up; some are over, or at work
        self._limits: list[tuple[float, int]] = []
        #: whether `next` may have something to name
        self.may_begin = False
        #: when `turn` has something to do
        self.deadline_s = -math.inf

    def wait(self, live: LiveJob, now: float) -> None:
        """A job could begin; `next` will name it, unless it ends before."""
        if self._running.blamed and self._running.is_suspect(live.id):
            self._suspects.wait(live.id)
            self._note_deadline()
        else:
            self._enqueue(live, now)

    def turn(self, now: float) -> list[LiveJob]:
        """Let jobs move up; return those that reach their wallclock limit while they wait for a turn."""
        if self._suspects.waiting and (suspect := self._suspects.next(now)) is not None:
            self._enqueue(self._jobs[suspect], now)
        if self._users is not None:
            self._serve_users(self._users, now)
        while (job := self._queue.next_set_back(now)) is not None:
            self._rank.set_back(job)
        beyond = []
        while self._limits and self._limits[0][0] <= now:
            live = self._jobs.get(heapq.heappop(self._limits)[1])
            if live is not None and live.state is JobState.QUEUED:
                beyond.append(live)
        self._note_deadline()
        return beyond

    def _note_deadline(self) -> None:
        self.deadline_s = self._suspects.next_deadline() if self._suspects.waiting else math.inf
        self.deadline_s = min(self.deadline_s, self._queue.set_back_due_s())
        if self._limits:
            self.deadline_s = min(self.deadline_s, self._limits[0][0])
        if (users := self._users) is not None:
            if users.admission.admitted or users.admission.messages:
                self.deadline_s = -math.inf
            elif users.has_news:
                self.deadline_s = min(self.deadline_s, self._next_terms_s)

    def next(self) -> int | None:
        """A job that begins now, named once; None if all that wait go on waiting."""
        job = self._queue.next()
        self.may_begin = job is not None and bool(self._queue.waiting)
        if job is not None and self._users is not None:
            self._users.begins(job)
        self._note_deadline()
        return job

    def terms(self, live: LiveJob) -> Terms | None:
        """Return the terms on which a job whose input is there is handed to the PE.

        None: it cannot begin now, and `next` will name it again.
        """
        if self._holds(live):
            return None
        if self._users is None:
            return Terms(live.terms.priority, live.terms.max_demand)
        return self._users.terms(live.id)

    def look_again(self) -> None:
        """More jobs may begin than before, or with other terms."""
        self.may_begin = True
        self._note_deadline()

    def set_aside(self, job: int) -> None:
        """A job at work stands still until it is brought back; another one may begin meanwhile."""
        self._queue.set_aside(job)
        self.may_begin = True

    def had_turn(self, live: LiveJob) -> None:
        """A job at work has had its first turn and goes on."""
        self._queue.settle(live.id)
        self.may_begin = bool(self._queue.waiting)

    def _holds(self, live: LiveJob) -> bool:
        """Whether it waits for a place: a job does that cannot begin anew.

        Others add to it, or what it has read can be read once only.
        """
        if not (live.is_incremental or comes_through_pipe(live.known_file)) or self._queue.claim(live.id):
            return False
        self._jobs.enter(live, JobState.QUEUED)
        self._running.rest(live.id)
        if self._users is not None:
            self._users.rests(live.id)
        self.may_begin = True
        return True

    def given_up(self, live: LiveJob, spent: Spent, is_saved: bool, now: float) -> None:
        """A job is at work no more, as it was set back, and waits for its next turn."""
        before_s = 0.0 if live.spent is None else live.spent.pe_s
        live.spent, live.last_turn_s = spent, spent.pe_s - before_s
        live.is_sought = False
        self._jobs.enter(live, JobState.QUEUED)
        self._running.rest(live.id)
        if self._users is not None:
            self._users.rests(live.id)
        self._queue.put_again(live.id, spent.pe_s, 0.0 if is_saved else live.last_turn_s)
        if live.terms.wallclock_limit_s and spent.started_s is not None:
            heapq.heappush(self._limits, (spent.started_s + live.terms.wallclock_limit_s, live.id))
        self.may_begin = True
        self._note_deadline()

    def bring_back(self, job: int) -> None:
        """It goes on, if it stood still at all."""
        self._queue.bring_back(job)

    def ended(self, job: int) -> None:
        """A job has its reply, at work or not."""
        if self._users is not None:
            self._users.ended(job)
        self._queue.drop(job)
        if self._running.blamed:
            self._suspects.ended(job)
        self.may_begin = bool(self._queue.waiting)
        self._note_deadline()

    def hear(self, data: bytes) -> None:
        """Another client speaks of its users' jobs."""
        if self._users is not None:  # else this rank was started with other options
            said = decode_client_message(data)
            self._users.hear(said.source, said.message)
            self.may_begin = True
            self._note_deadline()

    def _enqueue(self, live: LiveJob, now: float) -> None:
        self._jobs.enter(live, JobState.QUEUED)
        if now > live.accepted_s:  # it was held
            live.since_s = now
        if self._users is None:
            self._put(live)
        else:
            self._users.ask(live.id, live.user, live.terms.priority, live.terms.max_demand)
        self._note_deadline()

    def _put(self, live: LiveJob) -> None:
        self._queue.put(live.id, live.user, live.terms.priority, live.since_s)
        self.may_begin = True

    def _set_terms(self, job: int, terms: Terms, now: float) -> None:
        self._rank.set_terms(job, terms.priority, terms.max_demand)
        self._rank.log.write(now, LogEvent.TERMS, {"job": job, **terms._asdict()})

    # --- shares of users ------------------------------------------------------------------------

    def _serve_users(self, users: UserBook, now: float) -> None:
        """Queue what may begin, and have jobs go on with other terms where others have come or gone."""
        if users.admission.admitted:
            for job in users.admitted():
                self._put(self._jobs[job])
        if users.admission.messages:
            for client, message in users.urgent_messages():
                self._tell(client, message)
        if not users.has_news or now < self._next_terms_s:
            return
        self._next_terms_s = now + _TERMS_PERIOD_S
        for job, terms in users.changes().items():
            self._set_terms(job, terms, now)
        if (work := users.work_message()) is not None:
            for client in range(len(self._client_ranks)):
                if client != self._client:
                    self._tell(client, work)

    def _tell(self, client: int, message: UserMessage) -> None:
        data = msgspec.msgpack.encode(ClientMessage(self._client, client, message))
        self._rank.tell_desk(self._client_ranks[client], data)
