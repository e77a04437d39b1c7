"""The way in which a process becomes a rank of a running system, as that process goes it; and the messages on
it.

A rank, the *host* of the newcomer, has all members listen for connections (`Listen`, `Listening`), starts the
process (`newcomer_process.py`) and gives it an `Invitation` on standard input. Then:

    newcomer -> host      Joining: who I am, where I listen
    host     -> newcomer  Welcome: who else there is, and where each listens
    newcomer -> others    Joining, answered by Noted
    newcomer -> host      Connected
    host     -> all       the order that it shall join (`protocol/generation.py`)

The newcomer is a member when it begins its first generation. Others that join at the same time and have
told the host of themselves before are among those that it connects to; later ones connect to it. What arrives
for a member before it is one waits.

Guarantees: until it is a member, a newcomer ends when its host is lost, or nobody has spoken to it for long;
it has taken part in nothing by then.
"""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from mallob_py.launchers import INVITED_VARIABLE
from mallob_py.protocol.generation import AnyChange, Begin, End, Heard, Lost, Membership, Tell, TimePassed
from mallob_py.protocol.messages import encode
from mallob_py.protocol.placement import Generation
from mallob_py.protocol.rank_messages import (
    AnyGenerationMessage,
    AnyJoiningMessage,
    Connected,
    GenerationMessage,
    Joining,
    Noted,
    Peer,
    Welcome,
)
from mallob_py.runtime.world.carrier import Carrier
from mallob_py.runtime.world.envelope import Arrival, Channel, open_envelope, seal
from mallob_py.runtime.world.failure_detector import process_here
from mallob_py.runtime.world.links import LinkError, Links
from mallob_py.runtime.world.session_folder import PrivateFolder, session_folder_here

_INVITATION_BYTES_MAX = 1 << 20


class Invitation(msgspec.Struct, frozen=True):
    """The invitation with which a newcomer is started. `pes`: its capacity, unless its options say so.

    `session`: by which it finds the folder of its host (`session_folder_here`).
    """

    address: int
    secret: bytes
    host: Peer
    pes: int
    wide: bool
    session: str


class JoinError(Exception):
    """This process does not become a rank; the message says why."""


class Joined(NamedTuple):
    """A member, as of its first generation."""

    carrier: Carrier
    membership: Membership
    generation: Generation
    welcome: Welcome
    peers: dict[int, Peer]
    #: what its membership was told, each with its time, up to its first generation
    changes: tuple[tuple[float, AnyChange], ...]


# --- the newcomer's side ----------------------------------------------------------------------


def is_invited(env: Mapping[str, str]) -> bool:
    return INVITED_VARIABLE in env


def read_invitation() -> Invitation:
    """Raises JoinError."""
    data = sys.stdin.buffer.read(_INVITATION_BYTES_MAX)
    try:
        return msgspec.msgpack.decode(data, type=Invitation)
    except msgspec.MsgspecError as error:
        raise JoinError(f"no invitation to join: {error}") from error


def join(invitation: Invitation, pes: int | None, patience_s: float) -> Joined:
    """Become a member; blocks until then. `patience_s` as for all members. Raises JoinError."""
    links = Links(invitation.address)
    try:
        folder, host = _folder_of(invitation)
        place = links.listen(invitation.secret, folder.path, wide=invitation.wide)
        me = Joining(process_here(), host, place, invitation.pes if pes is None else pes)
        return _Newcomer(invitation, links, folder, me, patience_s).become_member()
    except (LinkError, OSError) as error:
        raise JoinError(str(error)) from error


def _folder_of(invitation: Invitation) -> tuple[PrivateFolder, int]:
    """Return the folder of this host, and which host that is. Raises OSError."""
    host = invitation.host
    assert host.place is not None
    with contextlib.suppress(OSError):  # it is another host
        return PrivateFolder.join(Path(host.place.path).parent), host.host
    return session_folder_here(invitation.session, invitation.address)


class _Newcomer:
    def __init__(
        self, invitation: Invitation, links: Links, folder: PrivateFolder, me: Joining, patience_s: float
    ) -> None:
        host = invitation.host
        hosts = {invitation.address: me.host, host.address: host.host}
        self._me = me
        self._host = host
        self._links = links
        self._carrier = Carrier(invitation.address, hosts, folder, links)
        self._membership = Membership(invitation.address, None, patience_s)
        self._patience_s = patience_s
        self._welcome: Welcome | None = None
        self._peers: dict[int, Peer] = {host.address: host}
        #: peers that have not noted us yet
        self._unaware: set[int] = set()
        #: for a member
        self._waiting: list[Arrival] = []
        self._first: Generation | None = None
        self._changes: list[tuple[float, AnyChange]] = []

    def become_member(self) -> Joined:
        self._connect(self._host)
        heard_s = time.monotonic()
        while self._first is None:
            self._carrier.flush()
            select.select((self._links.fileno(),), (), (), self._carrier.park_timeout_s(1.0))
            for arrival in self._carrier.receive():
                heard_s = time.monotonic()
                self._take_in(arrival)
            for lost in self._carrier.take_lost():
                self._lose(lost)
            now = time.monotonic()
            if now >= self._membership.deadline_s:
                self._change(TimePassed())
            if now > heard_s + 3 * self._patience_s:
                raise JoinError(f"rank {self._carrier.rank} was not taken in")
        self._carrier.flush()
        self._links.put_back(self._waiting)
        assert self._welcome is not None
        return Joined(
            self._carrier, self._membership, self._first, self._welcome, self._peers, tuple(self._changes)
        )

    def _connect(self, peer: Peer) -> None:
        if peer.place is not None:
            self._links.connect(peer.address, peer.place)
        self._carrier.welcome(peer.address, peer.host)
        self._peers[peer.address] = peer
        self._say(peer.address, self._me)

    def _say(self, address: int, message: AnyJoiningMessage | AnyGenerationMessage) -> None:
        self._carrier.send(address, seal(0, 0, 0, encode(message)))

    def _take_in(self, arrival: Arrival) -> None:
        if self._first is not None or arrival.channel is not Channel.CONTROL:
            self._waiting.append(arrival)
            return
        message = open_envelope(arrival.data, _decode)[3]
        match message:
            case Welcome(peers):
                self._welcome = message
                for peer in peers:
                    if peer.address != self._host.address:
                        self._unaware.add(peer.address)
                        self._connect(peer)
                self._noted(self._host.address)
            case Noted():
                self._noted(arrival.source)
            case Joining(process, host, place, _):
                self._peers[arrival.source] = Peer(arrival.source, host, process, place)
                self._carrier.welcome(arrival.source, host)
                self._say(arrival.source, Noted())
            case GenerationMessage():
                self._change(Heard(arrival.source, message))
            case _:
                self._waiting.append(arrival)

    def _noted(self, address: int) -> None:
        self._unaware.discard(address)
        if not self._unaware:
            self._say(self._host.address, Connected())

    def _lose(self, address: int) -> None:
        if address == self._host.address and not self._membership.is_halted:
            raise JoinError(
                f"rank {self._host.address}, which has started rank {self._carrier.rank}, is gone"
            )
        self._change(Lost(address))
        if address in self._unaware:
            self._noted(address)

    def _change(self, change: AnyChange) -> None:
        now = time.monotonic()
        self._changes.append((now, change))
        self._membership.handle(change, now)
        for step in self._membership.take_effects():
            match step:
                case Tell(address, message):
                    self._say(address, message)
                case Begin(_, after):
                    self._first = after
                case End(why):
                    raise JoinError(f"rank {self._carrier.rank} is not to join any more ({why.value})")


class _Other(msgspec.Struct, frozen=True):
    """A message for a member, which can wait."""


_ours = msgspec.msgpack.Decoder(AnyJoiningMessage | AnyGenerationMessage)


def _decode(body: bytes | memoryview) -> AnyJoiningMessage | AnyGenerationMessage | _Other:
    try:
        message: AnyJoiningMessage | AnyGenerationMessage = _ours.decode(body)
        return message
    except msgspec.ValidationError:
        return _Other()
