"""Joining: a process on its way to become a rank of a running system, and its messages.

A rank, the newcomer's *host*, has all members listen for connections (`Listen`, `Listening`) and starts the
process, which is given the address of its host. Messages follow in this order:

    newcomer -> host      Joining: who I am, where I listen
    host     -> newcomer  Welcome: the other ranks, and where each listens
    newcomer -> others    Joining, answered by Noted
    newcomer -> host      Connected
    host     -> all       the order that the newcomer joins (`generation.py`)

`growth.py` has the host's side. The newcomer is a member when it begins its first generation. It connects to
newcomers that reported to the host earlier; later newcomers connect to it. Messages meant for a member wait
until the newcomer is a member.

Guarantees: until a newcomer is a member, it takes part in nothing, and ends when its host is lost or all
ranks are silent for long. It begins only with members that it has connected to: if newcomers of another host
join first or with it, it ends.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import msgspec

from mallob_py.protocol.generation import AnyChange, Begin, End, Heard, Lost, Membership, TimePassed
from mallob_py.protocol.generation import Tell as TellRank
from mallob_py.protocol.placement import Generation
from mallob_py.protocol.rank_effects import Tell
from mallob_py.protocol.rank_messages import (
    AnyGenerationMessage,
    AnyJoiningMessage,
    Connected,
    GenerationMessage,
    Joining,
    Noted,
    Peer,
    Propose,
    Welcome,
)
from mallob_py.protocol.rank_stimuli import RankLost, Said, TimeCame

#: multiple of the members' patience after which a newcomer that hears nothing ends
_PATIENCES = 3


class Connect(msgspec.Struct, frozen=True):
    """Connect to this rank if it listens; a rank that does not listen has connected already."""

    peer: Peer


class Keep(msgspec.Struct, frozen=True):
    """Keep this message until the newcomer is a member, then hand it in."""

    said: Said


class Refused(msgspec.Struct, frozen=True):
    """End this process, which does not become a rank."""

    why: str


AnyNewcomerEffect: TypeAlias = Connect | Tell | Keep | Refused


class Newcomer:
    """The newcomer `rank`, described by `me`; once `generation` is set, it is a member.

    The caller must hand in a `TimeCame` at `deadline_s`, and execute all effects in order.
    """

    def __init__(self, rank: int, me: Joining, host: Peer, patience_s: float, now: float) -> None:
        self.rank = rank
        self._me = me
        self.host = host.address
        self._patience_s = _PATIENCES * patience_s
        self._heard_s = now
        self.membership = Membership(rank, None, patience_s)
        self.effects: deque[AnyNewcomerEffect] = deque()
        #: the newcomer's first generation
        self.generation: Generation | None = None
        self.welcome: Welcome | None = None
        self.peers: dict[int, Peer] = {}
        #: (time, change) of each change that the newcomer's membership has handled
        self.changes: list[tuple[float, AnyChange]] = []
        #: peers that have not noted this newcomer yet
        self._unaware: set[int] = set()
        self._connect(host)

    @property
    def deadline_s(self) -> float:
        """Return when a `TimeCame` is needed, unless another stimulus comes before."""
        return min(self.membership.deadline_s, self._heard_s + self._patience_s)

    def handle(self, stimulus: Said | RankLost | TimeCame, now: float) -> None:
        """Take in a stimulus; consequences are in `effects`."""
        match stimulus:
            case Said(rank, message=message):
                self._heard_s = now
                if self.generation is not None or not self._takes(rank, message, now):
                    self.effects.append(Keep(stimulus))
            case RankLost(rank):
                self._lose(rank, now)
            case TimeCame():
                if now >= self.membership.deadline_s:
                    self._change(TimePassed(), now)
                if self.generation is None and now >= self._heard_s + self._patience_s:
                    self.effects.append(Refused(f"rank {self.rank} was not taken in"))

    def _takes(self, rank: int, message: object, now: float) -> bool:
        match message:
            case Welcome(peers):
                self.welcome = message
                for peer in peers:
                    if peer.address != self.host:
                        self._unaware.add(peer.address)
                        self._connect(peer)
                self._note(self.host)
            case Noted():
                self._note(rank)
            case Joining(process, host, place):
                self.peers[rank] = Peer(rank, host, process, place)
                self.effects.append(Connect(Peer(rank, host, process, None)))
                self._say(rank, Noted())
            case Propose(after) if strangers := set(after.members) - self.peers.keys() - {self.rank}:
                why = f"rank {min(strangers)} has joined meanwhile, and is not connected to this rank"
                self.effects.append(Refused(why))
            case GenerationMessage():
                self._change(Heard(rank, message), now)  # type: ignore[arg-type]
            case _:
                return False
        return True

    def _connect(self, peer: Peer) -> None:
        self.peers[peer.address] = peer
        self.effects.append(Connect(peer))
        self._say(peer.address, self._me)

    def _say(self, rank: int, message: AnyJoiningMessage | AnyGenerationMessage) -> None:
        self.effects.append(Tell(rank, 0, 0, 0, message))

    def _note(self, rank: int) -> None:
        self._unaware.discard(rank)
        if not self._unaware:
            self._say(self.host, Connected())

    def _lose(self, rank: int, now: float) -> None:
        if self.generation is not None:
            return
        if rank == self.host and not self.membership.is_halted:
            self.effects.append(Refused(f"rank {rank}, which has started rank {self.rank}, is gone"))
            return
        self._change(Lost(rank), now)
        if rank in self._unaware:
            self._note(rank)

    def _change(self, change: AnyChange, now: float) -> None:
        self.changes.append((now, change))
        self.membership.handle(change, now)
        for step in self.membership.take_effects():
            match step:
                case TellRank(rank, message):
                    self._say(rank, message)
                case Begin(_, after):
                    self.generation = after
                case End(why):
                    self.effects.append(Refused(f"rank {self.rank} is not to join any more ({why.value})"))
