"""The incumbent: the best solution known to a worker, found by any worker. A search prunes its tree by it.

Why a search stays exact though workers die
    A worker that knows a solution skips tasks that cannot lead to a better solution. So the result of its
    tasks is valid only together with this solution. Therefore each report of tasks (a settlement, a return,
    a checkpoint) contains the whole best solution that the worker knows, not only its number; and a receiver
    takes in the solution before the tasks. So at each moment the root's state contains the best solution of
    all, or a task that leads to it. No other worker needs to survive, not even the finder.

Solutions spread with loans and settlements. Each better solution is also sent from neighbour to neighbour in
the job tree, at most every `TELL_S`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mallob_py.kit.app import OFFER_INTEGER_MAX, OFFER_INTEGER_MIN
from mallob_py.kit.bags.bag import BagError
from mallob_py.kit.bags.values import decode_value, encode_value

#: shortest time between two messages to neighbours
TELL_S = 0.01


def number_of(best: Any) -> int | float:
    """Return the number that is the quality of a solution. Raises BagError if it cannot be compared."""
    number = best[0] if isinstance(best, tuple) and best else best
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise BagError(
            f"the best of a bag must be a number, or a tuple that begins with a number, not {best!r:.80};"
            " convert numpy's numbers by float(...) or int(...)"
        )
    # The root offers each solution, so the number must be one that can be offered.
    if isinstance(number, int) and not OFFER_INTEGER_MIN <= number <= OFFER_INTEGER_MAX:
        raise BagError(
            "the best of a bag must be a number, an integer from -2^63 to 2^64-1 or a float,"
            f" not an integer of {number.bit_length()} bits"
        )
    if not math.isfinite(number):
        raise BagError(
            f"the best of a bag must be a number that is finite, not {number!r};"
            " without a solution, it is None"
        )
    return int(number) if isinstance(number, int) else float(number)


class Incumbent:
    """One worker's best solution. `data`: the bytes to send; b"": no solution yet."""

    def __init__(self, minimizes: bool) -> None:
        self._minimizes = minimizes
        self.best: Any = None
        self.data = b""
        #: time at which the neighbours must be sent the best solution; infinity: nothing new to send
        self.tell_s = math.inf
        self._told_s = -math.inf

    def found(self, best: Any, now: float) -> bool:
        """Take over a bag's best solution if it beats the known solution; return whether it does."""
        if best is None or best is self.best or not self._is_better(best):
            return False
        self._set(best, encode_value(best), now)
        return True

    def heard(self, data: bytes, now: float) -> bool:
        """Take over another worker's best solution if it beats the known solution; return whether it does."""
        if not data or data == self.data:
            return False
        best = decode_value(data)
        if not self._is_better(best):
            return False
        self._set(best, data, now)
        return True

    def spread(self, now: float, tell: Callable[[bytes], None]) -> None:
        """Send the best solution to the neighbours if it is time."""
        if now >= self.tell_s:
            self.tell_s = math.inf
            self._told_s = now
            tell(self.data)

    def _is_better(self, best: Any) -> bool:
        number = number_of(best)
        if self.best is None:
            return True
        known = number_of(self.best)
        return number < known if self._minimizes else number > known

    def _set(self, best: Any, data: bytes, now: float) -> None:
        self.best, self.data = best, data
        self.tell_s = min(self.tell_s, max(now, self._told_s + TELL_S))
