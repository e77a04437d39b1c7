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

    def __init__(self, capacities: Sequence[int]) -> None:
        assert capacities, "a system has at least one rank"
        assert min(capacities) >= 1, f"each rank hosts at least one PE: {capacities}"
        self.capacities = tuple(capacities)
        #: from a PE to its rank
        self.rank_of = tuple(rank for rank, capacity in enumerate(capacities) for _ in range(capacity))
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
        return range(self._ends[rank] - self.capacities[rank], self._ends[rank])

    def first_pe(self, rank: int) -> int:
        """The PE that speaks for its rank."""
        return self._ends[rank] - self.capacities[rank]

    def describe(self) -> str:
        """In words: "3 ranks", or "3 ranks with 6 PEs" where that is not the same."""
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return ranks if self.size == self.ranks else f"{ranks} with {self.size} PEs"
