"""The best solution that a worker knows, whoever has found it: what a search for the best prunes by.

Why a search stays exact though workers die
    Who has heard of a solution does no task that cannot lead to a better one. So the result of its tasks is
    what it is only together with that solution. Therefore whatever a worker tells of its tasks (a settlement,
    what it returns, a checkpoint) holds the best solution that it knows, whole and not its number alone; and
    whoever takes tasks in, takes that in first. So at each moment the best one of all is the one in a state,
    or is below a task that is left in it. Nobody else needs to live, least of all who has found it.

Solutions spread with what is sent anyway (loans, settlements), and from neighbour to neighbour in the job
tree as soon as there is a better one, each worker telling its neighbours once in a while at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mallob_py.kit.bags.bag import BagError
from mallob_py.kit.bags.values import decode_value, encode_value

#: neighbours are told of better solutions at most this often
TELL_S = 0.01


def number_of(best: Any) -> int | float:
    """The quality of a solution. Raises BagError for what cannot be compared."""
    number = best[0] if isinstance(best, tuple) and best else best
    if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
        raise BagError(
            f"the best of a bag must be a number, or a tuple that begins with one, not {best!r:.80}:"
            " write float(...) or int(...) around numpy's numbers"
        )
    return number


class Incumbent:
    """One worker's. `data` is what is sent: b"" as long as there is none."""

    def __init__(self, minimizes: bool) -> None:
        self._minimizes = minimizes
        self.best: Any = None
        self.data = b""
        #: when the neighbours are to be told
        self.tell_s = math.inf
        self._told_s = -math.inf

    def found(self, best: Any, now: float) -> bool:
        """Whether a bag's best is better than all that was known: then it is what is known."""
        if best is None or best is self.best or not self._is_better(best):
            return False
        self._set(best, encode_value(best), now)
        return True

    def heard(self, data: bytes, now: float) -> bool:
        """Whether another worker's best, as sent, is better than all that was known: then it is known."""
        if not data or data == self.data:
            return False
        best = decode_value(data)
        if not self._is_better(best):
            return False
        self._set(best, data, now)
        return True

    def spread(self, now: float, tell: Callable[[bytes], None]) -> None:
        """Tell the neighbours, if they are to be told by now."""
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
