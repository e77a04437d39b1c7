"""A rank's use of memory and cores, as shown to people: read seldom, and reported in coarse steps."""

from __future__ import annotations

import math
import os

from mallob_py.protocol.rank_messages import RankUse
from mallob_py.runtime.memory import cpu_seconds_of, private_bytes_of, rooms

#: the time between two readings, each of which reads two small files per process of the rank
PERIOD_S = 5.0


class UseMeter:
    """The memory and cores that this rank and its worker processes use."""

    def __init__(self) -> None:
        self._use = RankUse()
        self._read_s = -math.inf
        self._cpu_s = 0.0

    def look(self, now: float) -> RankUse:
        """Return the last reading, at most `PERIOD_S` old."""
        if (since_s := now - self._read_s) >= PERIOD_S:
            pid, cpu_s = os.getpid(), cpu_seconds_of(os.getpid())
            # The sum falls when a process is killed: its CPU time is not counted any more.
            cores = max(0.0, cpu_s - self._cpu_s) / since_s
            left, total = min(rooms(), default=(0, 0))
            self._use = RankUse(
                _coarse(private_bytes_of(pid)), round(cores, 1), _coarse(left), _coarse(total)
            )
            self._read_s, self._cpu_s = now, cpu_s
        return self._use


def _coarse(size_bytes: int) -> int:
    """Round to two significant digits, so that the number seldom changes."""
    return int(float(f"{size_bytes:.2g}"))
