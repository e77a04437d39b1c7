"""With which priority and bound each job works, so that users share the PEs fairly.

Pure: no clock, no files. A job is *at work* from its beginning (as `admission.py` and `job_queue.py` let it)
until its reply. By the rule of its user (`user_rules.py`)
- its priority is scaled: the priorities of all jobs of a user at work add up to the user's weight,
  in the proportions that their job files say. So users get PEs by their weights, no matter how
  many jobs each has, wherever there are enough PEs for a worker per job (P 2.3 on top of it);
- a user with less than all PEs to share has no more jobs at work than that, and these get their
  fair volumes of it (`volumes.py`) as bounds.

Several clients tell each other how much work each user has there; until that has arrived, the
terms at one client are those without it.

Terms change with every job that comes or goes. Only a change that matters is named by `changes`:
another bound, or priorities that are off by more than a tenth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import msgspec

from mallob_py.protocol.volumes import fair_volumes
from mallob_py.service.admission import Admission, AdmissionMessage
from mallob_py.service.user_rules import UserRule, UserRules

_TOLERANCE = 1.1


class Terms(NamedTuple):
    """What a job works with. A bound of 0 is none."""

    priority: float
    max_demand: int


class Work(NamedTuple):
    """How many jobs are at work, and the sum of their priorities as the job files say."""

    jobs: int = 0
    priorities: float = 0.0


class Account(NamedTuple):
    """How a user stands: jobs at work and the sum of their priorities, and the bounds (None: none)."""

    at_work: int
    at_work_max: int | None
    priorities: float
    pes_max: int | None
    weight: float


class AtWork(msgspec.Struct, frozen=True, array_like=True, tag="at work"):
    """To all clients: what is at work here, by user."""

    work: dict[str, Work]


UserMessage: TypeAlias = AdmissionMessage | AtWork


@dataclass(slots=True)
class _User:
    """A user with jobs at work here."""

    rule: UserRule
    jobs: set[int] = field(default_factory=set)
    #: exact, since they come and go for weeks
    priorities: Fraction = Fraction()
    #: the range of all clients' sums when terms were told last
    least: float = math.inf
    most: float = 0.0

    @property
    def work(self) -> Work:
        return Work(len(self.jobs), float(self.priorities))


@dataclass(frozen=True, slots=True)
class _Job:
    user: str
    #: as the job file says
    asked: Terms


class UserBook:
    """The jobs of one client."""

    def __init__(self, rules: UserRules, pes: int, client: int = 0, clients: int = 1) -> None:
        self._rules = rules
        self._pes = pes
        self._client = client
        self._clients = clients
        self._admission = Admission(self._limit_of, client, clients)
        self._jobs: dict[int, _Job] = {}
        #: of jobs at work, as last told
        self._told: dict[int, Terms] = {}
        self._users: dict[str, _User] = {}
        self._elsewhere: dict[int, dict[str, Work]] = {}
        #: users whose jobs' terms are to be looked at again
        self._untold: set[str] = set()
        self._work_has_changed = False

    # --- jobs come and go ---------------------------------------------------------------------

    def ask(self, job: int, user: str, priority: float, max_demand: int) -> None:
        """A job could begin; `admitted` will name it."""
        self._jobs[job] = _Job(user, Terms(priority, max_demand))
        self._admission.ask(job, user, priority)

    def admitted(self) -> list[int]:
        """The jobs that may begin now, each named once."""
        return [job for job in self._admission.take_admitted() if job in self._jobs]

    def begins(self, job: int) -> None:
        """A job that was named by `admitted` is at work from now on."""
        one = self._jobs[job]
        user = self._users.setdefault(one.user, _User(self._rules.of(one.user)))
        user.jobs.add(job)
        user.priorities += Fraction(one.asked.priority)
        self._work_changes(one.user)

    def weight_of(self, user: str) -> float:
        return self._rules.of(user).weight

    def ended(self, job: int) -> None:
        """A job has its reply, begun or not."""
        if (one := self._jobs.pop(job, None)) is None:
            return
        self._admission.over(job, one.user)
        self._told.pop(job, None)
        user = self._users.get(one.user)
        if user is None or job not in user.jobs:
            return
        user.jobs.remove(job)
        user.priorities -= Fraction(one.asked.priority)
        self._work_changes(one.user)
        if not user.jobs:
            del self._users[one.user]

    def _work_changes(self, user: str) -> None:
        self._untold.add(user)
        self._work_has_changed = True

    def _limit_of(self, user: str) -> int | None:
        """How many jobs may be at work."""
        rule = self._rules.of(user)
        limits = [] if rule.active_jobs is None else [rule.active_jobs]
        if rule.share < 1.0:
            limits.append(self._pes_of(rule))
        return min(limits, default=None)

    def _pes_of(self, rule: UserRule) -> int:
        """For all of a user's jobs."""
        return max(1, math.floor(rule.share * self._pes))

    # --- terms ------------------------------------------------------------------------------

    def terms(self, job: int) -> Terms:
        """What a job at work begins with; from now on `changes` speaks of it."""
        one = self._jobs[job]
        user, elsewhere = self._users[one.user], self._work_elsewhere(one.user)
        total = user.work.priorities + elsewhere.priorities
        user.least, user.most = min(user.least, total), max(user.most, total)
        bound = self._bounds(user, elsewhere).get(job, one.asked.max_demand)
        terms = self._told[job] = Terms(user.rule.weight * one.asked.priority / total, bound)
        return terms

    def changes(self) -> dict[int, Terms]:
        """The jobs that go on with other terms."""
        changes: dict[int, Terms] = {}
        for name in self._untold & self._users.keys():
            user, elsewhere = self._users[name], self._work_elsewhere(name)
            total = user.work.priorities + elsewhere.priorities
            bounds = self._bounds(user, elsewhere)
            if not bounds and total < user.least * _TOLERANCE and user.most < total * _TOLERANCE:
                continue
            user.least = user.most = total
            for job in user.jobs & self._told.keys():
                asked = self._jobs[job].asked
                terms = Terms(user.rule.weight * asked.priority / total, bounds.get(job, asked.max_demand))
                if terms != self._told[job]:
                    changes[job] = self._told[job] = terms
        self._untold.clear()
        return changes

    def _bounds(self, user: _User, elsewhere: Work) -> dict[int, int]:
        """By job, of a user who cannot have all PEs."""
        if user.rule.share == 1.0:
            return {}
        # One for each job at work anywhere; the others are divided among the clients.
        free = max(0, self._pes_of(user.rule) - len(user.jobs) - elsewhere.jobs)
        here = user.work.priorities
        pes = len(user.jobs) + math.floor(free * here / (here + elsewhere.priorities))
        jobs = sorted(user.jobs)
        asked = [self._jobs[job].asked for job in jobs]
        wishes = [min(one.max_demand or self._pes, self._pes) for one in asked]
        volumes = fair_volumes([one.priority for one in asked], wishes, pes, job_ids=jobs)
        return dict(zip(jobs, volumes.tolist(), strict=True))

    def account(self, user: str) -> Account:
        """How a user stands, over all clients as far as is known here."""
        rule, elsewhere = self._rules.of(user), self._work_elsewhere(user)
        here = self._users[user].work if user in self._users else Work()
        pes_max = self._pes_of(rule) if rule.share < 1.0 else None
        return Account(
            here.jobs + elsewhere.jobs,
            self._limit_of(user),
            here.priorities + elsewhere.priorities,
            pes_max,
            rule.weight,
        )

    # --- several clients -------------------------------------------------------------------------

    @property
    def has_urgent_news(self) -> bool:
        """Whether somebody waits for what `admitted` or `urgent_messages` have to say."""
        return self._admission.has_news

    @property
    def has_news(self) -> bool:
        """Whether `changes` or `work_message` may have something to say."""
        return bool(self._untold) or self._work_has_changed

    def urgent_messages(self) -> list[tuple[int, UserMessage]]:
        """To which clients what is to be sent at once."""
        return list(self._admission.take_messages())

    def work_message(self) -> AtWork | None:
        """What is to be sent to all other clients now and then; None if it has not changed."""
        if not self._work_has_changed:
            return None
        self._work_has_changed = False
        return AtWork({name: user.work for name, user in self._users.items()})

    def hear(self, client: int, message: UserMessage) -> None:
        """What another client has said."""
        if not isinstance(message, AtWork):
            self._admission.hear(client, message)
            return
        before = self._elsewhere.get(client, {})
        self._elsewhere[client] = message.work
        for user in before.keys() | message.work.keys():
            if before.get(user) != message.work.get(user):
                self._untold.add(user)

    def _work_elsewhere(self, user: str) -> Work:
        parts = [work[user] for work in self._elsewhere.values() if user in work]
        return Work(sum(part.jobs for part in parts), math.fsum(part.priorities for part in parts))
