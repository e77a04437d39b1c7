"""QUEENS: in how many ways can n queens stand on a board of n x n so that none attacks another?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mallob_bags.compiled import compiled, kernel
from mallob_bags.declaration import QueensDeclaration
from mallob_bags.numbers import refuse_unknown, whole_number
from mallob_py.kit import Payload
from mallob_py.kit.bags import Bag, BagApplication

N_MAX = 30
#: a board with at most this number of remaining rows is not given to another worker
ROWS_NOT_SHARED = 5


@compiled("i8(i8[:,::1], i8, i8, i8, i8[::1])")
def _expand(stack: NDArray[np.int64], size: int, count: int, n: int, found: NDArray[np.int64]) -> int:
    """Replace up to `count` boards of the stack by their successors; return the new size of the stack.

    A board is three bit sets: the columns that its queens attack in the next row, along their columns, along
    one direction of diagonals, and along the other.
    """
    full = (1 << n) - 1
    done = 0
    while size > 0 and done < count:
        size -= 1
        columns, left, right = stack[size, 0], stack[size, 1], stack[size, 2]
        done += 1
        free = full & ~(columns | left | right)
        while free:
            queen = free & -free
            free ^= queen
            if columns | queen == full:
                found[0] += 1
            else:
                stack[size, 0] = columns | queen
                stack[size, 1] = (left | queen) << 1 & full
                stack[size, 2] = (right | queen) >> 1
                size += 1
    found[1] = done
    return size


class QueensBag(Bag):
    """Boards whose first rows are filled, as a stack with the fullest board on top."""

    def __init__(self, n: int, boards: NDArray[np.int64]) -> None:
        self._n = n
        self._size = len(boards)
        #: the stack, with room for all boards that may wait: at most n - 1 more in each of n rows
        self._stack = np.zeros((len(boards) + n * n + 1, 3), dtype=np.int64)
        self._stack[: self._size] = boards
        self._found = np.zeros(2, dtype=np.int64)

    def process(self, count: int) -> int:
        self._size = int(_expand(self._stack, self._size, count, self._n, self._found))
        return int(self._found[1])

    def split(self) -> QueensBag | None:
        """Split off every second board with more than ROWS_NOT_SHARED remaining rows."""
        boards = self._stack[: self._size]
        filled = np.bitwise_count(boards[:, 0]).astype(np.int64)
        large = np.flatnonzero(self._n - filled > ROWS_NOT_SHARED)
        if len(large) < 2:
            return None
        keep = np.ones(self._size, dtype=bool)
        keep[large[::2]] = False
        given = QueensBag(self._n, boards[~keep])
        kept = boards[keep]
        self._stack[: len(kept)] = kept
        self._size = len(kept)
        return given

    def merge(self, other: Bag) -> None:
        assert isinstance(other, QueensBag)
        merged = np.concatenate([other._stack[: other._size], self._stack[: self._size]])
        self._stack = np.zeros((len(merged) + self._n * self._n + 1, 3), dtype=np.int64)
        self._stack[: len(merged)] = merged
        self._size = len(merged)

    def is_empty(self) -> bool:
        return self._size == 0

    def take_result(self) -> int:
        solutions = int(self._found[0])
        self._found[0] = 0
        return solutions

    def to_bytes(self) -> bytes:
        return self._stack[: self._size].astype("<i8").tobytes()


class QueensApplication(QueensDeclaration, BagApplication):
    """QUEENS for `n` queens; reply: `value`, the number of solutions."""

    rehearsal: ClassVar[Mapping[str, Any] | None] = {"n": 8}

    def check(self, configuration: Mapping[str, Any]) -> None:
        refuse_unknown(configuration, ("n",))
        whole_number(configuration, "n", 1, N_MAX)

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return QueensBag(whole_number(configuration, "n", 1, N_MAX), np.zeros((1, 3), dtype=np.int64))

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return QueensBag(
            whole_number(configuration, "n", 1, N_MAX), np.frombuffer(data, dtype="<i8").reshape(-1, 3)
        )

    def fields(self, result: int, configuration: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"value": result, "kernel": kernel("python")}
