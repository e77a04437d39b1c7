"""The new jobs of a client, of which no PE has heard, and the PEs that go from one to the next in a burst.

In a burst of small jobs, new jobs *stand by* while all others, as far as is known, are *fresh* jobs of this
client: submitted, and not yet running for long. When a fresh job ends of which no PE has heard, its PE is
handed to the standby job of best standing, and again no PE hears of either. Standby jobs are published as
soon as other jobs deserve all PEs and no fresh job is left, or none has ended for a moment.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Set

from mallob_py.protocol.config import Config

#: the last jobs of a client that tell how long its next ones may run; of fewer nothing follows
_LIVES_MAX, _LIVES_MIN = 8, 4
_TIMES_AS_LONG = 3


class Turnover:
    """The jobs of one client that are new; each has told its `standing`."""

    def __init__(self, config: Config, pes: int) -> None:
        self._moment_s = config.turnover_max_s
        self._pes = pes
        self._brief_s = config.brief_s
        #: how long the roots of the last jobs have run
        self._lives_s: deque[float] = deque(maxlen=_LIVES_MAX)
        #: submitted, but in no epoch yet
        self.unseen: set[int] = set()
        #: of these, with their standings, those that wait until a fresh job ends
        self.standby: dict[int, float] = {}
        self.fresh: set[int] = set()
        #: when a fresh job ended last
        self._ended_s = -math.inf

    def is_plenty(self, total_volume: int) -> bool:
        """Return whether there are more PEs than jobs deserve, those that run unseen included."""
        return self._pes - total_volume > len(self.unseen) - len(self.standby)

    def submit(self, job: int, standing: float, may_wait: bool, live: Set[int]) -> bool:
        """Note a new job; return whether it stands by. `live`: the jobs that all PEs know."""
        self.unseen.add(job)
        if may_wait and self._moment_s and self.fresh and live <= self.fresh:
            self.standby[job] = standing
            return True
        self.fresh.add(job)
        return False

    def call(self, job: int) -> None:
        """Have a standby job wait no more."""
        del self.standby[job]
        self.fresh.add(job)

    def best(self) -> int:
        """Return the standby job of best standing."""
        return max(self.standby, key=lambda job: (self.standby[job], -job))

    def waits_until(self, job: int, sought_s: float) -> float:
        """Return until when a job remains unpublished if nothing happens. `sought_s`: when it got its PE."""
        if job in self.standby:
            return self._ended_s + self._moment_s
        return sought_s + self._moment_s if self.standby else -math.inf

    def growth_delay_s(self, delay_s: float) -> float:
        """Return how long a root runs before its job asks for more workers.

        Standby jobs may want these; and if the last jobs were brief, this one may be over soon as well.
        """
        if self.standby:
            return max(delay_s, self._moment_s)
        if len(self._lives_s) < _LIVES_MIN:
            return delay_s
        usual_s = sorted(self._lives_s)[len(self._lives_s) // 2]
        return max(delay_s, _TIMES_AS_LONG * usual_s) if usual_s <= self._brief_s else delay_s

    def end(self, job: int, started_s: float | None, now: float) -> bool:
        """Forget a job that has ended; return whether standby jobs have waited for that.

        `started_s`: when its root ran first, if it did.
        """
        if started_s is not None:
            self._lives_s.append(now - started_s)
        was_fresh = job in self.fresh
        self.forget(job)
        self.fresh.discard(job)
        if was_fresh:
            self._ended_s = now
        return was_fresh and bool(self.standby)

    def forget(self, job: int) -> bool:
        """Note that a job is in an epoch, or will be in none; return whether that is news."""
        self.standby.pop(job, None)
        if job not in self.unseen:
            return False
        self.unseen.remove(job)
        return True
