"""Doorbells: an idle rank parks, and the sender of a message wakes it.

A rank blocked inside MPI uses a whole core, and a rank that polls with short sleeps adds two sleeps to each
round trip. So an idle rank waits for a datagram socket, and the sender of an MPI message then sends a
datagram to that socket (a ring). Between ranks that share a host and a network namespace the socket is
AF_UNIX, in a folder that only our user may enter; otherwise it is UDP.

Guarantees: `ring` never blocks and never raises. A ring only says "look at your MPI messages", with a secret
of the session; extra rings are harmless. Datagrams of strangers wake a rank, which discards a bounded number
of them at a time and goes on. On one host no ring is lost: if the peer's socket buffer is full, the buffer
holds unseen rings. UDP rings may be lost or overtake their message, so a rank with remote peers must also
look for messages without a ring (`Transport.park_timeout_s`). Where sockets are forbidden, `available` is
False.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mpi4py import MPI

#: environment variable: "off" forbids the doorbell, as a sandbox would (for tests)
DOORBELL_VARIABLE = "MALLOB_PY_DOORBELL"
#: environment variable with this host's address for ranks on other hosts, if guessing fails
BELL_ADDRESS_VARIABLE = "MALLOB_PY_BELL_ADDRESS"

#: size of a ring, which consists of the secret
_RING_BYTES = 16
#: greatest number of datagrams taken at a time: there may be a flood
_DRAIN_MAX = 256


class Bell(NamedTuple):
    """The addresses of a rank's doorbell; the address of a socket that could not be made is empty."""

    host: int
    namespace: int
    unix_name: bytes
    udp_address: str
    udp_port: int


class Doorbell:
    """This rank's bell and the addresses of all other bells. Made by `Doorbell.hang`."""

    def __init__(
        self,
        rank: int,
        bells: Sequence[Bell | None],
        secret: bytes,
        unix_socket: socket.socket | None,
        udp_socket: socket.socket | None,
    ) -> None:
        """`bells`: each rank's bell, in order; None: that rank and this rank do not ring each other."""
        own = bells[rank]
        assert own is not None
        others = [bell for peer, bell in enumerate(bells) if bell is not None and peer != rank]
        self._secret = secret
        self._unix_socket = unix_socket
        self._udp_socket = udp_socket
        self._targets: list[tuple[socket.socket, bytes | tuple[str, int]] | None] = [
            None if peer == rank or bell is None else self._target(own, bell)
            for peer, bell in enumerate(bells)
        ]
        #: whether every peer can wake this rank, so that the rank may park for a long time
        self.available = all(
            bool(own.unix_name if _share_sockets(own, bell) else own.udp_port) for bell in others
        )
        #: whether some peers ring by UDP
        self.has_remote_peers = any(not _share_sockets(own, bell) for bell in others)
        self._sockets = [s for s in (unix_socket, udp_socket) if s is not None]
        # An epoll object is the one descriptor that is readable if any socket is.
        self._epoll: select.epoll | None = None
        if len(self._sockets) != 1:
            self._epoll = select.epoll()
            for each in self._sockets:
                self._epoll.register(each.fileno(), select.EPOLLIN)

    @classmethod
    def hang(
        cls, comm: MPI.Intracomm, hosts: Sequence[int], folder: Path, ringers: Collection[int]
    ) -> Doorbell:
        """Make this rank's sockets and exchange addresses (collective over `comm`).

        `hosts`: the host of each rank, in order. `folder`: private, shared by a host's ranks. `ringers`: the
        ranks that wake each other, including this one.
        """
        rank = comm.Get_rank()
        secret: bytes = comm.bcast(os.urandom(_RING_BYTES))
        host, namespace = hosts[rank], _network_namespace()
        unix_name = os.fsencode(folder / f"bell.{rank}")
        barred = os.environ.get(DOORBELL_VARIABLE) == "off"
        unix_socket = None if barred else _open(socket.AF_UNIX, unix_name)
        udp_address, udp_port, udp_socket = "", 0, None
        homes: list[tuple[int, int, str]] = comm.allgather((host, namespace, socket.gethostname()))
        if not barred and len({homes[peer][:2] for peer in ringers}) > 1:
            one_machine = len({home[2] for home in homes}) == 1
            udp_address = "127.0.0.1" if one_machine else reachable_address()
            udp_socket = _open(socket.AF_INET, ("127.0.0.1" if one_machine else "0.0.0.0", 0))
            udp_port = udp_socket.getsockname()[1] if udp_socket is not None else 0
        bell = Bell(host, namespace, unix_name if unix_socket is not None else b"", udp_address, udp_port)
        bells: list[Bell] = comm.allgather(bell)
        rung = [each if peer in ringers else None for peer, each in enumerate(bells)]
        return cls(rank, rung, secret, unix_socket, udp_socket)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a rank rings."""
        return self._epoll.fileno() if self._epoll is not None else self._sockets[0].fileno()

    def ring(self, peer: int) -> None:
        """Wake `peer` if it is parked. Call after the message has been handed to MPI."""
        target = self._targets[peer]
        if target is None:
            return
        # EAGAIN: the peer has unseen rings. ECONNREFUSED: the peer has left. Both need no action.
        with contextlib.suppress(OSError):
            target[0].sendto(self._secret, target[1])

    def drain(self) -> bool:
        """Take all rings off the sockets; return whether a ring came by UDP, perhaps before its message."""
        if self._unix_socket is not None:
            self._empty(self._unix_socket)
        return self._udp_socket is not None and self._empty(self._udp_socket)

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        for each in self._sockets:
            each.close()
        self._targets = [None] * len(self._targets)

    def _empty(self, source: socket.socket) -> bool:
        """Take the datagrams off a socket; return whether a datagram was a ring."""
        rang = False
        for _ in range(_DRAIN_MAX):
            try:
                rang |= source.recv(_RING_BYTES + 1) == self._secret
            except BlockingIOError:
                break
            except OSError:  # the kernel reports once that an earlier wake-up did not arrive
                continue
        return rang

    def _target(self, own: Bell, bell: Bell) -> tuple[socket.socket, bytes | tuple[str, int]] | None:
        if _share_sockets(own, bell):
            if self._unix_socket is None or not bell.unix_name:
                return None
            return self._unix_socket, bell.unix_name
        if self._udp_socket is None or not bell.udp_port:
            return None
        return self._udp_socket, (bell.udp_address, bell.udp_port)


def _share_sockets(one: Bell, other: Bell) -> bool:
    return (one.host, one.namespace) == (other.host, other.namespace)


def _open(family: socket.AddressFamily, address: bytes | tuple[str, int]) -> socket.socket | None:
    try:
        opened = socket.socket(family, socket.SOCK_DGRAM)
    except OSError:
        return None
    try:
        opened.bind(address)
    except OSError:
        opened.close()
        return None
    opened.setblocking(False)
    return opened


def _network_namespace() -> int:
    """Return this process's network namespace. Ranks in different namespaces ring each other by UDP."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def reachable_address() -> str:
    """Return this host's address for other hosts: as configured, by its name, or by the default route."""
    configured = os.environ.get(BELL_ADDRESS_VARIABLE)
    if configured:
        return configured
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address for documentation; no packet is sent
        return str(probe.getsockname()[0])
    return "127.0.0.1"
