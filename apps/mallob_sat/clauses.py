"""Sets of short learned clauses as flat arrays: what workers of a job exchange.

Best first: by length, then by glue (literal block distance, LBD). All operations are vectorised,
since a worker handles some 10^4 clauses per second beside its search.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Literals

Hashes: TypeAlias = NDArray[np.uint64]

#: lengths and glues travel as bytes
LENGTH_MAX = 255
_COUNT = struct.Struct("<I")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Clauses:
    """`literals` holds the clauses one after the other, `lengths` and `glues` have an entry for each."""

    lengths: NDArray[np.uint8]
    glues: NDArray[np.uint8]
    literals: Literals

    @classmethod
    def none(cls) -> Clauses:
        return cls(np.zeros(0, np.uint8), np.zeros(0, np.uint8), np.zeros(0, np.int32))

    @classmethod
    def of(cls, lengths: NDArray[Any], literals: NDArray[Any], glues: NDArray[Any] | None = None) -> Clauses:
        """Clauses in any order, none longer than LENGTH_MAX. An unknown glue counts as its upper bound."""
        if glues is None:
            glues = lengths
        clauses = cls(lengths.astype(np.uint8), glues.astype(np.uint8), literals.astype(np.int32))
        return clauses._in_order()

    def __len__(self) -> int:
        return self.lengths.size

    def best(self, literals_max: int) -> tuple[Clauses, Clauses]:
        """The best ones with at most so many literals in all, and the rest."""
        count = int(np.searchsorted(np.cumsum(self.lengths, dtype=np.int64), literals_max, side="right"))
        split = int(self.lengths[:count].sum(dtype=np.int64))
        return (
            Clauses(self.lengths[:count], self.glues[:count], self.literals[:split]),
            Clauses(self.lengths[count:], self.glues[count:], self.literals[split:]),
        )

    def where(self, chosen: NDArray[np.bool_]) -> Clauses:
        """Those for which `chosen` is true, in the same order."""
        if chosen.all():
            return self
        return Clauses(
            self.lengths[chosen], self.glues[chosen], self.literals[np.repeat(chosen, self.lengths)]
        )

    def hashes(self) -> Hashes:
        """One number for each clause that does not depend on the order of its literals."""
        if not len(self):
            return np.zeros(0, np.uint64)
        mixed = self.literals.astype(np.uint64)  # negative ones wrap around
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
        mixed ^= mixed >> np.uint64(31)
        return np.add.reduceat(mixed, self._starts())

    def renamed(self, names: Literals) -> Clauses:
        """With variable v called `names[v]`."""
        literals = names[np.abs(self.literals)] * np.sign(self.literals)
        return Clauses(self.lengths, self.glues, literals.astype(np.int32))

    def lists(self) -> list[list[int]]:
        """One list of literals for each clause."""
        literals = self.literals.tolist()
        starts, lengths = self._starts().tolist(), self.lengths.tolist()
        return [literals[start : start + length] for start, length in zip(starts, lengths, strict=True)]

    def encode(self) -> bytes:
        parts = (self.lengths, self.glues, self.literals.astype("<i4"))
        return _COUNT.pack(len(self)) + b"".join(part.tobytes() for part in parts)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Clauses:
        (count,) = _COUNT.unpack_from(data)
        lengths = np.frombuffer(data, np.uint8, count, _COUNT.size)
        glues = np.frombuffer(data, np.uint8, count, _COUNT.size + count)
        literals = np.frombuffer(data, "<i4", int(lengths.sum(dtype=np.int64)), _COUNT.size + 2 * count)
        return cls(lengths, glues, literals.astype(np.int32))

    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    def _in_order(self) -> Clauses:
        order = np.lexsort((self.glues, self.lengths))
        lengths = self.lengths[order]
        begins = np.cumsum(lengths, dtype=np.int64) - lengths
        places = np.repeat(self._starts()[order] - begins, lengths) + np.arange(self.literals.size)
        return Clauses(lengths, self.glues[order], self.literals[places])


def union(parts: Sequence[Clauses]) -> Clauses:
    """All clauses of these sets, each once."""
    together = Clauses(
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.glues for part in parts]),
        np.concatenate([part.literals for part in parts]),
    )._in_order()
    chosen = np.zeros(len(together), np.bool_)
    chosen[np.unique(together.hashes(), return_index=True)[1]] = True
    return together.where(chosen)


class KnownClauses:
    """Remembers clauses by their hashes, the latest ones for certain; what is very old is forgotten."""

    def __init__(self, capacity: int = 500_000) -> None:
        self._capacity = capacity
        self._young: set[int] = set()
        self._old: set[int] = set()

    @property
    def size(self) -> int:
        """How many are remembered."""
        return len(self._young) + len(self._old)

    def take_new(self, clauses: Clauses) -> Clauses:
        """Those that are not known yet; from now on they are."""
        hashes = clauses.hashes().tolist()
        young, old = self._young, self._old
        new = np.fromiter((each not in young and each not in old for each in hashes), np.bool_, len(hashes))
        young.update(hashes)
        if len(young) > self._capacity:
            self._young, self._old = set(), young
        return clauses.where(new)
