"""Turnover: new jobs of a client that no PE has heard of, and PEs handed from job to job in a burst.

In a burst of small jobs, new jobs *stand by* while all other jobs, as far as known, are *fresh* jobs of this
client: submitted, and not running for long yet. When a fresh job ends unknown to other PEs, its PE is handed
to the standby job of best standing, and no other PE hears of either job. Standby jobs are published once no
fresh job is left and no PE can be handed on, or once no fresh job has ended for a moment
(`Config.turnover_max_s`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Set

from mallob_py.protocol.config import Config

#: greatest and smallest number of last jobs whose run times are a guess at the next jobs' run times
_LIVES_MAX, _LIVES_MIN = 8, 4
_TIMES_AS_LONG = 3


class Turnover:
    """The new jobs of one client, each with its `standing`."""

    def __init__(self, config: Config, pes: int) -> None:
        self._moment_s = config.turnover_max_s
        self._pes = pes
        self._brief_s = config.brief_s
        #: run times of the last jobs' roots
        self._lives_s: deque[float] = deque(maxlen=_LIVES_MAX)
        #: submitted jobs that no epoch has named yet
        self.unseen: set[int] = set()
        #: jobs that wait until a fresh (just submitted) job ends, with their standings
        self.standby: dict[int, float] = {}
        self.fresh: set[int] = set()
        #: time when a fresh (just submitted) job last ended
        self._ended_s = -math.inf

    def is_plenty(self, total_volume: int) -> bool:
        """Return whether all jobs, including running jobs that no other PE knows, leave PEs over."""
        return self._pes - total_volume > len(self.unseen) - len(self.standby)

    def submit(self, job: int, standing: float, may_wait: bool, live: Set[int]) -> bool:
        """Note a new job; return whether it must wait for another to end. `live`: jobs that all PEs know."""
        self.unseen.add(job)
        if may_wait and self._moment_s and self.fresh and live <= self.fresh:
            self.standby[job] = standing
            return True
        self.fresh.add(job)
        return False

    def call(self, job: int) -> None:
        """Let a job begin that has waited for another job's end."""
        del self.standby[job]
        self.fresh.add(job)

    def best(self) -> int:
        """Return the job of best standing among the jobs that wait for another job's end."""
        return max(self.standby, key=lambda job: (self.standby[job], -job))

    def waits_until(self, job: int, sought_s: float) -> float:
        """Return the time until which a job remains unpublished. `sought_s`: when a PE was first sought."""
        if job in self.standby:
            return self._ended_s + self._moment_s
        return sought_s + self._moment_s if self.standby else -math.inf

    def growth_delay_s(self, delay_s: float) -> float:
        """Return how long a root runs before its job asks for more workers.

        Other jobs may wait for the PEs that these workers would take; and if the last jobs were brief, this
        job may be brief, too.
        """
        if self.standby:
            return max(delay_s, self._moment_s)
        if len(self._lives_s) < _LIVES_MIN:
            return delay_s
        usual_s = sorted(self._lives_s)[len(self._lives_s) // 2]
        return max(delay_s, _TIMES_AS_LONG * usual_s) if usual_s <= self._brief_s else delay_s

    def end(self, job: int, started_s: float | None, now: float) -> bool:
        """Forget an ended job, first run at `started_s`; return whether other new jobs waited for its end."""
        if started_s is not None:
            self._lives_s.append(now - started_s)
        was_fresh = job in self.fresh
        self.forget(job)
        self.fresh.discard(job)
        if was_fresh:
            self._ended_s = now
        return was_fresh and bool(self.standby)

    def forget(self, job: int) -> bool:
        """Record that an epoch has named a job, or none will; return whether the job was unseen until now."""
        self.standby.pop(job, None)
        if job not in self.unseen:
            return False
        self.unseen.remove(job)
        return True
