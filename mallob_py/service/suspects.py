"""Jobs that may end the service are tried one at a time, after a while in which none of them is at work.

Pure: no clock, no files. A crash in that while, or at another one's trial, has come without them and so
acquits those that wait (see `running_jobs`). Hence whoever kills ranks again and again, for whatever
reason, makes no job guilty: it takes crashes at all of a job's trials, and none between them.
"""

from __future__ import annotations

import math

#: so long after the start no suspect is at work
QUIET_S = 10.0
#: so long a trial lasts at most: longer than ranks that hang take to be noticed
TRIAL_S = 60.0


class Suspects:
    """Those of one client."""

    def __init__(self, now: float) -> None:
        self._trials_from_s = now + QUIET_S
        self._waiting: dict[int, None] = {}
        self._tried: int | None = None
        self._trial_ends_s = -math.inf

    def wait(self, job: int) -> None:
        """It may begin when `next` names it."""
        self._waiting[job] = None

    def next(self, now: float) -> int | None:
        """The one whose trial begins now, if one does."""
        if not self._waiting or now < self.next_deadline():
            return None
        self._tried = next(iter(self._waiting))
        del self._waiting[self._tried]
        self._trial_ends_s = now + TRIAL_S
        return self._tried

    def ended(self, job: int) -> None:
        """A job has its reply, whatever it is."""
        self._waiting.pop(job, None)
        if job == self._tried:
            self._tried, self._trial_ends_s = None, -math.inf

    def next_deadline(self) -> float:
        """When the next trial may begin."""
        return max(self._trials_from_s, self._trial_ends_s) if self._waiting else math.inf
