"""A rank's book of present and coming ranks: their processes, hosts, and the addresses taken."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from mallob_py.protocol.placement import Placement, numbers_as_ranges
from mallob_py.protocol.rank_messages import Peer, Place, RankProcess

#: greatest number of ranks that a message names one by one
_TOLD_EACH_MAX = 4


class Origin(msgspec.Struct, frozen=True):
    """What each rank knows of the system's start, equal on all; `founders`: capacities of the first ranks."""

    founders: tuple[int, ...]
    #: time of the start, in seconds since 1970
    start_s: float = 0.0
    #: rank -> its process, and rank -> its host, named by the lowest rank ever on this host
    processes: dict[int, RankProcess] = {}
    hosts: dict[int, int] = {}

    def first_logged(self, rank: int, capacity: int, founders: Placement) -> int:
        """Return the number that logs use for a rank's first PE, in all generations."""
        if rank < founders.ranks:
            return founders.first_pe(rank)
        return founders.size + (rank - founders.ranks) * capacity


class RankBook:
    """What one rank knows of all ranks; newcomers are told parts of it. Addresses below `bound` are taken."""

    def __init__(self, origin: Origin, bound: int) -> None:
        self.start_s, self.founders = origin.start_s, origin.founders
        self._processes, self._hosts = origin.processes, origin.hosts
        self.bound = bound
        #: rank -> how it was lost, if this rank noticed the loss
        self._how_lost: dict[int, str] = {}

    def take(self, bound: int) -> None:
        """Record that all addresses below `bound` are taken."""
        self.bound = max(self.bound, bound)

    def expect(self, rank: int, host: int, process: RankProcess) -> None:
        """Note a rank that may join."""
        self.take(rank + 1)
        self._processes = {**self._processes, rank: process}  # other ranks may share the old dict
        self._hosts = {**self._hosts, rank: host}

    def describe(self, rank: int) -> str:
        """Name a rank with its process and host, as far as known."""
        process = self._processes.get(rank)
        return f"rank {rank}" if process is None else f"rank {rank} ({process})"

    def lose(self, rank: int, how: str) -> str:
        """Record that this rank has noticed another rank's loss; return the sentence about it."""
        message = f"{self.describe(rank)} {how}"
        self._how_lost.setdefault(rank, message)
        return message

    def how_gone(self, rank: int) -> str:
        """Return the sentence about a lost rank."""
        return self._how_lost.get(rank, f"{self.describe(rank)} was lost")

    def how_moved(self, ranks: Collection[int], manner: str) -> list[str]:
        """Say that ranks have "left" or "joined" (`manner`): a sentence per rank, or one for many ranks."""
        if len(ranks) <= _TOLD_EACH_MAX:
            return [self._how_lost.get(rank, f"{self.describe(rank)} has {manner}") for rank in ranks]
        return [f"{len(ranks)} ranks ({numbers_as_ranges(ranks)}) have {manner}"]

    def are_together(self, rank: int, other: int) -> bool:
        """Tell whether two ranks are known to be on one host."""
        host = self._hosts.get(rank)
        return host is not None and host == self._hosts.get(other)

    def peer(self, rank: int, place: Place | None) -> Peer:
        """Return a known rank with the place where it listens."""
        return Peer(rank, self._hosts[rank], self._processes[rank], place)
