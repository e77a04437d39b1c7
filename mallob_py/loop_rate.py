"""The rate at which a loop turns, by which a spinning loop is noticed.

A loop that has nothing to do turns once or twice a second. A loop that is woken, and does not read what has
woken it, turns thousands of times a second and burns a core; no other measure shows this.
"""

from __future__ import annotations

#: turns a second below which a loop counts as at rest
RESTS_BELOW = 20


class LoopRate:
    """Measures the rate of turns of one loop."""

    def __init__(self) -> None:
        #: turns so far, which the loop itself counts
        self.turns = 0
        self._last: tuple[float, int] | None = None

    def per_second(self, now: float) -> float:
        """Return the turns per second since the last call; 0 at the first call."""
        last, self._last = self._last, (now, self.turns)
        if last is None or now <= last[0]:
            return 0.0
        return (self.turns - last[1]) / (now - last[0])


def shown(per_second: float) -> int:
    """Round a rate to one significant digit, so that it seldom changes; 0 if the loop is at rest."""
    if per_second < RESTS_BELOW:
        return 0
    digits = len(str(int(per_second))) - 1
    return int(round(per_second, -digits))
