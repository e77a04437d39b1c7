"""How a newcomer acts (`protocol/joining.py` decides): its links, its clock, the end of its process."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from mallob_py.launchers import INVITED_VARIABLE
from mallob_py.protocol.joining import Connect, Keep, Newcomer, Refused
from mallob_py.protocol.messages import encode
from mallob_py.protocol.rank_effects import Tell
from mallob_py.protocol.rank_messages import Joining, Peer, decode_wire
from mallob_py.protocol.rank_stimuli import RankLost, Said, TimeCame
from mallob_py.runtime.world.carrier import Carrier
from mallob_py.runtime.world.envelope import Arrival, Channel, open_envelope, seal
from mallob_py.runtime.world.failure_detector import process_here
from mallob_py.runtime.world.links import LinkError, Links
from mallob_py.runtime.world.session_folder import PrivateFolder, session_folder_here

_INVITATION_BYTES_MAX = 1 << 20


class Invitation(msgspec.Struct, frozen=True):
    """The invitation with which a newcomer is started. `pes`: its capacity, unless its options give one.

    `session`: name by which the newcomer finds its host's folder (`session_folder_here`). `start_s`: the
    system's start in seconds since 1970, computed from the inviting rank's present clocks.
    """

    address: int
    secret: bytes
    host: Peer
    pes: int
    wide: bool
    session: str
    start_s: float


class JoinError(Exception):
    """Error: this process does not become a rank; the message says why."""


def is_invited(env: Mapping[str, str]) -> bool:
    return INVITED_VARIABLE in env


def read_invitation() -> Invitation:
    """Read this process's invitation from standard input. Raises JoinError."""
    data = sys.stdin.buffer.read(_INVITATION_BYTES_MAX)
    try:
        return msgspec.msgpack.decode(data, type=Invitation)
    except msgspec.MsgspecError as error:
        raise JoinError(f"no invitation to join: {error}") from error


def join(invitation: Invitation, pes: int | None, patience_s: float) -> tuple[Carrier, Newcomer]:
    """Make this process a member, then return. `patience_s` is as for all members. Raises JoinError."""
    links = Links(invitation.address)
    try:
        folder, host = _folder_of(invitation)
        place = links.listen(invitation.secret, folder.path, wide=invitation.wide)
        hosts = {invitation.address: host, invitation.host.address: invitation.host.host}
        carrier = Carrier(invitation.address, hosts, folder, links)
        me = Joining(process_here(), host, place, invitation.pes if pes is None else pes)
        newcomer = Newcomer(invitation.address, me, invitation.host, patience_s, time.monotonic())
        _play(newcomer, links, carrier)
    except (LinkError, OSError) as error:
        raise JoinError(str(error)) from error
    return carrier, newcomer


def _folder_of(invitation: Invitation) -> tuple[PrivateFolder, int]:
    """Return the session's folder on this host, and the host's number. Raises OSError."""
    host = invitation.host
    assert host.place is not None
    with contextlib.suppress(OSError):  # the inviting rank is on another host
        return PrivateFolder.join(Path(host.place.path).parent), host.host
    return session_folder_here(invitation.session, invitation.address)


def _play(newcomer: Newcomer, links: Links, carrier: Carrier) -> None:
    """Run the newcomer until it is a member; put back messages that the member must handle."""
    waiting: list[Arrival] = []
    _do_all(newcomer, links, carrier)
    while newcomer.generation is None:
        select.select((links.fileno(),), (), (), carrier.park_timeout_s(1.0))
        for arrival in carrier.receive():
            if arrival.channel is Channel.CONTROL:
                said = Said(arrival.source, *open_envelope(arrival.data, decode_wire))
                newcomer.handle(said, time.monotonic())
                is_kept = _do_all(newcomer, links, carrier)
            else:
                is_kept = True
            if is_kept:
                waiting.append(arrival)
        for rank in carrier.take_lost():
            newcomer.handle(RankLost(rank, "is gone"), time.monotonic())
        if newcomer.generation is None and links.has_left(newcomer.host):
            links.part()  # the host waits for the end of messages
            carrier.flush()
            raise JoinError(f"rank {newcomer.host}, which has started rank {newcomer.rank}, has ended")
        newcomer.handle(TimeCame(), time.monotonic())
        _do_all(newcomer, links, carrier)
    carrier.flush()
    links.put_back(waiting)


def _do_all(newcomer: Newcomer, links: Links, carrier: Carrier) -> bool:
    """Execute all effects; return whether the member must handle the last message. Raises JoinError."""
    is_kept = False
    while newcomer.effects:
        match newcomer.effects.popleft():
            case Connect(peer):
                if peer.place is not None:
                    links.connect(peer.address, peer.place)
                carrier.welcome(peer.address, peer.host)
            case Tell(rank, g, source, dest, message):
                carrier.send(rank, seal(g, source, dest, encode(message)))
            case Keep():
                is_kept = True
            case Refused(why):
                raise JoinError(why)
    return is_kept
