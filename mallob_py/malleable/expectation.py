"""The number of processes that an evolving program wishes for, by the work that it expects to be left.

A process pays if `PAYS_S` seconds of work are left for it: to start and to end a process takes about a
second. Work is counted in CPU time, as the speed in seconds of the clock depends on what else the host does.

Estimates of the work left are noisy, and each change costs the program time. So a wish changes only if the
last `LOOKS` estimates are all above it by more than the factor `BAND`, or all below it, and becomes the
estimate that is nearest to it. Hence estimates that stay within a factor `BAND` of each other change a wish
once at most.
"""

from __future__ import annotations

import math
from collections import deque

#: CPU time [s] that must be left for each process
PAYS_S = 2.0
#: number of estimates that must agree
LOOKS = 4
#: factor within which estimates and wishes count as equal
BAND = 1.5
#: the wish of a program that does not know how much work is left
MANY = 1_000_000


class Expectation:
    """What a program expects, from repeated looks at its progress, and its wish."""

    def __init__(self) -> None:
        self._wish = 1.0
        self._estimates: deque[float] = deque(maxlen=LOOKS)
        #: (work done, CPU time) at the first look, or when work was lost
        self._first: tuple[float, float] | None = None
        self._done = 0.0

    def look(self, done: float, total: float | None, cpu_s: float) -> int | None:
        """Return the wish after a look at the work done, the whole work (None: unknown), and the CPU time of
        all processes; None: too little is known.
        """
        if self._first is None or done < self._done:
            self._first = (done, cpu_s)
        self._done = done
        first_done, first_s = self._first
        if done > first_done and cpu_s > first_s:
            speed = (done - first_done) / (cpu_s - first_s)
            left_s = math.inf if total is None else max(0.0, total - done) / speed
            self._estimates.append(min(MANY, max(1.0, left_s / PAYS_S)))
        if len(self._estimates) < LOOKS:
            return None
        if min(self._estimates) > BAND * self._wish:
            self._wish = min(self._estimates)
        elif BAND * max(self._estimates) < self._wish:
            self._wish = max(self._estimates)
        return int(self._wish)
