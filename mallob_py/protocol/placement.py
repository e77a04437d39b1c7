"""Which PEs a rank hosts: capacities in whole units, and a unit is a PE of the protocol.

A rank is one process with one event loop. It hosts as many PEs as it can run workers at a
time: its cores or, on machines of unequal speed, its speed in multiples of the slowest. The
PEs of a rank have consecutive numbers. So the protocol and its invariants stay as they are,
with m the sum of all capacities; shares are fair by capacity, up to one unit; and most
neighbours in the tree of PEs (`protocol/rank_tree.py`) share an event loop.

This is the heterogeneous environment that the paper leaves to future work (P 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


class Placement:
    """The PEs 0..size-1 on their ranks, the same table on every rank."""

    def __init__(self, capacities: Sequence[int], members: Sequence[int] | None = None) -> None:
        """`members`: the numbers of the ranks with these capacities, ascending; None: 0 and so on."""
        assert capacities, "a system has at least one rank"
        assert min(capacities) >= 1, f"each rank hosts at least one PE: {capacities}"
        self.capacities = tuple(capacities)
        #: the ranks, of which some numbers may be missing: ranks that were lost or have left
        self.members = tuple(range(len(capacities)) if members is None else members)
        assert len(self.members) == len(capacities)
        self._place_of = {rank: place for place, rank in enumerate(self.members)}
        #: from a PE to its rank
        self.rank_of = tuple(
            rank for rank, capacity in zip(self.members, capacities, strict=True) for _ in range(capacity)
        )
        self._ends = tuple(accumulate(capacities))

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.capacities)

    @property
    def size(self) -> int:
        """How many PEs there are."""
        return len(self.rank_of)

    def pes_of(self, rank: int) -> range:
        """The PEs of a rank."""
        place = self._place_of[rank]
        return range(self._ends[place] - self.capacities[place], self._ends[place])

    def first_pe(self, rank: int) -> int:
        """The PE that speaks for its rank."""
        place = self._place_of[rank]
        return self._ends[place] - self.capacities[place]

    def children(self, rank: int, origin: int) -> list[int]:
        """The ranks below this one in the binary tree of all ranks whose root is `origin`."""
        first = self._place_of[origin]
        place = (self._place_of[rank] - first) % self.ranks
        below = range(2 * place + 1, min(2 * place + 3, self.ranks))
        return [self.members[(first + child) % self.ranks] for child in below]

    def describe(self) -> str:
        """In words: "3 ranks", or "3 ranks with 6 PEs" where that is not the same."""
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return ranks if self.size == self.ranks else f"{ranks} with {self.size} PEs"
