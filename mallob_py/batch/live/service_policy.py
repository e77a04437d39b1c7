"""A policy for whole jobs over those inside one service: who begins, with how many workers at most.

To the policy, each PE is a node. Here, a job is malleable from its beginning on, and a resize is done when
it is said: the job's bound on workers is another one. Bounds never add up to more than there are PEs, so that
the volumes, which are fair within bounds, are the sizes that the policy wants; the protocol knows nothing of
it. A job that wants fewer workers than it may have leaves the others idle, as nodes of a batch system are.

Of very many that wait, the policy is shown the first `SHOWN_MAX`. Pure: no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mallob_py.batch.job import Job, Kind
from mallob_py.batch.live.scheduler import Launch, LiveScheduler, OrderGrow, OrderShrink
from mallob_py.batch.live.script import ANY_NUMBER
from mallob_py.batch.policy import Policy, PolicyError
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.service import JobFileError
from mallob_py.service.jobs.job_file import JobFile

#: decisions look at all that wait
SHOWN_MAX = 1000


class ServicePolicy:
    """The policy of one client, which decides for all PEs (`service.turns.Decider`)."""

    def __init__(self, policy: Policy, pes: int, complain: Callable[[str], None]) -> None:
        """`complain` is told when a policy wants something impossible, or raises."""
        self._pes = pes
        self._complain = complain
        self._complaint = ""
        self._scheduler = LiveScheduler(policy, pes)
        #: jobs by the policy's numbers, which ascend, and the other way round
        self._jobs: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._count = 0
        #: those that wait unseen, in their order
        self._unseen: dict[int, Job] = {}
        #: bounds of jobs that have begun, as last told, and whose may be others now
        self._told: dict[int, int] = {}
        self._changed: set[int] = set()

    @property
    def name(self) -> str:
        return self._scheduler.policy.name

    def check(self, file: JobFile) -> None:
        """Raises JobFileError for a job that the policy can never begin, or knows too little of."""
        if not file.done and not file.terms.required_time_s:
            text = f"missing: --policy {self.name} has to know how long a job takes, or its wallclock-limit"
            raise JobFileError("required-time", text, file.identity)
        if file.terms.min_workers > self._pes:
            text = f"is {file.terms.min_workers}, but there are {self._pes} PEs"
            raise JobFileError("min-workers", text, file.identity)

    def ask(self, job: int, user: str, terms: JobTerms, since_s: float) -> None:
        """A job could begin; `decide` will name it."""
        low = max(1, terms.min_workers)
        high = max(low, min(terms.max_demand or self._pes, self._pes))
        nodes = min(max(terms.workers or (high if terms.max_demand else low), low), high)
        kind = Kind.MALLEABLE if low < high else Kind.RIGID
        number = self._count
        self._count += 1
        self._jobs[number], self._numbers[job] = job, number
        self._unseen[number] = Job(
            number, since_s, nodes, terms.required_time_s, kind, low, high, ANY_NUMBER, user=user
        )
        self._show()

    def ended(self, job: int) -> None:
        """A job has its reply, begun or not."""
        if (number := self._numbers.pop(job, None)) is None:
            return
        del self._jobs[number]
        self._told.pop(job, None)
        self._changed.discard(job)
        if number in self._scheduler.running:
            self._scheduler.ended(number)
        elif self._unseen.pop(number, None) is None:
            self._scheduler.withdraw(number)
        self._show()

    def resize(self, pes: int) -> None:
        """There are so many PEs now. Jobs at work keep their bounds until the policy changes these."""
        self._pes = pes
        self._scheduler.offer(range(pes))

    def next_deadline(self) -> float:
        """When `decide` has something to say at the latest, by the caller's clock."""
        return -math.inf if self._scheduler.has_news else self._scheduler.wake_s

    def decide(self, now: float) -> list[int]:
        """The jobs that begin now, each named once. Others may have other bounds: see `changes`."""
        scheduler = self._scheduler
        try:
            scheduler.decide(now)
        except PolicyError as error:
            self._tell(str(error))
        except Exception as error:  # a policy of the user's own
            self._tell(f"policy {self.name}: {type(error).__name__}: {error}")
        effects, scheduler.effects = scheduler.effects, []
        begun = []
        for effect in effects:
            number, job = effect.job, self._jobs[effect.job]
            match effect:
                case Launch():
                    scheduler.ready(number)
                    begun.append(job)
                case OrderShrink(_, count):
                    scheduler.released(number, scheduler.running[number].nodes[-count:])
                    self._changed.add(job)
                case OrderGrow():
                    scheduler.grown(number)
                    self._changed.add(job)
        self._show()
        return begun

    def bound(self, job: int) -> int:
        """Return how many workers a job that has begun may have; from now on `changes` speaks of it."""
        bound = self._told[job] = self._scheduler.running[self._numbers[job]].size
        return bound

    def changes(self) -> dict[int, int]:
        """The jobs that go on with another bound than they were told."""
        changes = dict[int, int]()
        for job in sorted(self._changed & self._told.keys()):
            before = self._told[job]
            if self.bound(job) != before:
                changes[job] = self._told[job]
        self._changed.clear()
        return changes

    def _show(self) -> None:
        while self._unseen and len(self._scheduler.waiting) < SHOWN_MAX:
            self._scheduler.submit(self._unseen.pop(next(iter(self._unseen))))

    def _tell(self, complaint: str) -> None:
        """A policy that is wrong once is likely to be so at each event."""
        if complaint != self._complaint:
            self._complaint = complaint
            self._complain(complaint)
