"""The Gantt chart of a live scheduler: jobs on slots over time.

Pure: times come from the caller's clock, which never goes back. At most `BARS_MAX` past bars are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

BARS_MAX = 1000


class Bar(msgspec.Struct):
    """A job on a set of slots from `start_s` to `end_s` (None: the job still has them).

    `share`: the job's share of the slots' cores.
    """

    job: int
    name: str
    slots: Sequence[int]
    start_s: float
    end_s: float | None = None
    share: float = 1.0


class Chart:
    """The present bars of running jobs, and past bars."""

    def __init__(self, ended: Sequence[Bar] = ()) -> None:
        self._ended = deque(ended, BARS_MAX)
        #: running job -> its present bar
        self._open: dict[int, Bar] = {}

    def note(self, now_s: float, moved: Mapping[int, Bar | None]) -> None:
        """Note the present bars of jobs whose slots may have changed; None: the job does not run.

        A job gets a new bar only if its slots have changed.
        """
        for job, bar in moved.items():
            before = self._open.get(job)
            if before is not None:
                if bar is not None and list(bar.slots) == list(before.slots):
                    continue
                before.end_s = max(now_s, before.start_s)
                self._ended.append(self._open.pop(job))
                if bar is not None:
                    bar.start_s = before.end_s
            if bar is not None:
                self._open[job] = bar

    def since(self, time_s: float) -> list[Bar]:
        """Return the bars that end after `time_s` or have not ended, by ascending start."""
        ended = [bar for bar in self._ended if bar.end_s is not None and bar.end_s > time_s]
        return sorted([*ended, *self._open.values()], key=lambda bar: (bar.start_s, bar.job))
