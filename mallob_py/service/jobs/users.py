"""The rules for users: their limits, and the priority and bound of each job at work.

The file of `serve --users`:

    [default]          # users that are not named below
    weight = 1.0       # PEs are shared in proportion to the users' weights
    active-jobs = 20   # at most 20 jobs are at work; further jobs wait
    share = 0.5        # at most half of all PEs, even while others are idle

    [users.alice]      # missing keys are as in [default]
    weight = 2.0

A missing key sets no limit; without the file all users have the same weight and no limits.

*Limits*: each client may use an equal part of `active-jobs`, at least one job, and its line (`line.py`)
begins no more jobs of a user. If the limit is below the number of clients, the sum over clients may exceed
it.

*Terms*: a job is at work from its beginning until it is given up or has its reply. By its user's rule
- its priority is scaled, once there are two users: the priorities of a user's jobs at work add up to the
  user's weight, in the proportions of their job files. So users get PEs by weight, however many jobs each
  has: as whole PEs (P 2.3), or as turns on PEs if there are more jobs (`rotation.py`);
- a user whose share is below 1 has at most one job at work per PE of the share, and fair volumes
  (`volumes.py`) bound these jobs.

Clients tell each other the work of each user; until a message arrives, terms ignore that work. Terms change
with every job that comes or goes. `changes` names only changes that matter: another bound, or a priority off
by over a tenth.

When a client's rank is lost, the client begins anew on another rank, as if none of its jobs had begun. The
other clients forget its messages, and send their own again.

Pure except for reading the rules: no clock, no files.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from mallob_py.service import ServiceError
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.toml_file import TomlError, in_words, read_toml

_WEIGHT_MAX = 1e6


class UserRule(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The share and limits of one user. `active_jobs` None: no limit."""

    weight: Annotated[float, msgspec.Meta(ge=1 / _WEIGHT_MAX, le=_WEIGHT_MAX)] = 1.0
    active_jobs: Annotated[int, msgspec.Meta(ge=1)] | None = None
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


class UserRules(msgspec.Struct, frozen=True):
    """The rules of all users."""

    default: UserRule = UserRule()
    users: Mapping[str, UserRule] = {}

    def of(self, user: str) -> UserRule:
        return self.users.get(user, self.default)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    default: dict[str, Any] = {}
    users: dict[str, dict[str, Any]] = {}


def read_user_rules(path: Path) -> UserRules:
    """Read the rules. Raises ServiceError that names the file and the key at fault."""
    try:
        file = read_toml(path, _File)
        default = _rule("default", file.default)
        users = {name: _rule(f"users.{name}", file.default | own) for name, own in file.users.items()}
    except TomlError as error:
        raise ServiceError(str(error)) from None
    except msgspec.ValidationError as error:
        raise ServiceError(f"{path}: {error}") from None
    return UserRules(default, users)


def _rule(table: str, keys: dict[str, Any]) -> UserRule:
    try:
        return msgspec.convert(keys, UserRule)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"[{table}] {in_words(error)}") from None


_TOLERANCE = 1.1


class Terms(NamedTuple):
    """The terms of a job at work. `max_demand` 0: no bound."""

    priority: float
    max_demand: int


class Work(NamedTuple):
    """The number of jobs at work, and the sum of their priorities in job files."""

    jobs: int = 0
    priorities: float = 0.0


class Account(NamedTuple):
    """The account of a user: jobs at work, the sum of their priorities, and the bounds (None: no bound)."""

    at_work: int
    at_work_max: int | None
    priorities: float
    pes_max: int | None
    weight: float


class AtWork(msgspec.Struct, frozen=True, array_like=True, tag="at work"):
    """Message to all clients; `work`: user -> the user's jobs at work at the sender."""

    work: dict[str, Work]


@dataclass(slots=True)
class _User:
    """A user with jobs at work here."""

    rule: UserRule
    jobs: dict[int, LiveJob] = field(default_factory=dict)
    #: exact sum of the jobs' priorities: rounding errors would add up over weeks
    priorities: Fraction = Fraction()
    #: range of the user's sum of priorities, over all clients, for which the present terms were computed
    least: float = math.inf
    most: float = 0.0

    @property
    def work(self) -> Work:
        return Work(len(self.jobs), float(self.priorities))


def part_of(limit: int, clients: int) -> int:
    """Return each client's part of a user's `limit` on jobs at work: at least one job."""
    return max(1, limit // clients)


class UserBook:
    """The users of one client's jobs at work."""

    def __init__(self, rules: UserRules, pes: int, clients: int = 1) -> None:
        self._rules = rules
        self._pes = pes
        self._clients = clients
        #: job at work -> the terms that `changes` or `terms` last returned for it
        self._told: dict[int, Terms] = {}
        self._users: dict[str, _User] = {}
        self._elsewhere: dict[int, dict[str, Work]] = {}
        #: users whose jobs' terms must be examined
        self._untold: set[str] = set()
        self._work_has_changed = False
        #: whether `changes` or `work_message` may return something
        self.has_news = False
        #: whether a second user has come since the last time when no job was at work
        self._divides = False

    def follow(self, pes: int, moved: Collection[int]) -> None:
        """Note the number of PEs, and the clients (`moved`) that begin anew."""
        self._pes = pes
        for client in moved:
            self._elsewhere.pop(client, None)
        self._untold.update(self._users)
        self._work_has_changed |= bool(moved)
        self.has_news = bool(self._untold) or self._work_has_changed

    # --- the rules --------------------------------------------------------------------------

    def weight_of(self, user: str) -> float:
        return self._rules.of(user).weight

    def limit_of(self, user: str) -> float:
        """Return how many jobs of a user may be at work at this client; inf: no limit."""
        limit = self._limit(user)
        return math.inf if limit is None else part_of(limit, self._clients)

    def _limit(self, user: str) -> int | None:
        """Return how many jobs of a user may be at work at all clients; None: no limit."""
        rule = self._rules.of(user)
        limits = [] if rule.active_jobs is None else [rule.active_jobs]
        if rule.share < 1.0:
            limits.append(self._pes_of(rule))
        return min(limits, default=None)

    def _pes_of(self, rule: UserRule) -> int:
        """Return how many PEs a user's jobs may have in all."""
        return max(1, math.floor(rule.share * self._pes))

    # --- arrivals and departures -----------------------------------------------------------------

    def begins(self, job: LiveJob) -> None:
        """Record that a job is at work from now on."""
        user = self._users.setdefault(job.user, _User(self._rules.of(job.user)))
        user.jobs[job.id] = job
        user.priorities += Fraction(job.terms.priority)
        self._work_changes(job.user)

    def stops(self, job: LiveJob) -> None:
        """Record that a job is no longer at work, if it was at work."""
        self._told.pop(job.id, None)
        user = self._users.get(job.user)
        if user is None or user.jobs.pop(job.id, None) is None:
            return
        user.priorities -= Fraction(job.terms.priority)
        if not user.jobs:
            del self._users[job.user]
        self._work_changes(job.user)

    def _work_changes(self, user: str) -> None:
        self._untold.add(user)
        self._work_has_changed = self.has_news = True
        self._look_who_is_there()

    def _look_who_is_there(self) -> None:
        """Divide PEs by users' weights from the arrival of a second user until no job is at work."""
        if self._divides:
            self._divides = bool(self._users) or any(self._elsewhere.values())
        elif len(self._users.keys() | {user for work in self._elsewhere.values() for user in work}) > 1:
            self._divides = True
            self._untold.update(self._users)
            self.has_news = True
            for user in self._users.values():
                user.least = 0.0  # a number beyond the tolerance, so that `changes` returns new terms

    # --- terms ------------------------------------------------------------------------------

    def terms(self, job: LiveJob) -> Terms:
        """Return the terms for beginning a job; later terms come from `changes`."""
        user, elsewhere = self._users[job.user], self._work_elsewhere(job.user)
        total = user.work.priorities + elsewhere.priorities
        user.least, user.most = min(user.least, total), max(user.most, total)
        bound = self._bounds(user, elsewhere).get(job.id, job.terms.max_demand)
        terms = self._told[job.id] = Terms(self._priority(user, job, total), bound)
        return terms

    def _priority(self, user: _User, job: LiveJob, total: float) -> float:
        """Return a job's priority at work; `total`: the sum of priorities of its user's jobs."""
        if not self._divides:
            return job.terms.priority
        return user.rule.weight * job.terms.priority / total

    def changes(self) -> dict[int, Terms]:
        """Return job -> terms for the jobs whose terms differ from the terms last returned."""
        changes: dict[int, Terms] = {}
        for name in sorted(self._untold & self._users.keys()):  # sorted, so that a replay has the same order
            user, elsewhere = self._users[name], self._work_elsewhere(name)
            total = user.work.priorities + elsewhere.priorities
            bounds = self._bounds(user, elsewhere)
            if not (bounds or self._divides):
                continue
            if not bounds and total < user.least * _TOLERANCE and user.most < total * _TOLERANCE:
                continue
            user.least = user.most = total
            for job in user.jobs.keys() & self._told.keys():
                one = user.jobs[job]
                terms = Terms(self._priority(user, one, total), bounds.get(job, one.terms.max_demand))
                if terms != self._told[job]:
                    changes[job] = self._told[job] = terms
        self._untold.clear()
        self.has_news = self._work_has_changed
        return changes

    def _bounds(self, user: _User, elsewhere: Work) -> dict[int, int]:
        """Return the bound of each job, if the user may not have all PEs."""
        if user.rule.share == 1.0:
            return {}
        # Each job at work at any client may have one PE; the user's other PEs are divided among the clients.
        free = max(0, self._pes_of(user.rule) - len(user.jobs) - elsewhere.jobs)
        here = user.work.priorities
        pes = len(user.jobs) + math.floor(free * here / (here + elsewhere.priorities))
        jobs = sorted(user.jobs)
        asked = [user.jobs[job].terms for job in jobs]
        wishes = [min(one.max_demand or self._pes, self._pes) for one in asked]
        from mallob_py.protocol.volumes import fair_volumes  # imported late: this imports numpy

        volumes = fair_volumes([one.priority for one in asked], wishes, pes, job_ids=jobs)
        return dict(zip(jobs, volumes.tolist(), strict=True))

    def account(self, user: str) -> Account:
        """Return a user's account over all clients, as known here."""
        rule, elsewhere = self._rules.of(user), self._work_elsewhere(user)
        here = self._users[user].work if user in self._users else Work()
        pes_max = self._pes_of(rule) if rule.share < 1.0 else None
        return Account(
            here.jobs + elsewhere.jobs,
            self._limit(user),
            here.priorities + elsewhere.priorities,
            pes_max,
            rule.weight,
        )

    # --- several clients -------------------------------------------------------------------------

    def work_message(self) -> AtWork | None:
        """Return the message for all other clients; None: nothing has changed."""
        if not self._work_has_changed:
            return None
        self._work_has_changed = False
        self.has_news = bool(self._untold)
        return AtWork({name: user.work for name, user in self._users.items()})

    def hear(self, client: int, message: AtWork) -> None:
        """Take in another client's message."""
        before = self._elsewhere.get(client, {})
        self._elsewhere[client] = message.work
        for user in before.keys() | message.work.keys():
            if before.get(user) != message.work.get(user):
                self._untold.add(user)
                self.has_news = True
        self._look_who_is_there()

    def _work_elsewhere(self, user: str) -> Work:
        parts = [work[user] for work in self._elsewhere.values() if user in work]
        return Work(sum(part.jobs for part in parts), math.fsum(part.priorities for part in parts))
