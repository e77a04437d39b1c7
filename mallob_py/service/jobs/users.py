"""The rules for users: what each may have, which jobs may begin, and with which priority and bound each
works.

The file of `serve --users`:

    [default]            # whoever is not named below
    weight = 1.0         # PEs are shared among users in proportion to it
    active-jobs = 20     # so many at work at a time; further ones wait
    share = 0.5          # of all PEs at most so much, also while others are idle

    [users.alice]        # what is not said here is as in [default]
    weight = 2.0

Without a key there is no such limit; without the file all users have the same weight and none.

*Admission*: the queue of a user who may only have so many jobs at work is kept by one client, its *home*
(by a hash of its name): the others ask there for each job, are told to begin, and tell when the job is
over. So the limit always holds, also while all clients take up their journals after a restart, and the
user's most important job comes first wherever it is. Jobs of users without a limit begin at once. Messages
between two clients must arrive in order.

*Terms*: a job is at work from its beginning (as admission and `JobQueue` let it) until its reply. By the
rule of its user
- its priority is scaled, as soon as two users are there: the priorities of all jobs of a user at work add up
  to the user's weight, in the proportions that their job files say. So users get PEs by their weights, no
  matter how many jobs each has: whole ones (P 2.3), or over time where there are more jobs (`rotation.py`);
- a user with less than all PEs to share has no more jobs at work than that, and these get their
  fair volumes of it (`volumes.py`) as bounds.

Several clients tell each other how much work each user has there; until that has arrived, the
terms at one client are those without it. Terms change with every job that comes or goes. Only a change that
matters is named by `changes`: another bound, or priorities that are off by more than a tenth.

*Clients that move*: when a client's rank is lost, the client begins anew on another one, as if none of its
jobs had begun. The others forget what it had told them, and tell it again what it has to know (`Standing`).
As a home, it lets nobody begin before it has heard all of them, so that the limits hold then, too.

Pure but for the reading of the rules: no clock, no files.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from mallob_py.service import ServiceError
from mallob_py.service.toml_file import TomlError, in_words, read_toml

_WEIGHT_MAX = 1e6


class UserRule(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The share and the limits of one user. `active_jobs` None: any number."""

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
    """Raises ServiceError that names the file and the key at fault."""
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


class BeginWanted(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """To the user's home: may this job begin?"""

    job: int
    user: str
    priority: float


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """From the home: yes, now."""

    job: int


class Over(msgspec.Struct, frozen=True, array_like=True, tag="over"):
    """To the home: the job has its reply, whether it was begun or not."""

    job: int
    user: str


class Asked(NamedTuple):
    """A job that its user's home was asked for; and whether that has let it begin."""

    job: int
    user: str
    priority: float
    may_begin: bool


class Standing(msgspec.Struct, frozen=True, array_like=True, tag="standing"):
    """To a home that begins anew: all that it had been asked for and is not over."""

    jobs: list[Asked]


AdmissionMessage: TypeAlias = BeginWanted | Begin | Over | Standing


class _Queue:
    """The queue of one user, at its home."""

    def __init__(self) -> None:
        #: (minus priority, job); jobs that are over stay until they come up
        self.waiting: list[tuple[float, int]] = []
        #: the client of each job that waits or works
        self.client_of: dict[int, int] = {}
        self.at_work: set[int] = set()


class Admission:
    """The part of one client. Of jobs with the same priority the lower id comes first."""

    def __init__(
        self,
        limit_of: Callable[[str], int | None],
        client: int = 0,
        clients: int = 1,
        awaited: Collection[int] | None = None,
    ) -> None:
        """`limit_of`: how many jobs a user may have at work; None: any number.

        `awaited`: of a client that begins anew, those whose Standing is to come before anybody may begin.
        """
        self._limit_of = limit_of
        self._client = client
        self._clients = clients
        self._awaited = set(awaited or ())
        #: by job of this client that a home was asked for
        self._asked: dict[int, Asked] = {}
        self._queues: dict[str, _Queue] = {}
        #: the jobs that begin now, each once; one may be over already
        self.admitted: list[int] = []
        #: to which clients what is to be sent
        self.messages: list[tuple[int, AdmissionMessage]] = []
        if awaited is not None:
            # Another one that begins anew may wait for us, if it was lost after us.
            self.messages = [(other, Standing([])) for other in range(clients) if other != client]

    # --- jobs of this client ----------------------------------------------------------------

    def ask(self, job: int, user: str, priority: float) -> None:
        """A job could begin; `admitted` will have it."""
        if self._limit_of(user) is None:
            self.admitted.append(job)
        else:
            self._asked[job] = Asked(job, user, priority, may_begin=False)
            self._tell(self._home_of(user), BeginWanted(job, user, priority))

    def over(self, job: int, user: str) -> None:
        """A job that was asked for has its reply, begun or not."""
        if self._asked.pop(job, None) is not None:
            self._tell(self._home_of(user), Over(job, user))

    # --- between clients ----------------------------------------------------------------------

    def follow(self, moved: Collection[int]) -> None:
        """These clients begin anew, or limits may be others."""
        self._awaited.difference_update(moved)
        self.messages = [each for each in self.messages if each[0] not in moved]
        for user, queue in list(self._queues.items()):
            for job in [job for job, client in queue.client_of.items() if client in moved]:
                self._drop(job, user, queue)
            self._admit(user, queue)
        for client in moved:
            jobs = [asked for asked in self._asked.values() if self._home_of(asked.user) == client]
            self.messages.append((client, Standing(jobs)))

    def hear(self, client: int, message: AdmissionMessage) -> None:
        match message:
            case Begin(job):
                self.admitted.append(job)
                if (asked := self._asked.get(job)) is not None:
                    self._asked[job] = asked._replace(may_begin=True)
            case BeginWanted(job, user, priority):
                self._admit(user, self._enter(client, Asked(job, user, priority, may_begin=False)))
            case Standing(jobs):
                for asked in jobs:
                    self._enter(client, asked)
                self._awaited.discard(client)
                for user, queue in self._queues.items():
                    self._admit(user, queue)
            case Over(job, user):
                queue = self._queues[user]
                self._drop(job, user, queue)
                self._admit(user, queue)

    def _enter(self, client: int, asked: Asked) -> _Queue:
        queue = self._queues.setdefault(asked.user, _Queue())
        queue.client_of[asked.job] = client
        if asked.may_begin:
            queue.at_work.add(asked.job)
        else:
            heapq.heappush(queue.waiting, (-asked.priority, asked.job))
        return queue

    def _drop(self, job: int, user: str, queue: _Queue) -> None:
        del queue.client_of[job]
        queue.at_work.discard(job)
        if not queue.client_of:
            del self._queues[user]

    def _admit(self, user: str, queue: _Queue) -> None:
        if self._awaited:
            return
        limit = self._limit_of(user)
        for job in self._next_of(queue):
            if limit is not None and len(queue.at_work) >= limit:
                break
            heapq.heappop(queue.waiting)
            queue.at_work.add(job)
            self._tell(queue.client_of[job], Begin(job))

    def _next_of(self, queue: _Queue) -> Iterator[int]:
        """The job that is first in the queue, as long as there is one."""
        while queue.waiting:
            job = queue.waiting[0][1]
            if job in queue.client_of and job not in queue.at_work:  # one that moved is there twice
                yield job
            else:
                heapq.heappop(queue.waiting)

    def _tell(self, client: int, message: AdmissionMessage) -> None:
        if client == self._client:
            self.hear(client, message)
        else:
            self.messages.append((client, message))

    def _home_of(self, user: str) -> int:
        return zlib.crc32(user.encode()) % self._clients


_TOLERANCE = 1.1


class Terms(NamedTuple):
    """The terms on which a job works. A bound of 0 is none."""

    priority: float
    max_demand: int


class Work(NamedTuple):
    """The number of jobs at work, and the sum of their priorities as the job files say."""

    jobs: int = 0
    priorities: float = 0.0


class Account(NamedTuple):
    """The account of a user: jobs at work and the sum of their priorities, and the bounds (None: none)."""

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

    def __init__(
        self,
        rules: UserRules,
        pes: int,
        client: int = 0,
        clients: int = 1,
        awaited: Collection[int] | None = None,
    ) -> None:
        """`awaited`: if this client begins anew on another rank, those that go on where they are."""
        self._rules = rules
        self._pes = pes
        self._client = client
        self._clients = clients
        #: its news are urgent: others wait for what `admitted` and `urgent_messages` have to say
        self.admission = Admission(self._limit_of, client, clients, awaited)
        self._jobs: dict[int, _Job] = {}
        #: of jobs at work, as last told
        self._told: dict[int, Terms] = {}
        self._users: dict[str, _User] = {}
        self._elsewhere: dict[int, dict[str, Work]] = {}
        #: users whose jobs' terms are to be looked at again
        self._untold: set[str] = set()
        self._work_has_changed = False
        #: whether `changes` or `work_message` may have something to say
        self.has_news = False
        #: whether there has been more than one user since nothing was at work
        self._divides = False

    def follow(self, pes: int, moved: Collection[int]) -> None:
        """There are so many PEs now: shares of them mean something else. These other clients begin anew."""
        self._pes = pes
        for client in moved:
            self._elsewhere.pop(client, None)
        self.admission.follow(moved)
        self._untold.update(self._users)
        self._work_has_changed |= bool(moved)
        self.has_news = bool(self._untold) or self._work_has_changed

    # --- jobs come and go ---------------------------------------------------------------------

    def ask(self, job: int, user: str, priority: float, max_demand: int) -> None:
        """A job could begin; `admitted` will name it."""
        self._jobs[job] = _Job(user, Terms(priority, max_demand))
        self.admission.ask(job, user, priority)

    def admitted(self) -> list[int]:
        """The jobs that may begin now, each named once."""
        admitted, self.admission.admitted = self.admission.admitted, []
        return [job for job in admitted if job in self._jobs]

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
        self.admission.over(job, one.user)
        self._stops(job, one)

    def rests(self, job: int) -> None:
        """A job is at work no more, and will begin again."""
        self._stops(job, self._jobs[job])

    def _stops(self, job: int, one: _Job) -> None:
        self._told.pop(job, None)
        user = self._users.get(one.user)
        if user is None or job not in user.jobs:
            return
        user.jobs.remove(job)
        user.priorities -= Fraction(one.asked.priority)
        if not user.jobs:
            del self._users[one.user]
        self._work_changes(one.user)

    def _work_changes(self, user: str) -> None:
        self._untold.add(user)
        self._work_has_changed = self.has_news = True
        self._look_who_is_there()

    def _look_who_is_there(self) -> None:
        """Divide among users from the second one on, and until none has anything at work."""
        if self._divides:
            self._divides = bool(self._users) or any(self._elsewhere.values())
        elif len(self._users.keys() | {user for work in self._elsewhere.values() for user in work}) > 1:
            self._divides = True
            self._untold.update(self._users)
            self.has_news = True
            for user in self._users.values():
                user.least = 0.0  # which no sum is near to

    def _limit_of(self, user: str) -> int | None:
        """Return the number of jobs of a user that may be at work, None if any number may."""
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
        """Return the terms on which a job at work begins; from now on `changes` speaks of it."""
        one = self._jobs[job]
        user, elsewhere = self._users[one.user], self._work_elsewhere(one.user)
        total = user.work.priorities + elsewhere.priorities
        user.least, user.most = min(user.least, total), max(user.most, total)
        bound = self._bounds(user, elsewhere).get(job, one.asked.max_demand)
        terms = self._told[job] = Terms(self._priority(user, one, total), bound)
        return terms

    def _priority(self, user: _User, job: _Job, total: float) -> float:
        """Return the priority that a job works with; `total`: of all of its user's jobs at work."""
        if not self._divides:
            return job.asked.priority
        return user.rule.weight * job.asked.priority / total

    def changes(self) -> dict[int, Terms]:
        """The jobs that go on with other terms."""
        changes: dict[int, Terms] = {}
        for name in self._untold & self._users.keys():
            user, elsewhere = self._users[name], self._work_elsewhere(name)
            total = user.work.priorities + elsewhere.priorities
            bounds = self._bounds(user, elsewhere)
            if not (bounds or self._divides):
                continue
            if not bounds and total < user.least * _TOLERANCE and user.most < total * _TOLERANCE:
                continue
            user.least = user.most = total
            for job in user.jobs & self._told.keys():
                one = self._jobs[job]
                terms = Terms(self._priority(user, one, total), bounds.get(job, one.asked.max_demand))
                if terms != self._told[job]:
                    changes[job] = self._told[job] = terms
        self._untold.clear()
        self.has_news = self._work_has_changed
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
        from mallob_py.protocol.volumes import fair_volumes  # brings numpy, which a rank at rest does without

        volumes = fair_volumes([one.priority for one in asked], wishes, pes, job_ids=jobs)
        return dict(zip(jobs, volumes.tolist(), strict=True))

    def account(self, user: str) -> Account:
        """Return the account of a user over all clients, as far as is known here."""
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

    def urgent_messages(self) -> list[tuple[int, UserMessage]]:
        """To which clients what is to be sent at once."""
        messages, self.admission.messages = self.admission.messages, []
        return list(messages)

    def work_message(self) -> AtWork | None:
        """Return the message that goes to all other clients now and then; None if it has not changed."""
        if not self._work_has_changed:
            return None
        self._work_has_changed = False
        self.has_news = bool(self._untold)
        return AtWork({name: user.work for name, user in self._users.items()})

    def hear(self, client: int, message: UserMessage) -> None:
        """Take in a message of another client."""
        if not isinstance(message, AtWork):
            self.admission.hear(client, message)
            return
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
