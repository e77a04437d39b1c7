"""The one rule of how often something that has failed is started again.

As with Erlang's supervisors, at most *intensity* restarts are made within a *period*; after them, the caller
gives up and leaves the decision to the level above. docs/failures.md has a table of all cases.
"""

from __future__ import annotations

import math


def backoff_s(first_s: float, longest_s: float, count: int) -> float:
    """Return the delay before try `count` (from 1): `first_s`, doubled with each try up to `longest_s`."""
    return min(first_s * 2.0 ** min(count - 1, 64), longest_s)


class RestartLimit:
    """At most `intensity` restarts within `period_s`, each after a longer delay than the one before."""

    __slots__ = ("_backoff_s", "_intensity", "_period_s", "_restarts_s")

    def __init__(
        self, intensity: int, period_s: float = math.inf, backoff_s: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Set the limit; `backoff_s` holds the first delay, doubled for each restart, and the longest one."""
        self._intensity = intensity
        self._period_s = period_s
        self._backoff_s = backoff_s
        self._restarts_s: list[float] = []

    @property
    def count(self) -> int:
        """Return the number of restarts within the last period, as counted by the last `next_delay_s`."""
        return len(self._restarts_s)

    def next_delay_s(self, now: float = 0.0) -> float | None:
        """Count a restart, and return the delay before it; None if the limit is reached."""
        self._restarts_s = [at_s for at_s in self._restarts_s if at_s > now - self._period_s]
        if self.count >= self._intensity:
            return None
        self._restarts_s.append(now)
        return backoff_s(*self._backoff_s, self.count)

    def forget(self) -> None:
        """Forget the restarts, because what was started works."""
        self._restarts_s.clear()
