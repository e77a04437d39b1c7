"""Growth: how ranks join, seen by the members and above all by their *host*: the rank that starts them.

`joining.py` has the newcomers' side. Processes start at once; meanwhile all members begin to listen. A
newcomer that has identified itself is welcomed once the addresses of all members are known. All connected
newcomers join with one change. A newcomer that dies on its way, or takes too long, is left out, and the
others join.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

from mallob_py.protocol.generation import Ordered
from mallob_py.protocol.rank_book import RankBook
from mallob_py.protocol.rank_effects import AnyRankEffect, Expect, Grown, KillRank, ListenFor
from mallob_py.protocol.rank_messages import (
    AnyJoiningMessage,
    Joining,
    Listen,
    Listening,
    Noted,
    Peer,
    RankProcess,
    Welcome,
)
from mallob_py.protocol.rank_stimuli import RanksStarted

#: longest time for a newcomer to come up: it imports much, perhaps from a network disk
PATIENCE_S = 60.0
#: time after which an order to join is repeated, since the first may be lost with the coordinator
_ORDER_AGAIN_S = 1.0


class Growth:
    """One order for more ranks, until all have joined or failed."""

    def __init__(
        self,
        members: Iterable[int],
        newcomers: Collection[int],
        now: float,
        welcome: Callable[[int, tuple[Peer, ...]], None],
        kill: Callable[[int], None],
    ) -> None:
        """`members`: all other members. `welcome` tells a newcomer its peers, `kill` ends a newcomer."""
        self._newcomers = frozenset(newcomers)
        #: members that have not said where they listen
        self._silent = set(members)
        self._peers: dict[int, Peer] = {}
        #: newcomers that have identified themselves, in the order of their arrival
        self._arrived: dict[int, Joining] = {}
        self._welcomed: list[int] = []
        self._connected: set[int] = set()
        #: newcomer -> reason why it has failed to join
        self.problems: dict[int, str] = {}
        self._until_s = now + PATIENCE_S
        self._order_s = -math.inf
        #: time when `turn` must be called, unless something happens earlier
        self.deadline_s = self._until_s
        self._welcome = welcome
        self._kill = kill

    def is_newcomer(self, rank: int) -> bool:
        return rank in self._newcomers

    # --- messages of members

    def listening(self, member: Peer) -> None:
        """Record where a member listens; if the member cannot listen, no rank can join."""
        if member.address in self._silent:
            self._silent.discard(member.address)
            self._peers[member.address] = member
            if member.place is None:
                self._give_up(f"rank {member.address} cannot listen for new ranks")
            self._welcome_all()

    def member_lost(self, rank: int) -> None:
        self._silent.discard(rank)
        self._peers.pop(rank, None)
        self._welcome_all()

    # --- messages of newcomers

    def joining(self, rank: int, message: Joining) -> None:
        self._arrived.setdefault(rank, message)
        self._welcome_all()

    def _welcome_all(self) -> None:
        if self._silent:
            return
        for rank in self._arrived:
            if rank not in self._welcomed and rank not in self.problems:
                before = {each: self._arrived[each] for each in self._welcomed if each not in self.problems}
                others = [Peer(each, one.host, one.process, one.place) for each, one in before.items()]
                self._welcomed.append(rank)
                self._welcome(rank, (*self._peers.values(), *others))

    def connected(self, rank: int) -> None:
        if self.is_newcomer(rank):
            self._connected.add(rank)

    def lost(self, rank: int, how: str) -> None:
        """Record that a newcomer is lost."""
        if self.is_newcomer(rank):
            self.problems.setdefault(rank, how)

    def _give_up(self, why: str) -> None:
        for rank in sorted(self._newcomers - self._connected - self.problems.keys()):
            self.problems[rank] = why
            self._kill(rank)

    # --- orders

    def turn(self, members: Iterable[int], now: float) -> Ordered | None:
        """Return the order that lets newcomers join, if it must be given now (maybe again); else None."""
        if now >= self._until_s:
            self._give_up(f"has not come up within {PATIENCE_S:g} s")
        left = self._newcomers - self.problems.keys()
        if left - self._connected:
            return None
        wanted = sorted(left - set(members))
        if not wanted or now < self._order_s:
            return None
        self._order_s = self.deadline_s = now + _ORDER_AGAIN_S
        return Ordered(joins=tuple((rank, self._arrived[rank].capacity) for rank in wanted))

    def is_over(self, members: Iterable[int]) -> bool:
        """Tell whether each newcomer has joined or failed."""
        return not self._newcomers - self.problems.keys() - set(members)


class Host:
    """One rank's dealings with newcomers: newcomers that this rank starts (`growth`), and others."""

    def __init__(
        self,
        book: RankBook,
        say: Callable[[int, AnyJoiningMessage], None],
        act: Callable[[AnyRankEffect], None],
    ) -> None:
        """`say` sends a message to another rank."""
        self.growth: Growth | None = None
        self._book = book
        self._say = say
        self._act = act

    def begin(self, started: RanksStarted, members: Iterable[int], now: float) -> None:
        """Record that newcomers' processes were started; `started.me` is this rank, one of the `members`."""
        assert self.growth is None, "ranks are being started already"
        self._book.take(started.call.bound)
        for rank, process in started.processes:
            self._expect(rank, started.me.host, process)
        others = [rank for rank in members if rank != started.me.address]
        newcomers = [rank for rank, _ in started.processes]
        self.growth = Growth(others, newcomers, now, self._welcome, lambda rank: self._act(KillRank(rank)))
        for rank in others:
            self._say(rank, started.call)

    def _welcome(self, rank: int, peers: tuple[Peer, ...]) -> None:
        self._say(rank, Welcome(peers, self._book.start_s, self._book.founders))

    def _expect(self, rank: int, host: int, process: RankProcess) -> None:
        self._book.expect(rank, host, process)
        self._act(Expect(rank, host, process))

    def listen(self, rank: int, call: Listen) -> None:
        """Listen for newcomers on behalf of a host."""
        self._book.take(call.bound)
        self._act(ListenFor(rank, call))

    def listening(self, rank: int, message: Listening, members: Collection[int]) -> None:
        if self.growth is not None and rank in members:
            self.growth.listening(self._book.peer(rank, message.place))

    def meet(self, rank: int, message: Joining) -> None:
        """Receive a newcomer, which identifies itself by this message."""
        self._expect(rank, message.host, message.process)
        if self.growth is not None and self.growth.is_newcomer(rank):
            self.growth.joining(rank, message)
        else:
            self._say(rank, Noted())

    def connected(self, rank: int) -> None:
        if self.growth is not None:
            self.growth.connected(rank)

    def lost(self, rank: int) -> None:
        """Record that a rank is no member any more, or never will be one."""
        if self.growth is not None:
            self.growth.lost(rank, "was lost")
            self.growth.member_lost(rank)

    def turn(self, members: Collection[int], now: float) -> Ordered | None:
        """Return an order to be given now, if any; end the growth when each newcomer has joined or failed."""
        assert self.growth is not None
        order = self.growth.turn(members, now)
        if order is None and self.growth.is_over(members):
            self._act(Grown(self.growth.problems))
            self.growth = None
        return order
