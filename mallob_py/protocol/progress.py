"""The progress of a job, as reported by its root, and its rate per second.

Counts may decrease when a new root begins anew, or from its last checkpoint. In that case the rate is
measured anew.
"""

from __future__ import annotations

from collections import deque

import msgspec

#: time over which the rate is measured
WINDOW_S = 5.0


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much is done (out of `total`, if known), counted in `unit` (such as "tasks")."""

    done: float
    total: float | None = None
    unit: str = ""


class Progression:
    """The progress of one job over the last seconds."""

    def __init__(self) -> None:
        self.last: Progress | None = None
        #: (time, amount done) of the last reports; the first report is at or before the begin of the window
        self._reports: deque[tuple[float, float]] = deque()

    def note(self, progress: Progress, now: float) -> None:
        if self.last is not None and progress.done < self.last.done:
            self._reports.clear()
        self.last = progress
        self._reports.append((now, progress.done))
        self._forget(now)

    def rate(self, now: float) -> float:
        """Return the recent rate in units per second; 0 before the second report, and after reports stop."""
        self._forget(now)
        if len(self._reports) < 2:
            return 0.0
        (since_s, before), (_, done) = self._reports[0], self._reports[-1]
        return (done - before) / (now - since_s) if now > since_s else 0.0

    def _forget(self, now: float) -> None:
        while len(self._reports) > 1 and self._reports[1][0] <= now - WINDOW_S:
            self._reports.popleft()
