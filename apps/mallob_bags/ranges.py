"""Bags of numbered tasks that make no new tasks: sources of a graph, chunks of a sample."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit.bags import Bag


class NumberedBag(Bag):
    """A bag of task numbers, kept as ranges: rows (first, last + 1). A subclass does the tasks."""

    def __init__(self, ranges: NDArray[np.int64]) -> None:
        self._ranges = [(int(first), int(end)) for first, end in ranges if first < end]

    @abstractmethod
    def _with(self, ranges: NDArray[np.int64]) -> Self:
        """Make a bag of the same kind with these ranges."""

    def take(self, count: int) -> range:
        """Remove and return at most `count` tasks. The caller must do them at once."""
        if not self._ranges:
            return range(0)
        first, end = self._ranges.pop()
        taken = range(first, min(end, first + count))
        if taken.stop < end:
            self._ranges.append((taken.stop, end))
        return taken

    def split(self) -> Self | None:
        return self._without(self._open() // 2)

    def split_into(self, parts: int) -> list[Bag]:
        """Split off bags of equal size; this bag keeps a part of that size."""
        each = self._open() // (parts + 1)
        bags = [self._without(max(1, each)) for _ in range(min(parts, self._open() - 1))]
        return [bag for bag in bags if bag is not None]

    def _open(self) -> int:
        return sum(end - first for first, end in self._ranges)

    def _without(self, count: int) -> Self | None:
        """Split off a bag of `count` tasks."""
        given: list[tuple[int, int]] = []
        while count > 0:
            first, end = self._ranges.pop(0)
            middle = min(end, first + count)
            given.append((first, middle))
            count -= middle - first
            if middle < end:
                self._ranges.insert(0, (middle, end))
        return self._with(np.array(given, dtype=np.int64)) if given else None

    def merge(self, other: Bag) -> None:
        assert isinstance(other, NumberedBag)
        self._ranges = other._ranges + self._ranges

    def is_empty(self) -> bool:
        return not self._ranges

    def expected_tasks(self) -> float:
        return float(self._open())

    def to_bytes(self) -> bytes:
        return np.array(self._ranges, dtype="<i8").tobytes()


def ranges_from_bytes(data: bytes) -> NDArray[np.int64]:
    return np.frombuffer(data, dtype="<i8").reshape(-1, 2)
