"""Connections to ranks that MPI cannot reach, or should not: stream sockets, never blocking.

They go to ranks that joined later, which MPI's world does not have; and, where the loss of a rank is to be
survived, to those of other hosts (`transport.py` says why).

Why not MPI: its processes can connect afterwards (`MPI_Comm_accept`), but each pair would have to do so by
itself, as collective calls would need ranks that may be dead. A call stops both event loops (20 to 35 ms,
measured with MPICH), for ever if the other one dies before its call; and Open MPI cannot do it at all between
two launches. What MPI spawns dies with its parents. A socket connects without the other's loop, tells of the
other's death by itself, and is the same whatever has started the ranks.

A rank `listen`s from when somebody is to join. Whoever joins `connect`s to all others, and names itself by
the secret of the session. Between ranks of a host the socket is AF_UNIX, in the session's folder, otherwise
TCP. What is sent is queued and written by `flush`, control messages before large data.

Guarantees: messages of one rank arrive once and in the order of sending within a channel. Who connects and
does not know the secret is sent away, unanswered, after as many bytes as a rank says first. Without links
there is nothing to do: `is_used` is False. Nothing is encrypted, as nothing is that MPI sends: the network is
to be one whose users are trusted.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from mallob_py.protocol.rank_messages import Place
from mallob_py.runtime.world.doorbell import BELL_ADDRESS_VARIABLE, reachable_address
from mallob_py.runtime.world.envelope import Arrival, Channel

SECRET_BYTES = 16
#: size of a message and its channel
_FRAME = struct.Struct("<IB")
#: the channel of the last frame, which is no message: the sender sends nothing any more
_LAST = 255
#: who somebody is that connects: the secret, and its address
_HELLO = struct.Struct(f"<{SECRET_BYTES}sI")
_READ_BYTES = 256 << 10
_BUFFERS_MAX = 64
_STRANGERS_MAX = 64
#: so many may be connecting at once: all ranks of other hosts do so at the start
_BACKLOG = 4096
_CONNECT_TIMEOUT_S = 10.0
#: a longer message cannot be sent
MESSAGE_BYTES_MAX = 1 << 31

Buffer = bytes | bytearray | memoryview


class LinkError(Exception):
    """Somebody cannot be connected to."""


class _Link:
    """One connection."""

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer = peer
        self.connection = connection
        self.waiting: dict[Channel, deque[memoryview]] = {channel: deque() for channel in Channel}
        self.waiting_bytes = 0
        #: of a frame that is partly written: it goes first
        self.begun: deque[memoryview] = deque()
        self.awaits_room = False
        self.is_given_up = False
        self.has_sent_last = False
        self.has_left = False
        self._data = bytearray()

    def put(self, kind: int, data: Buffer) -> None:
        queue = self.waiting[Channel.CONTROL if kind == _LAST else Channel(kind)]
        queue.append(memoryview(_FRAME.pack(len(data), kind)))
        if len(data):
            queue.append(memoryview(data).cast("B"))
        self.waiting_bytes += _FRAME.size + len(data)

    def write(self) -> bool:
        """As much as there is room for; whether that was all. Raises OSError."""
        while self.waiting_bytes:
            if not self.begun:
                self._begin_frames()
            try:
                written = self.connection.sendmsg(self.begun)
            except BlockingIOError:
                return False
            self.waiting_bytes -= written
            while written:
                first = self.begun[0]
                if written < len(first):
                    self.begun[0] = first[written:]
                    break
                written -= len(first)
                self.begun.popleft()
        return True

    def _begin_frames(self) -> None:
        """Some messages, or one of large data, which messages to come are to overtake."""
        control, bulk = self.waiting[Channel.CONTROL], self.waiting[Channel.BULK]
        queue, buffers_max = (control, _BUFFERS_MAX) if control else (bulk, 1)
        while queue and len(self.begun) < buffers_max:
            header = queue.popleft()
            self.begun.append(header)
            if _FRAME.unpack(header)[0]:
                self.begun.append(queue.popleft())

    def forget_waiting(self) -> None:
        """But for what is partly written: a frame stays whole."""
        for queue in self.waiting.values():
            queue.clear()
        self.waiting_bytes = sum(len(each) for each in self.begun)

    def read(self, buffer: bytearray) -> list[tuple[int, bytes]]:
        """Kinds and contents of what has come. Raises OSError, EOFError at the end."""
        try:
            size = self.connection.recv_into(buffer)
        except BlockingIOError:
            return []
        if size == 0:
            raise EOFError
        data = self._data
        data += memoryview(buffer)[:size]
        start = 0
        frames = []
        while len(data) - start >= _FRAME.size:
            length, kind = _FRAME.unpack_from(data, start)
            if length > MESSAGE_BYTES_MAX or kind not in (Channel.CONTROL, Channel.BULK, _LAST):
                raise ConnectionError("it sends what no rank sends")
            end = start + _FRAME.size + length
            if end > len(data):
                break
            frames.append((kind, bytes(memoryview(data)[start + _FRAME.size : end])))
            start = end
        del data[:start]
        return frames


class Links:
    """All connections of one rank. `fileno` is readable when something has come, or there is room again."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._secret = b""
        self._epoll = select.epoll()
        self._links: dict[int, _Link] = {}
        self._by_descriptor: dict[int, _Link] = {}
        self._listeners: dict[int, socket.socket] = {}
        #: who has not named itself yet, and what it has said of it
        self._strangers: dict[int, tuple[socket.socket, bytearray]] = {}
        self._owed: set[_Link] = set()
        self._arrived: deque[Arrival] = deque()
        self._ended: list[tuple[int, str]] = []
        self._buffer = bytearray(0)
        self.place: Place | None = None
        #: whether anybody is, or may be, connected
        self.is_used = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    def has(self, peer: int) -> bool:
        return peer in self._links

    # --- who is connected -------------------------------------------------------------------

    def listen(self, secret: bytes, folder: Path, *, wide: bool) -> Place:
        """Let others connect who know the secret: from this host, and (`wide`) from others.

        Raises LinkError.
        """
        self._secret = secret
        if self.place is not None and (self.place.port or not wide):
            return self.place
        self._buffer = bytearray(_READ_BYTES)
        path = folder / f"link.{self.rank}"
        address, port = "", 0
        try:
            if self.place is None:
                self._listen(socket.socket(socket.AF_UNIX), os.fspath(path))
            if wide:
                address = reachable_address()
                listener = socket.socket()
                self._listen(listener, (address, 0))
                port = listener.getsockname()[1]
        except OSError as error:
            problem = f"rank {self.rank} cannot listen for ranks that join: {error.strerror or error}"
            if error.errno == errno.EADDRNOTAVAIL:
                problem += f"; {address} is no address of this host, name one by {BELL_ADDRESS_VARIABLE}"
            raise LinkError(problem) from None
        self.place = Place(os.fspath(path), address, port)
        return self.place

    def _listen(self, listener: socket.socket, at: str | tuple[str, int]) -> None:
        try:
            listener.bind(at)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        self.is_used = True
        self._listeners[listener.fileno()] = listener
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    def connect(self, peer: int, place: Place) -> None:
        """Raises LinkError. It does not wait for the peer's loop."""
        attempts: list[tuple[socket.AddressFamily, str | tuple[str, int]]] = []
        if os.path.exists(place.path):
            attempts.append((socket.AF_UNIX, place.path))
        if place.port:
            attempts.append((socket.AF_INET, (place.address, place.port)))
        problem = "it cannot be reached from this host"
        for family, at in attempts:
            connection = socket.socket(family)
            connection.settimeout(_CONNECT_TIMEOUT_S)
            try:
                connection.connect(at)
                connection.sendall(_HELLO.pack(self._secret, self.rank))
            except OSError as error:
                connection.close()
                problem = str(error)
                continue
            self._add(peer, connection)
            return
        raise LinkError(f"rank {self.rank} cannot connect to rank {peer}: {problem}")

    def await_connections(self, peers: Collection[int]) -> None:
        """Until all of these have connected. Raises LinkError."""
        deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
        while missing := [peer for peer in peers if peer not in self._links]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self._ended:
                raise LinkError(f"rank {self.rank} has not been connected to by rank {missing[0]}")
            if select.select((self._epoll,), (), (), left_s)[0]:
                self._look()

    def _add(self, peer: int, connection: socket.socket) -> _Link:
        self.is_used = True
        connection.setblocking(False)
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = self._links[peer] = self._by_descriptor[connection.fileno()] = _Link(peer, connection)
        with contextlib.suppress(FileExistsError):  # it was a stranger's
            self._epoll.register(connection.fileno(), select.EPOLLIN)
        return link

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it has gone meanwhile, or there are no descriptors
            return
        if len(self._strangers) >= _STRANGERS_MAX:  # who says nothing keeps nobody out
            self._send_away(next(iter(self._strangers)))
        connection.setblocking(False)
        self._strangers[connection.fileno()] = (connection, bytearray())
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        self._get_to_know(connection.fileno())  # a rank has said who it is: no flood can push it out

    def _get_to_know(self, descriptor: int) -> None:
        connection, said = self._strangers[descriptor]
        try:
            more = connection.recv(_HELLO.size - len(said))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        said += more
        if len(said) == _HELLO.size:
            secret, peer = _HELLO.unpack(said)
            if hmac.compare_digest(secret, self._secret) and peer not in self._links and peer != self.rank:
                del self._strangers[descriptor]
                self._add(peer, connection)
                return
        elif more:
            return
        self._send_away(descriptor)

    def _send_away(self, descriptor: int) -> None:
        connection, _ = self._strangers.pop(descriptor)
        self._epoll.unregister(descriptor)
        connection.close()

    # --- messages ------------------------------------------------------------------------------

    def send(self, peer: int, channel: Channel, data: Buffer) -> int:
        """To be written by `flush`; how many bytes wait for that peer now."""
        link = self._links.get(peer)
        if link is None or link.has_sent_last:
            return 0
        link.put(channel, data)
        self._owed.add(link)
        return link.waiting_bytes

    def waiting_bytes(self, peer: int) -> int:
        link = self._links.get(peer)
        return 0 if link is None else link.waiting_bytes

    def flush(self) -> None:
        if self._owed:
            owed, self._owed = self._owed, set()
            for link in owed:
                self._write(link)

    def _write(self, link: _Link) -> None:
        if link.connection.fileno() < 0:
            return
        try:
            awaits_room = not link.write()
        except OSError as error:
            self._end(link, error)
            return
        if awaits_room != link.awaits_room:
            link.awaits_room = awaits_room
            events = select.EPOLLIN | select.EPOLLOUT if awaits_room else select.EPOLLIN
            self._epoll.modify(link.connection.fileno(), events)

    def receive(self) -> Iterator[Arrival]:
        """What has come; a part of it, if there is much. Who breaks off gets the rest the next time."""
        if not self._arrived:
            self._look()
        while self._arrived:
            yield self._arrived.popleft()

    @property
    def has_more(self) -> bool:
        """Whether `receive` and `take_ended` have something to tell that nobody will be woken up for."""
        return bool(self._arrived or self._ended)

    def put_back(self, arrivals: Iterable[Arrival]) -> None:
        """They are received again, before all others."""
        self._arrived.extendleft(reversed([*arrivals]))

    def _look(self) -> None:
        for descriptor, events in self._epoll.poll(0):
            if (listener := self._listeners.get(descriptor)) is not None:
                self._accept(listener)
            elif descriptor in self._strangers:
                self._get_to_know(descriptor)
            elif (link := self._by_descriptor.get(descriptor)) is not None:
                if events & select.EPOLLOUT:
                    self._write(link)
                if events & ~select.EPOLLOUT and link.connection.fileno() >= 0:
                    self._read(link)

    def _read(self, link: _Link) -> None:
        try:
            for kind, data in link.read(self._buffer):
                if kind == _LAST:
                    link.has_left = True
                else:
                    self._arrived.append(Arrival(link.peer, Channel(kind), data))
        except (OSError, EOFError) as error:
            self._end(link, error)

    def _end(self, link: _Link, error: Exception) -> None:
        """It is gone, or does not make sense."""
        descriptor = link.connection.fileno()
        if self._by_descriptor.pop(descriptor, None) is None:
            return
        self._epoll.unregister(descriptor)
        link.connection.close()
        self._owed.discard(link)
        if not link.is_given_up and not link.has_left:
            how = "has ended its connection" if isinstance(error, EOFError) else f"is not connected: {error}"
            self._ended.append((link.peer, how))

    def take_ended(self) -> list[tuple[int, str]]:
        """The peers whose connections have ended since the last call, and how; not those given up on."""
        ended, self._ended = self._ended, []
        return ended

    def give_up_on(self, peer: int) -> None:
        """Send it nothing of what does not fit now: it may be about to leave, and live.

        What it sends is still received: it may have to be told.
        """
        if (link := self._links.get(peer)) is not None:
            link.is_given_up = True
            if link in self._owed:
                self._owed.discard(link)
                self._write(link)
            link.forget_waiting()

    # --- leaving ---------------------------------------------------------------------------------

    def part(self) -> None:
        """Tell all that nothing more comes."""
        for link in self._links.values():
            if not link.has_sent_last:
                link.put(_LAST, b"")
                link.has_sent_last = True
                self._owed.add(link)

    def has_parted(self) -> bool:
        """Whether all who are left have said so, too, and have been told all that was to be sent."""
        left = [
            link for link in self._links.values() if not link.is_given_up and link.connection.fileno() >= 0
        ]
        return all(link.has_left and not link.waiting_bytes for link in left)

    def close(self) -> None:
        for link in self._links.values():
            link.connection.close()
        for listener in self._listeners.values():
            listener.close()
        for connection, _ in self._strangers.values():
            connection.close()
        self._epoll.close()
