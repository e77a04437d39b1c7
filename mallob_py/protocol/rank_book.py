"""The ranks that there are or may be, as one rank knows them: processes, hosts, addresses that are taken."""

from __future__ import annotations

import msgspec

from mallob_py.protocol.placement import Placement
from mallob_py.protocol.rank_messages import Peer, Place, RankProcess


class Origin(msgspec.Struct, frozen=True):
    """What a rank knows of the system's beginning, the same on all ranks; `founders`: their capacities."""

    founders: tuple[int, ...]
    #: since 1970
    start_s: float = 0.0
    #: by rank; and the hosts that they are on, each named by the lowest rank that was ever there
    processes: dict[int, RankProcess] = {}
    hosts: dict[int, int] = {}

    def first_logged(self, rank: int, capacity: int, founders: Placement) -> int:
        """The number by which logs name the first PE of a rank, in all generations."""
        if rank < founders.ranks:
            return founders.first_pe(rank)
        return founders.size + (rank - founders.ranks) * capacity


class RankBook:
    """One rank's. `start_s`, `founders`: what newcomers are told. All addresses below `bound` are taken."""

    def __init__(self, origin: Origin, bound: int) -> None:
        self.start_s, self.founders = origin.start_s, origin.founders
        self._processes, self._hosts = origin.processes, origin.hosts
        self.bound = bound
        #: of ranks that this one has found lost
        self._how_lost: dict[int, str] = {}

    def take(self, bound: int) -> None:
        """All addresses below it are taken."""
        self.bound = max(self.bound, bound)

    def expect(self, rank: int, host: int, process: RankProcess) -> None:
        """There may be a further rank."""
        self.take(rank + 1)
        self._processes = {**self._processes, rank: process}  # what is replaced may be shared
        self._hosts = {**self._hosts, rank: host}

    def describe(self, rank: int) -> str:
        """A rank with its process and host, as far as they are known."""
        process = self._processes.get(rank)
        return f"rank {rank}" if process is None else f"rank {rank} ({process})"

    def lose(self, rank: int, how: str) -> str:
        """This rank has found that one lost; returns the sentence that says so."""
        message = f"{self.describe(rank)} {how}"
        self._how_lost.setdefault(rank, message)
        return message

    def how_gone(self, rank: int, manner: str) -> str:
        """The sentence of a rank that is gone; in that manner, unless this rank has found more."""
        return self._how_lost.get(rank, f"{self.describe(rank)} {manner}")

    def are_together(self, rank: int, other: int) -> bool:
        """Whether two ranks are known to be on one host."""
        host = self._hosts.get(rank)
        return host is not None and host == self._hosts.get(other)

    def peer(self, rank: int, place: Place | None) -> Peer:
        """A rank that is known, and listens there."""
        return Peer(rank, self._hosts[rank], self._processes[rank], place)
