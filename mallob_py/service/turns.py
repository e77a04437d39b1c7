"""Whose turn it is among the live jobs of a client: which of those that could begin does so next.

A job that the book names as ready first waits for its trial if it is a *suspect* (it was at work at crashes);
then, where users are told apart, until its user may have another one at work, or, where a policy decides,
until that begins it; then in the queue. What jobs work with changes as others come and go: that is told from
here, too, and of users to other clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from mallob_py.runtime.rank import Rank
from mallob_py.service.jobs.bookkeeping import JobState, LiveJob, LiveJobs
from mallob_py.service.jobs.crashes import RunningJobs, Suspects
from mallob_py.service.jobs.job_file import JobFile
from mallob_py.service.jobs.job_queue import JobQueue
from mallob_py.service.jobs.users import Terms, UserBook, UserMessage

#: so often at most do jobs get other terms
_TERMS_PERIOD_S = 0.1
#: decisions of a policy take at most one part in so many of the time
_DECISION_SHARE = 5


class ClientMessage(msgspec.Struct, frozen=True, array_like=True):
    """From one client to another."""

    source: int
    dest: int
    message: UserMessage


decode_client_message = msgspec.msgpack.Decoder(ClientMessage).decode


class Request(NamedTuple):
    """What a job asks of a policy. `workers`, `max_demand` 0: it does not say."""

    user: str
    workers: int
    min_workers: int
    max_demand: int
    required_s: float


class Decider(Protocol):
    """A policy that decides which jobs begin, and how many workers each may have."""

    @property
    def name(self) -> str: ...

    def check(self, file: JobFile) -> None:
        """Raises JobFileError for a job that can never begin."""

    def ask(self, job: int, request: Request, since_s: float) -> None:
        """A job could begin; `decide` will name it, unless it ends before."""

    def ended(self, job: int) -> None:
        """A job has its reply, whether it was asked for, or has begun, or not."""

    def resize(self, pes: int) -> None:
        """There are so many PEs now."""

    def next_deadline(self) -> float:
        """When `decide` is to be called at the latest; -inf: at once."""
        ...

    def decide(self, now: float) -> Sequence[int]:
        """The jobs that begin now, each named once."""
        ...

    def bound(self, job: int) -> int:
        """Of a job that has begun; from now on `changes` speaks of it."""
        ...

    def changes(self) -> Mapping[int, int]:
        """Jobs with another bound than they were told."""
        ...


class Turns:
    """Of one client."""

    def __init__(
        self,
        rank: Rank,
        jobs: LiveJobs,
        queue: JobQueue,
        users: UserBook | None,
        running: RunningJobs,
        client: int,
        client_ranks: Sequence[int],
        policy: Decider | None = None,
    ) -> None:
        """`users`: None if they are not told apart. `policy`: not beside users, or several clients."""
        assert policy is None or (users is None and len(client_ranks) == 1)
        self._rank = rank
        self._jobs = jobs
        self._queue = queue
        self._users = users
        self._running = running
        self._client = client
        self._client_ranks = client_ranks
        self._policy = policy
        self._next_decision_s = -math.inf
        self._suspects = Suspects(rank.now())
        self._next_terms_s = -math.inf
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

    def turn(self, now: float) -> None:
        """Let jobs move up."""
        if self._suspects.waiting and (suspect := self._suspects.next(now)) is not None:
            self._enqueue(self._jobs[suspect], now)
        if self._users is not None:
            self._serve_users(self._users, now)
        if self._policy is not None and now >= max(self._next_decision_s, self._policy.next_deadline()):
            self._decide(self._policy, now)
        self._note_deadline()

    def _note_deadline(self) -> None:
        self.deadline_s = self._suspects.next_deadline() if self._suspects.waiting else math.inf
        if self._users is not None and self._users.has_urgent_news:
            self.deadline_s = -math.inf
        elif self._users is not None and self._users.has_news:
            self.deadline_s = min(self.deadline_s, self._next_terms_s)
        if self._policy is not None:
            decision_s = max(self._next_decision_s, self._policy.next_deadline())
            self.deadline_s = min(self.deadline_s, decision_s)

    def next(self) -> int | None:
        """A job that begins now, named once; None if all that wait go on waiting."""
        job = self._queue.next()
        self.may_begin = job is not None and bool(self._queue.waiting)
        if job is not None and self._users is not None:
            self._users.begins(job)
            self._note_deadline()
        return job

    def terms(self, live: LiveJob) -> Terms:
        """What a job at work is handed to the PE with."""
        if self._policy is not None:
            return Terms(live.priority, self._policy.bound(live.id))
        if self._users is None:
            return Terms(live.priority, live.max_demand)
        return self._users.terms(live.id)

    def look_again(self) -> None:
        """More jobs may begin than before, or with other terms."""
        self.may_begin = True
        self._note_deadline()

    def set_aside(self, job: int) -> None:
        """A job at work stands still until it is brought back; another one may begin meanwhile."""
        self._queue.set_aside(job)
        self.may_begin = True

    def bring_back(self, job: int) -> None:
        """It goes on, if it stood still at all."""
        self._queue.bring_back(job)

    def ended(self, job: int) -> None:
        """A job has its reply, at work or not."""
        if self._users is not None:
            self._users.ended(job)
        if self._policy is not None:
            self._policy.ended(job)
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
        if self._policy is not None:
            self._policy.ask(live.id, _request_of(live), live.since_s)
        elif self._users is None:
            self._put(live)
        else:
            self._users.ask(live.id, live.user, live.priority, live.max_demand)
        self._note_deadline()

    def _put(self, live: LiveJob) -> None:
        self._queue.put(live.id, live.user, live.priority, live.since_s)
        self.may_begin = True

    def _set_terms(self, job: int, terms: Terms, now: float) -> None:
        self._rank.set_terms(job, terms.priority, terms.max_demand)
        self._rank.log.write(now, "terms", {"job": job, **terms._asdict()})

    # --- a policy's decisions -------------------------------------------------------------------

    def _decide(self, policy: Decider, now: float) -> None:
        """Bounds shrink before others begin, so that there is room for these."""
        begun = policy.decide(now)
        for job, bound in policy.changes().items():
            self._set_terms(job, Terms(self._jobs[job].priority, bound), now)
        for job in begun:
            self._put(self._jobs[job])
        ended_s = self._rank.now()
        self._next_decision_s = ended_s + _DECISION_SHARE * (ended_s - now)

    # --- shares of users ------------------------------------------------------------------------

    def _serve_users(self, users: UserBook, now: float) -> None:
        """Queue what may begin, and have jobs go on with other terms where others have come or gone."""
        while users.has_urgent_news:
            for job in users.admitted():
                self._put(self._jobs[job])
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


def _request_of(live: LiveJob) -> Request:
    return Request(live.user, live.workers, live.min_workers, live.max_demand, live.required_s)
