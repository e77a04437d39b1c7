"""The one rule of how often something that has died is started again.

As Erlang's supervisors: at most an *intensity* of restarts within a *period*; beyond it, whoever has asked
gives up, and whoever is above decides. Who that is in each case stands in a table of docs/failures.md.
"""

from __future__ import annotations

import math


def backoff_s(first_s: float, longest_s: float, count: int) -> float:
    """The delay before try number `count`, from 1 on: `first_s`, and twice as long each time."""
    return min(first_s * 2.0 ** min(count - 1, 64), longest_s)


class RestartLimit:
    """At most `intensity` restarts within `period_s`, each after a longer delay than the one before."""

    __slots__ = ("_backoff_s", "_intensity", "_period_s", "_restarts_s")

    def __init__(
        self, intensity: int, period_s: float = math.inf, backoff_s: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """`backoff_s`: the first delay, which doubles, and the longest one."""
        self._intensity = intensity
        self._period_s = period_s
        self._backoff_s = backoff_s
        self._restarts_s: list[float] = []

    @property
    def count(self) -> int:
        """Restarts within the last period."""
        return len(self._restarts_s)

    def next_delay_s(self, now: float = 0.0) -> float | None:
        """The delay before a restart that is wanted now, which is counted; None if there were enough."""
        self._restarts_s = [at_s for at_s in self._restarts_s if at_s > now - self._period_s]
        if self.count >= self._intensity:
            return None
        self._restarts_s.append(now)
        return backoff_s(*self._backoff_s, self.count)

    def forget(self) -> None:
        """Forget the restarts: what was started does its work."""
        self._restarts_s.clear()
