"""The number of processes that an evolving program wishes for, computed from the work left.

A process is worth its start if `PAYS_S` seconds of work are left for it: to start and to end a process takes
about a second. Work is measured in CPU time, because its duration depends on what else the host does.

Estimates of the work left are noisy, and each change of the number of processes costs the program time. So
the wish changes only if the last `LOOKS` estimates are all above it, or all below it, by more than the factor
`BAND`; the new wish is the estimate nearest to the former wish. Hence estimates that stay within a factor
`BAND` of each other change the wish at most once.
"""

from __future__ import annotations

import math
from collections import deque

#: CPU time [s] that must be left for each process
PAYS_S = 2.0
#: number of estimates that must agree
LOOKS = 4
#: factor within which an estimate counts as equal to the wish
BAND = 1.5
#: the wish of a program that does not know how much work is left
MANY = 1_000_000


class Expectation:
    """The work that a program expects to be left, from repeated looks at its progress, and its wish."""

    def __init__(self) -> None:
        self._wish = 1.0
        self._estimates: deque[float] = deque(maxlen=LOOKS)
        #: (work done, CPU time) at the first look, or at the last look that found less work done than before
        self._first: tuple[float, float] | None = None
        self._done = 0.0

    def look(self, done: float, total: float | None, cpu_s: float) -> int | None:
        """Take in the work done and all processes' CPU time; return the wish, None if too little is known.

        `total`: the whole work; None: unknown.
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
