"""The rate at which a loop turns shows that one spins, which waits for something that does not come.

A loop that has nothing to do turns once or twice a second. One that is woken, and does not take in what has
woken it, turns thousands of times a second and burns a core, and nothing else tells.
"""

from __future__ import annotations

#: fewer turns a second are those of a loop that rests
RESTS_BELOW = 20


class LoopRate:
    """The turns of one loop."""

    def __init__(self) -> None:
        #: all so far; the loop counts them
        self.turns = 0
        self._last: tuple[float, int] | None = None

    def per_second(self, now: float) -> float:
        """Turns a second since this was last asked; 0 at first."""
        last, self._last = self._last, (now, self.turns)
        if last is None or now <= last[0]:
            return 0.0
        return (self.turns - last[1]) / (now - last[0])


def shown(per_second: float) -> int:
    """In one digit, so that it seldom changes; 0 if the loop rests."""
    if per_second < RESTS_BELOW:
        return 0
    digits = len(str(int(per_second))) - 1
    return int(round(per_second, -digits))
