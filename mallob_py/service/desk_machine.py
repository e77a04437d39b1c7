"""The machine of one client: decides what becomes of the client's jobs, without clock, files or ranks.

Callers report events by its methods: jobs are accepted, inputs arrive, PEs report on jobs, users end jobs,
time passes. The machine decides which job is free to begin (`jobs/holds.py`), which begins next and which
makes room (`jobs/line.py`), on which terms (`jobs/users.py`), and what happens to a job that must not begin.
Its `Hands` carry the decisions out: the hands of the service (`service.py`) or of a simulation. Every job
follows the table in `protocol/job_life.py`.

Callers change these parts by public methods only, and only `DeskSetting`, calls and answers of the hands have
an influence. So a log of all these (`desk_log.py`) can be replayed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from mallob_py.protocol.effects import JobGivenUp, JobRests, JobSought
from mallob_py.protocol.job_life import Happening, JobState
from mallob_py.service.jobs.holds import Holds
from mallob_py.service.jobs.line import Line
from mallob_py.service.jobs.live import LiveJob, LiveJobs
from mallob_py.service.jobs.users import AtWork, Terms, UserBook, UserRules

#: limits of one call that begins jobs: number of jobs that it begins, and its duration
_BEGIN_AT_ONCE, _BEGIN_S = 16, 0.05
#: shortest time between two changes of jobs' terms
_TERMS_PERIOD_S = 0.1


class Hands(Protocol):
    """The actions that the machine orders. Each method may report to the machine before it returns."""

    def now(self) -> float: ...

    def replied(self, identity: str) -> str | None:
        """Return the outcome in the reply of a job; "": the reply states none, None: no reply."""
        ...

    def is_suspect(self, job: int) -> bool:
        """Tell whether a job must not run again after one more crash of the service."""
        ...

    def begin(self, job: LiveJob, now: float) -> None:
        """Read the input of a job, or submit the job at once; end a job that cannot be run."""

    def end_lacking(self, job: LiveJob, now: float) -> None:
        """End a job that needs a result which will not come (`Holds.lacking`)."""

    def end_chain_by(self, job: LiveJob, now: float) -> None:
        """End a chain of revisions, and the job whose file demands this."""

    def end_at_limit(self, job: LiveJob, now: float) -> None:
        """End a job that reached its wallclock limit while waiting for its next turn."""

    def end_unsubmitted(self, job: LiveJob, now: float) -> None:
        """End an interrupted job that is at no PE; if its input must be read nevertheless, end it later."""

    def set_back(self, job: int) -> None: ...

    def interrupt(self, job: int) -> None: ...

    def set_terms(self, job: int, terms: Terms, now: float) -> None: ...

    def tell_clients(self, work: AtWork) -> None:
        """Tell all other clients how much work each user has here."""

    def note_work(self, job: int, is_at_work: bool, now: float) -> None:
        """Record whether the job may cause a crash from now on."""


class DeskSetting(msgspec.Struct, frozen=True):
    """The initial state of a machine: the number of PEs, settings, and the jobs that ended before.

    `finished`: identity of an ended job -> its outcome ("": unknown); `started_s`: start of the service.
    """

    pes: int
    ageing_s: float
    residents_per_pe: int | None = None
    window: int = 0
    rules: UserRules = UserRules()
    clients: int = 1
    finished: Mapping[str, str] = {}
    started_s: float = 0.0
    #: cores of a PE: `JobSpent.pe_s` counts each of them
    threads: int = 1


class DeskMachine:
    """The machine of one client, which decides what becomes of the client's jobs."""

    def __init__(self, hands: Hands, setting: DeskSetting) -> None:
        self._hands = hands
        self.holds = Holds(setting.finished, hands.replied, hands.is_suspect, setting.started_s)
        self.users = UserBook(setting.rules, setting.pes, setting.clients)
        self.jobs = LiveJobs()
        self.line = Line(
            self.jobs, self.users, setting.pes, setting.ageing_s, setting.window, setting.residents_per_pe
        )
        self._next_terms_s = -math.inf
        #: heap of (end of the wallclock limit, job) for jobs that were given up; some are outdated
        self._limits: list[tuple[float, int]] = []
        self._threads = setting.threads
        self._may_begin = False
        #: time when `turn` has other work than freeing held jobs
        self._deadline_s = -math.inf

    @property
    def deadline_s(self) -> float:
        """Return the time when `turn` has work to do."""
        return min(self._deadline_s, self.holds.deadline_s)

    # --- events -----------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Take the decisions that are due: free jobs, begin jobs, change terms, give jobs up."""
        if now >= self.holds.deadline_s:
            self._free(now)
        while (late := self.line.next_set_back(now)) is not None:
            self._hands.set_back(late.id)
        while self._limits and self._limits[0][0] <= now:
            job = self.jobs.get(heapq.heappop(self._limits)[1])
            if job is not None and job.state is JobState.AGAIN:
                self._hands.end_at_limit(job, now)
        if self.users.has_news and now >= self._next_terms_s:
            self._set_terms(now)
        if self._may_begin:
            self._begin(now)
        self._note_deadline()

    def admit(self, job: LiveJob, precursor: str) -> None:
        """Take in a job with its file. Raises JobFileError if it must be refused.

        `precursor`: as for `Holds.admit`.
        """
        file = job.known_file
        self.holds.admit(job.id, job.identity, file.arrival_s, file.dependencies, precursor, file.after_ok)
        self.jobs.add(job)

    def refused(self, identity: str) -> None:
        """Record that a job was refused; it has a reply, and never was live."""
        self.holds.refused(identity)

    def stalls(self, job: LiveJob) -> None:
        """Record that a job's input does not arrive at present; another job may begin meanwhile."""
        self.line.set_aside(job)
        self._look_again()

    def goes_on(self, job: LiveJob) -> None:
        """Record that the reading of a job's input continues, whether or not it had stalled."""
        self.line.bring_back(job)

    def interrupt(self, identity: str, by: int, now: float) -> None:
        """End a live job in any state; `by`: the interruption's id. Raises JobFileError without the job."""
        job = self.jobs[self.holds.interrupt(identity, by)]
        if job.state is JobState.AT_PE:
            self._hands.interrupt(job.id)
        else:
            self._hands.end_unsubmitted(job, now)

    def was_sought(self, news: JobSought, now: float) -> None:
        """Record that a PE is sought for a job."""
        self.jobs[news.job].is_sought = True
        self._hands.note_work(news.job, True, now)

    def had_turn(self, news: JobRests) -> None:
        """Record that a job at work has had its first turn and goes on."""
        job = self.jobs[news.job]
        self.line.settle(job)
        self._look_again()

    def was_given_up(self, news: JobGivenUp, is_saved: bool, now: float) -> None:
        """Put a job that was given up by its PE in line for its next turn; `is_saved`: no work was lost."""
        job, spent = self.jobs[news.job], news.spent
        before_s = 0.0 if job.spent is None else job.spent.pe_s
        had_begun = job.spent is not None and job.spent.started_s is not None
        job.spent, job.last_turn_s = spent, spent.pe_s - before_s
        job.is_sought = False
        self.jobs.happens(job, Happening.GIVEN_UP)
        self._rests(job, now)
        self.line.put_again(job, spent.pe_s, 0.0 if is_saved else job.last_turn_s / self._threads)
        if job.terms.wallclock_limit_s and spent.started_s is not None and not had_begun:
            heapq.heappush(self._limits, (spent.started_s + job.terms.wallclock_limit_s, job.id))
            self.jobs.forget_gone(self._limits)
        self._look_again()

    def answer(self, job: LiveJob, outcome: str) -> list[int]:
        """Forget a job that has its reply; return the ids of the interruptions that this settles."""
        self.jobs.happens(job, Happening.ANSWERED)
        self.users.stops(job)
        self.line.drop(job)
        self.jobs.remove(job.id)
        interruptions = self.holds.ended(job.id, outcome)
        self._look_again()
        return interruptions

    def resize(self, pes: int, moved: Collection[int]) -> None:
        """Note the new number of PEs, and the clients (`moved`) that begin anew on other ranks."""
        self.users.follow(pes, moved)
        self.line.resize(pes)
        self._may_begin = True
        self._note_deadline()

    def hear(self, client: int, message: AtWork) -> None:
        """Take in another client's message about its jobs at work."""
        self.users.hear(client, message)
        self._note_deadline()

    # --- reports from the reading of inputs ---------------------------------------------------------

    def reads(self, job: LiveJob, now: float) -> None:
        """Record that a helper begins to read a job's input."""
        self.jobs.happens(job, Happening.READ)
        job.reading_s = now

    def terms(self, job: LiveJob, is_lasting: bool, now: float) -> Terms | None:
        """Return the terms for submitting a job whose input was read; None: the job must wait in line again.

        `is_lasting`: whether the job cannot begin anew.
        """
        if is_lasting:
            has_place = self.line.claim(job)
            self._look_again()  # its former place may be free for another job
            if not has_place:
                self._rests(job, now)
                return None
        self.jobs.happens(job, Happening.SUBMITTED)
        return self.users.terms(job)

    # --- decisions ----------------------------------------------------------------------------------

    def _free(self, now: float) -> None:
        """Free the jobs whose arrival time has come and whose dependencies have ended."""
        for number in self.holds.ready(now):
            job = self.jobs[number]
            if self.holds.lacking(number) is not None:
                self._hands.end_lacking(job, now)
            elif job.is_done:
                self._hands.end_chain_by(job, now)
            else:
                self.jobs.happens(job, Happening.FREED)
                if now > job.accepted_s:  # the job was held for some time
                    job.since_s = now
                self.line.put(job)
                self._may_begin = True

    def _begin(self, now: float) -> None:
        """Begin the next jobs in line, at most as many as one call may begin."""
        for _ in range(_BEGIN_AT_ONCE):
            job = self.line.next()
            self._may_begin = job is not None and len(self.line) > 0
            if job is None:
                return
            self.users.begins(job)
            self._hands.begin(job, now)
            if not self._may_begin or self._hands.now() >= now + _BEGIN_S:
                return

    def _set_terms(self, now: float) -> None:
        """Change the terms of jobs after other jobs have come or gone."""
        self._next_terms_s = now + _TERMS_PERIOD_S
        for number, terms in self.users.changes().items():
            self._hands.set_terms(number, terms, now)
        if (work := self.users.work_message()) is not None:
            self._hands.tell_clients(work)

    def _rests(self, job: LiveJob, now: float) -> None:
        self._hands.note_work(job.id, False, now)
        self.users.stops(job)

    def _look_again(self) -> None:
        self._may_begin = len(self.line) > 0
        self._note_deadline()

    def _note_deadline(self) -> None:
        if self._may_begin:
            self._deadline_s = -math.inf
            return
        self._deadline_s = self.line.set_back_due_s()
        if self._limits:
            self._deadline_s = min(self._deadline_s, self._limits[0][0])
        if self.users.has_news:
            self._deadline_s = min(self._deadline_s, self._next_terms_s)
