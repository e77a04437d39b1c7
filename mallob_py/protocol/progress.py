"""The progress of a job: what its root says now and then, and what that comes to per second.

Counts may go back: a root that was lost begins anew, or where its last checkpoint was. Then the rate begins
anew, too.
"""

from __future__ import annotations

from collections import deque

import msgspec

#: the rate is that of the last so many seconds
WINDOW_S = 5.0


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The amount that is done, of `total` where that is known, counted in `unit` (such as "tasks")."""

    done: float
    total: float | None = None
    unit: str = ""


class Progression:
    """The progress of one job over the last seconds."""

    def __init__(self) -> None:
        self.last: Progress | None = None
        #: (when, how much was done), the first one at or before the window
        self._reports: deque[tuple[float, float]] = deque()

    def note(self, progress: Progress, now: float) -> None:
        if self.last is not None and progress.done < self.last.done:
            self._reports.clear()
        self.last = progress
        self._reports.append((now, progress.done))
        self._forget(now)

    def rate(self, now: float) -> float:
        """Units per second, lately; 0 before the second report, and where nothing is reported any more."""
        self._forget(now)
        if len(self._reports) < 2:
            return 0.0
        (since_s, before), (_, done) = self._reports[0], self._reports[-1]
        return (done - before) / (now - since_s) if now > since_s else 0.0

    def _forget(self, now: float) -> None:
        while len(self._reports) > 1 and self._reports[1][0] <= now - WINDOW_S:
            self._reports.popleft()
