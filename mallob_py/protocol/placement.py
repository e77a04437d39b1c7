"""Placement: the members of a generation, and the PEs that they host.

Ranks are known by *addresses*, which never change and are never reused. The members of a generation, sorted
by address, are its ranks 0..; PEs are numbered by their capacities (`Placement`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec


class Placement:
    """The table of PEs 0..size-1 on their ranks, equal on every rank.

    A rank is one process with one event loop. It hosts as many PEs as it can run workers at a time: its cores
    or, on machines of unequal speed, its speed in multiples of the slowest. PEs of a rank have consecutive
    numbers. So the protocol and its invariants stay the same, where m is the sum of all capacities; shares
    are fair by capacity, up to one unit; and most neighbours in the tree of PEs (`protocol/rank_tree.py`)
    share an event loop.

    The paper leaves this heterogeneous environment to future work (P 6).
    """

    def __init__(self, capacities: Sequence[int], members: Sequence[int] | None = None) -> None:
        """`members`: numbers of the ranks with these capacities, ascending; None: 0, 1, ..."""
        assert capacities, "a system has at least one rank"
        assert min(capacities) >= 1, f"each rank hosts at least one PE: {capacities}"
        self.capacities = tuple(capacities)
        #: numbers of the ranks, without lost and departed ranks
        self.members = tuple(range(len(capacities)) if members is None else members)
        assert len(self.members) == len(capacities)
        self._place_of = {rank: place for place, rank in enumerate(self.members)}
        #: rank of each PE
        self.rank_of = tuple(
            rank for rank, capacity in zip(self.members, capacities, strict=True) for _ in range(capacity)
        )
        self._ends = tuple(accumulate(capacities))
        #: number of ranks, and number of PEs
        self.ranks, self.size = len(self.capacities), len(self.rank_of)

    def pes_of(self, rank: int) -> range:
        """Return the PEs of a rank."""
        place = self._place_of[rank]
        return range(self._ends[place] - self.capacities[place], self._ends[place])

    def first_pe(self, rank: int) -> int:
        """Return the first PE of a rank, which represents the rank."""
        place = self._place_of[rank]
        return self._ends[place] - self.capacities[place]

    def children(self, rank: int, origin: int) -> list[int]:
        """Return the ranks below this one in the binary tree rooted at `origin`."""
        first = self._place_of[origin]
        place = (self._place_of[rank] - first) % self.ranks
        below = range(2 * place + 1, min(2 * place + 3, self.ranks))
        return [self.members[(first + child) % self.ranks] for child in below]

    def describe(self) -> str:
        """Return the placement in words: "3 ranks", or "3 ranks with 6 PEs" if the numbers differ."""
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return ranks if self.size == self.ranks else f"{ranks} with {self.size} PEs"


def numbers_as_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, such as 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


_COORDINATOR_BITS = 20
ADDRESSES_MAX = 1 << _COORDINATOR_BITS


def name_of(number: int, coordinator: int) -> int:
    """Return the integer g that names a generation; a later generation has a greater g."""
    return number << _COORDINATOR_BITS | (ADDRESSES_MAX - 1 - coordinator)


def number_of(g: int) -> int:
    """Return a generation's number for people: the count of generations, as far as the coordinator knew."""
    return g >> _COORDINATOR_BITS


def coordinator_of(g: int) -> int:
    return ADDRESSES_MAX - 1 - (g & (ADDRESSES_MAX - 1))


class Generation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`members[i]`, an address, is rank i of generation `g`, and hosts `capacities[i]` PEs."""

    g: int
    members: tuple[int, ...]
    capacities: tuple[int, ...]

    @property
    def number(self) -> int:
        return number_of(self.g)

    def rank_of(self, address: int) -> int | None:
        """Return the rank at an address; None: the address is no member's."""
        return self.members.index(address) if address in self.members else None

    def placement(self) -> Placement:
        return Placement(self.capacities)


def first_generation(capacities: tuple[int, ...]) -> Generation:
    """Return the first generation of a system: its ranks have the addresses 0, 1, ..."""
    return Generation(name_of(1, 0), tuple(range(len(capacities))), capacities)


def heir_of(address: int, members: tuple[int, ...]) -> int:
    """Return the member that takes over from a former member: at the next lower address, else the lowest.

    A rank that has missed generations finds the same member, since addresses only grow.
    """
    return members[max(0, bisect_right(members, address) - 1)]


class Succession:
    """The relation between the PEs of two generations: which PEs of `after` follow which PEs of `before`."""

    def __init__(self, before: Generation, after: Generation) -> None:
        #: number of the new generation, and its number of PEs
        self.era = after.number
        self.size = sum(after.capacities)
        old, new = before.placement(), after.placement()
        ranks = {address: rank for rank, address in enumerate(after.members)}
        #: whether only one rank is left; this rank cannot leave
        self.is_alone = len(after.members) == 1
        self._successors: list[int | None] = []
        self._heirs: list[int] = []
        for rank, address in enumerate(before.members):
            heir = new.first_pe(ranks[heir_of(address, after.members)])
            follower = ranks.get(address)
            numbers = range(0) if follower is None else new.pes_of(follower)
            for slot in range(old.capacities[rank]):
                successor = numbers[slot] if slot < len(numbers) else None
                self._successors.append(successor)
                self._heirs.append(heir if successor is None else successor)

    def pe(self, former: int) -> int | None:
        """Return the present number of a former PE; None: the PE is gone."""
        return self._successors[former] if former < len(self._successors) else None

    def heir(self, former: int) -> int:
        """Return the present number of a former PE, or else of the PE that takes over its client."""
        return self._heirs[former]
