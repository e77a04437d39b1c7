"""Holds: the jobs of a client that may not begin yet, and why.

A job is *held* until its arrival time and until all its dependencies have ended. Dependencies are identities
("user.name"): a live job must end, an ended job is no obstacle, an unknown job is awaited (as in Mallob). A
job may need a *result* of a dependency: if that dependency ends without one, `ready` returns the job at once,
and `lacking` says why. A revision waits for its precursor. If the precursor is interrupted while it is held
itself, the revision waits for the one before, so that a chain's revisions run one after the other. A
*suspect*, a job that was at work at crashes, is held until its trial: suspects begin one after the other, so
that a crash shows which of them caused it.

Pure: no clock, no files. Guarantees: one live job per identity; no cycle among held jobs; memory is bounded
by the live jobs plus `finished_max` identities.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

from mallob_py.protocol.effects import Outcome
from mallob_py.service import JobFileError
from mallob_py.service.jobs.reply import REFUSED


def no_live_job(identity: str) -> JobFileError:
    """Return the error for an interruption without a live job."""
    return JobFileError("interrupt", f"no live job {identity} here (it may have ended already)")


FINISHED_MAX = 100_000
#: greatest number of job names in a message
_TOLD_MAX = 10


_NONE: frozenset[str] = frozenset()
RESULT = Outcome.RESULT.value


@dataclass(slots=True)
class _Admitted:
    job_id: int
    identity: str
    arrival_s: float
    # An empty set is shared: hardly any of a hundred thousand jobs has dependencies.
    unmet: set[str] | frozenset[str] = _NONE
    precursor: str = ""
    interruptions: tuple[int, ...] = ()


#: time after the service's start in which no suspect (a job that may have crashed the service) may begin
QUIET_S = 10.0
#: longest time for which a suspect runs without other suspects; a hanging rank is noticed sooner
TRIAL_S = 60.0


class Suspects:
    """The suspects among the jobs of one client."""

    def __init__(self, now: float) -> None:
        self._trials_from_s = now + QUIET_S
        #: suspects that may not begin yet, in order (a dict is an ordered set)
        self.waiting: dict[int, None] = {}
        self._tried: int | None = None
        self._trial_ends_s = -math.inf

    def wait(self, job: int) -> None:
        """Hold a suspect (a job that may have crashed the service) until `next` returns it."""
        self.waiting[job] = None

    def next(self, now: float) -> int | None:
        """Return the suspect (a job that may have crashed the service) that may begin now, if any."""
        if not self.waiting or now < self.next_deadline():
            return None
        self._tried = next(iter(self.waiting))
        del self.waiting[self._tried]
        self._trial_ends_s = now + TRIAL_S
        return self._tried

    def ended(self, job: int) -> None:
        """Record that a job has its reply."""
        self.waiting.pop(job, None)
        if job == self._tried:
            self._tried, self._trial_ends_s = None, -math.inf

    def next_deadline(self) -> float:
        """Return the time when the next suspect may begin."""
        return max(self._trials_from_s, self._trial_ends_s) if self.waiting else math.inf


class Holds:
    """The held jobs of one client, and all its live jobs by identity and internal id."""

    def __init__(
        self,
        finished: Mapping[str, str] = MappingProxyType({}),
        replied: Callable[[str], str | None] = lambda identity: None,
        is_suspect: Callable[[int], bool] = lambda job: False,
        started_s: float = 0.0,
        finished_max: int = FINISHED_MAX,
    ) -> None:
        """`finished`: identity of an ended job -> its outcome ("": unknown).

        `replied` returns the outcome in the reply of a job that is not in `finished`: "" if the reply states
        none, None if there is no reply. `is_suspect` tells whether a job must not run again after one more
        crash; `started_s`: start of the service.
        """
        self._replied = replied
        self._live: dict[int, _Admitted] = {}
        self._id_of: dict[str, int] = {}
        self._waiting_for: dict[str, set[int]] = {}
        self._arrivals: list[tuple[float, int]] = []
        self._finished: OrderedDict[str, str] = OrderedDict()
        #: job -> dependencies whose result it needs; job -> (dependency without a result, its outcome)
        self._needed: dict[int, frozenset[str]] = {}
        self._lacking: dict[int, tuple[str, str]] = {}
        self._finished_max = finished_max
        self._is_suspect = is_suspect
        self._suspects = Suspects(started_s)
        #: time when `ready` will next return something, unless a job ends earlier
        self.deadline_s = math.inf
        for identity, outcome in finished.items():
            self._remember(identity, outcome)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, identity: str) -> bool:
        return identity in self._id_of

    def admit(
        self,
        job_id: int,
        identity: str,
        arrival_s: float,
        dependencies: Iterable[str],
        precursor: str = "",
        needed: Iterable[str] = (),
    ) -> None:
        """Take in a job, which `ready` will return. Raises JobFileError if it must be refused.

        `precursor`: the former revision, awaited if live. `needed`: dependencies that must end with a result.
        """
        assert job_id not in self._live, f"job {job_id} admitted twice"
        if identity in self._id_of:
            raise JobFileError(
                "name", f"a job {identity} is live; choose another name, or wait for its reply"
            )
        # A job never waits for itself, even if an earlier job of this name has ended.
        unmet = {name for name in dependencies if name == identity or not self.has_ended(name)}
        if precursor in self._id_of:
            unmet.add(precursor)
        if cycle := self._cycle(identity, unmet):
            if len(cycle) > _TOLD_MAX:
                cycle[_TOLD_MAX // 2 : -_TOLD_MAX // 2] = [f"... {len(cycle) - 1} jobs in all ..."]
            path = " -> ".join(cycle)
            raise JobFileError("dependencies", f"closes a cycle of waiting jobs: {path}", identity)
        self._live[job_id] = _Admitted(job_id, identity, arrival_s, unmet or _NONE, precursor)
        self._id_of[identity] = job_id
        for name in unmet:
            self._waiting_for.setdefault(name, set()).add(job_id)
        if all_needed := frozenset(needed):
            self._needed[job_id] = all_needed
        ended = ((name, self._outcome_of(name)) for name in sorted(all_needed - unmet))
        if (lacking := next(((name, how) for name, how in ended if how != RESULT), None)) is not None:
            self._give_up(self._live[job_id], *lacking)
        elif not unmet:
            self._await(arrival_s, job_id)

    def _give_up(self, job: _Admitted, name: str, outcome: str) -> None:
        """Release a job, since a result that it needs will not come."""
        for other in job.unmet:
            self._stop_waiting(other, job.job_id)
        job.unmet = _NONE
        self._lacking[job.job_id] = (name, outcome)
        self._await(-math.inf, job.job_id)

    def lacking(self, job_id: int) -> tuple[str, str] | None:
        """Return the dependency that ended without the needed result, and its outcome ("": unknown)."""
        return self._lacking.get(job_id)

    def _await(self, arrival_s: float, job_id: int) -> None:
        heapq.heappush(self._arrivals, (arrival_s, job_id))
        self.deadline_s = min(self.deadline_s, arrival_s)

    def waits_for(self, job_id: int) -> tuple[Set[str], float]:
        """Return the jobs that must end before a live job is ready, and its arrival time."""
        job = self._live[job_id]
        return job.unmet, job.arrival_s

    def has_ended(self, identity: str) -> bool:
        """Tell whether a job of this identity has existed and none is live."""
        if identity in self._id_of:
            return False
        return identity in self._finished or self._replied(identity) is not None

    def _outcome_of(self, identity: str) -> str:
        return self._finished.get(identity) or self._replied(identity) or ""

    def ready(self, now: float) -> list[int]:
        """Return the jobs that may begin now, each once, earliest arrival first."""
        ready: list[int] = []
        while self._arrivals and self._arrivals[0][0] <= now:
            _, job_id = heapq.heappop(self._arrivals)
            if job_id not in self._live:
                continue
            if job_id not in self._lacking and self._is_suspect(job_id):
                self._suspects.wait(job_id)
            else:
                ready.append(job_id)
        if (suspect := self._suspects.next(now)) is not None:
            ready.append(suspect)
        self._note_deadline()
        return ready

    def _note_deadline(self) -> None:
        while self._arrivals and self._arrivals[0][1] not in self._live:
            heapq.heappop(self._arrivals)
        self.deadline_s = self._arrivals[0][0] if self._arrivals else math.inf
        self.deadline_s = min(self.deadline_s, self._suspects.next_deadline())

    def interrupt(self, identity: str, by_id: int) -> int:
        """Note interruption `by_id` of a live job; return the id of this job, which must then be ended.

        Raises a JobFileError that has no identity: the reply file of that name may hold the result of a job
        that has just ended.
        """
        job_id = self._id_of.get(identity)
        if job_id is None:
            raise no_live_job(identity)
        self._live[job_id].interruptions += (by_id,)
        return job_id

    def ended(self, job_id: int, outcome: str = RESULT) -> list[int]:
        """Release the dependents of an answered job; return the ids of the interruptions settled by that."""
        job = self._live.pop(job_id)
        self._suspects.ended(job_id)
        self._needed.pop(job_id, None)
        self._lacking.pop(job_id, None)
        del self._id_of[job.identity]
        for name in job.unmet:
            self._stop_waiting(name, job_id)
        for waiting_id in self._waiting_for.get(job.identity, ()):
            waiting = self._live[waiting_id]
            if waiting.precursor == job.identity:
                waiting.precursor = job.precursor
                if job.precursor in job.unmet:
                    waiting.unmet |= {job.precursor}
                    self._waiting_for.setdefault(job.precursor, set()).add(waiting_id)
        self._release(job.identity, outcome)
        self._note_deadline()
        return list(job.interruptions)

    def refused(self, identity: str) -> None:
        """Release the dependents of a refused job, which has a reply but never was live."""
        if identity not in self._id_of:
            self._release(identity, REFUSED)

    def _release(self, identity: str, outcome: str) -> None:
        for waiting_id in sorted(self._waiting_for.pop(identity, ())):
            waiting = self._live[waiting_id]
            waiting.unmet -= {identity}
            if outcome != RESULT and identity in self._needed.get(waiting_id, ()):
                self._give_up(waiting, identity, outcome)
            elif not waiting.unmet:
                self._await(waiting.arrival_s, waiting_id)
        self._remember(identity, outcome)

    def _stop_waiting(self, name: str, job_id: int) -> None:
        waiting = self._waiting_for[name]
        waiting.discard(job_id)
        if not waiting:
            del self._waiting_for[name]

    def _remember(self, identity: str, outcome: str) -> None:
        self._finished[identity] = sys.intern(outcome)
        self._finished.move_to_end(identity)
        if len(self._finished) > self._finished_max:
            self._finished.popitem(last=False)

    def _cycle(self, identity: str, dependencies: Iterable[str]) -> list[str]:
        """Return a path from the new job back to itself along unmet dependencies, or []."""
        if identity in dependencies:
            return [identity, identity]
        if identity not in self._waiting_for:
            return []  # usually, no job waits for the new job, so no path leads back
        # The dependencies are sorted, so that a replay finds the same path.
        came_from = dict.fromkeys(sorted(dependencies), identity)
        frontier = list(came_from)
        while frontier:
            name = frontier.pop()
            job_id = self._id_of.get(name)
            for following in sorted(self._live[job_id].unmet) if job_id is not None else ():
                if following == identity:
                    return _way_back(came_from, identity, name)
                if following not in came_from:
                    came_from[following] = name
                    frontier.append(following)
        return []


def _way_back(came_from: dict[str, str], identity: str, last: str) -> list[str]:
    way = [identity]
    name = last
    while name != identity:
        way.append(name)
        name = came_from[name]
    return [*way, identity][::-1]
