"""Connections to ranks that MPI cannot reach, or should not: stream sockets, never blocking.

They reach ranks that joined later, which are not in MPI's world, and, if the loss of a rank must be survived,
ranks of other hosts (`transport.py` has the reason).

Why not MPI: its processes can connect afterwards (`MPI_Comm_accept`), but each pair would have to do so
separately, since collective calls would need ranks that may be dead. Such a call stops both event loops (20
to 35 ms, measured with MPICH), for ever if one rank dies before its call; and Open MPI cannot connect two
launches at all. Processes that MPI spawns die with their parents. A socket connects without the peer's loop,
reports the peer's death by itself, and works with any launcher.

A rank `listen`s as soon as ranks may join. A joining rank `connect`s to all others, and identifies itself by
the session's secret. Within a host the socket is AF_UNIX, in the session's folder, otherwise TCP. Messages
are queued, and written by `flush`, control messages before large data.

A connection within a host ends with its peer, and the end is noticed at once. A connection between hosts may
break while both ends live: it is mended (`mending.py`), and its messages continue (`Stream`). The peer counts
as lost when its port refuses connections, or after `patience_s` without a connection. Rare attempts continue
even then: when a divided network is whole again, both ranks hear of it (`take_back`).

Guarantees: messages of one rank arrive once and in the order of sending within a channel. A connection that
does not send the secret first is closed without an answer. Without links there is nothing to do: `is_used` is
False. As in MPI, nothing is encrypted: all users of the network must be trusted.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from mallob_py.accepting import Doorkeeper
from mallob_py.protocol.rank_messages import Place
from mallob_py.runtime.world import mending
from mallob_py.runtime.world.doorbell import BELL_ADDRESS_VARIABLE, reachable_address
from mallob_py.runtime.world.envelope import Arrival, Channel, WireError
from mallob_py.runtime.world.mending import Dials, Mending

__all__ = ["MESSAGE_BYTES_MAX", "SECRET_BYTES", "LinkError", "Links"]

SECRET_BYTES = 16
_JOIN = ord("J")
#: first message of a connecting rank: kind, secret, its address and the port where it listens
_HELLO = struct.Struct(f"<B{SECRET_BYTES}sIH")
_HELLO_BYTES = {_JOIN: _HELLO.size, mending.RESUME: mending.HELLO.size}
_READ_BYTES = 256 << 10
_STRANGERS_MAX = 64
#: most ranks that may be connecting at once: at the start, all ranks of other hosts
_BACKLOG = 4096
_CONNECT_TIMEOUT_S = 10.0
#: time after which unacknowledged data is sent again over another connection
_UNACKNOWLEDGED_MS = 5000
#: longest time between two checks of broken connections' deadlines
_MENDING_PARK_MAX_S = 0.5


class LinkError(Exception):
    """A rank cannot be connected to."""


#: size of a message and its channel
_FRAME = struct.Struct("<IB")
_COUNT = struct.Struct("<Q")
#: the channel of the last frame, which is no message: the sender sends nothing any more
LAST = 255
#: the channel of a frame that says how many bytes have come
_COUNTED = 254
_KINDS = frozenset({*Channel, LAST, _COUNTED})
#: number of bytes after which a receiver reports its count
ACKNOWLEDGED_BYTES = 16 << 10
_BUFFERS_MAX = 64
#: a longer message cannot be sent
MESSAGE_BYTES_MAX = 1 << 31

Buffer = bytes | bytearray | memoryview


class Stream:
    """One end of a stream of messages between two ranks, which outlives its connections.

    Messages are frames in one sequence of bytes. The receiver counts the bytes and now and then reports the
    count; the sender keeps written bytes until they are counted. When a connection breaks, both ends continue
    over the next connection at the first byte that the receiver lacks: no message is lost, none arrives
    twice, and the order stays.

    A stream that `keeps` nothing cannot be resumed; it suits connections within a host, which break only when
    the peer ends. Control messages overtake large data of which nothing is written.

    The caller must write `begun` next, and report the bytes by `written`. At most ACKNOWLEDGED_BYTES and what
    the connection had room for are kept. Pure: no sockets, no clock.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._waiting: dict[Channel, deque[memoryview]] = {channel: deque() for channel in Channel}
        self.waiting_bytes = 0
        #: parts of frames to be written first, the first one perhaps written in part
        self.begun: deque[memoryview] = deque()
        self._keeps = keeps
        #: written bytes that may have to be written again, and the position of the first of them in the
        #: stream
        self._kept = bytearray()
        self._kept_from = 0
        #: number of bytes ever written, including bytes that must be written again
        self._written_max = 0
        #: number of bytes received
        self.received = 0
        self._said_received = 0
        self._data = bytearray()

    # --- out

    def put(self, kind: int, data: Buffer) -> None:
        """Queue a message of a channel, or LAST."""
        queue = self._waiting[Channel.BULK if kind == Channel.BULK else Channel.CONTROL]
        queue.append(memoryview(_FRAME.pack(len(data), kind)))
        if len(data):
            queue.append(memoryview(data).cast("B"))
        self.waiting_bytes += _FRAME.size + len(data)

    def begin(self) -> None:
        """Fill an empty `begun` with control messages, else with one bulk message, so others can overtake."""
        if self.begun:
            return
        control, bulk = self._waiting[Channel.CONTROL], self._waiting[Channel.BULK]
        queue, buffers_max = (control, _BUFFERS_MAX) if control else (bulk, 1)
        while queue and len(self.begun) < buffers_max:
            header = queue.popleft()
            self.begun.append(header)
            if _FRAME.unpack(header)[0]:
                self.begun.append(queue.popleft())

    def written(self, size_bytes: int) -> None:
        """Note that this many bytes of `begun` were written."""
        self.waiting_bytes -= size_bytes
        while size_bytes:
            first = self.begun[0]
            part = first[:size_bytes]
            if self._keeps:
                self._kept += part
                self._written_max = max(self._written_max, self._kept_to)
            size_bytes -= len(part)
            if len(part) < len(first):
                self.begun[0] = first[len(part) :]
            else:
                self.begun.popleft()

    def forget_waiting(self) -> None:
        """Drop all queued messages, except frames that are partly written."""
        for queue in self._waiting.values():
            queue.clear()
        self.waiting_bytes = sum(len(each) for each in self.begun)

    # --- in

    def take(self, data: Buffer) -> list[tuple[int, bytes]]:
        """Return the kinds and contents of the messages completed by `data`. Raises WireError."""
        self.received += len(data)
        self._data += data
        frames, start = [], 0
        with memoryview(self._data) as view:
            while len(view) - start >= _FRAME.size:
                length, kind = _FRAME.unpack_from(view, start)
                if length > MESSAGE_BYTES_MAX or kind not in _KINDS:
                    raise WireError("it sends what no rank sends")
                end = start + _FRAME.size + length
                if end > len(view):
                    break
                content = bytes(view[start + _FRAME.size : end])
                if kind == _COUNTED:
                    self._let_go(content)
                else:
                    frames.append((kind, content))
                start = end
        del self._data[:start]
        return frames

    def _let_go(self, content: bytes) -> None:
        count: int = _COUNT.unpack(content)[0] if len(content) == _COUNT.size else -1
        if not 0 <= count <= self._kept_to:
            raise WireError("it sends what no rank sends")
        if count > self._kept_from:  # else the count is from before the stream was resumed
            del self._kept[: count - self._kept_from]
            self._kept_from = count

    def say_received(self) -> bool:
        """Queue the count of received bytes if it is due; return whether it was."""
        if not self._keeps or self.received - self._said_received < ACKNOWLEDGED_BYTES:
            return False
        self._said_received = self.received
        self.put(_COUNTED, _COUNT.pack(self.received))
        return True

    # --- another connection

    @property
    def _kept_to(self) -> int:
        return self._kept_from + len(self._kept)

    def can_resume(self, received: int) -> bool:
        """Tell whether the peer can have received this many bytes, and all later bytes are kept here."""
        return self._keeps and self._kept_from <= received <= self._written_max

    def resume(self, received: int) -> None:
        """Continue over a new connection, after the bytes that the peer has `received`."""
        assert self.can_resume(received)
        if received > self._kept_to:  # an earlier connection delivered the bytes
            self.written(received - self._kept_to)
        again = bytes(memoryview(self._kept)[received - self._kept_from :])
        self._kept.clear()
        self._kept_from = received
        if again:
            self.begun.appendleft(memoryview(again))
            self.waiting_bytes += len(again)


class _Link:
    """The stream from this rank to one peer, and the connection that carries it."""

    def __init__(self, peer: int, connection: socket.socket, secret: bytes, dials: Dials | None) -> None:
        """`dials`: how the connection can be mended; None: not at all."""
        self.peer = peer
        self.connection = connection
        self.secret = secret
        self.dials = dials
        self.stream = Stream(keeps=dials is not None)
        self.awaits_room = False
        self.is_given_up = False
        self.has_sent_last = False
        self.has_left = False
        #: whether the connection is gone for good
        self.is_gone = False
        #: attempts to mend the broken connection
        self.mending: Mending | None = None
        self.how_broken = ""

    def write(self) -> bool:
        """Write as much as there is room for; return whether everything was written. Raises OSError."""
        stream = self.stream
        while stream.waiting_bytes:
            stream.begin()
            try:
                stream.written(self.connection.sendmsg(stream.begun))
            except BlockingIOError:
                return False
        return True

    def read(self, buffer: bytearray) -> list[tuple[int, bytes]]:
        """Return kinds and contents of the received messages. Raises OSError, EOFError at the end."""
        try:
            size = self.connection.recv_into(buffer)
        except BlockingIOError:
            return []
        if size == 0:
            raise EOFError
        return self.stream.take(memoryview(buffer)[:size])


class Links:
    """All connections of one rank. `fileno` is readable when data has arrived, or there is room again."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._secret = b""
        self._epoll = select.epoll()
        self._links: dict[int, _Link] = {}
        self._by_descriptor: dict[int, _Link] = {}
        self._listeners: dict[int, socket.socket] = {}
        self._doorkeeper = Doorkeeper()
        #: connections that have not identified themselves, with the bytes received
        self._strangers: dict[int, tuple[socket.socket, bytearray]] = {}
        self._owed: set[_Link] = set()
        #: links whose connections are being mended
        self._broken: set[_Link] = set()
        self._arrived: deque[Arrival] = deque()
        #: peers for `take_ended`, with reasons, and for `take_back`
        self.ended: list[tuple[int, str]] = []
        self.back: list[int] = []
        #: longest time that a connection may be broken before its peer counts as lost
        self.patience_s = math.inf
        self._buffer = bytearray(0)
        self.place: Place | None = None
        #: whether any rank is, or may be, connected
        self.is_used = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    def has(self, peer: int) -> bool:
        return peer in self._links

    # --- who is connected -------------------------------------------------------------------

    def listen(self, secret: bytes, folder: Path, *, wide: bool) -> Place:
        """Accept connections of ranks that know the secret: from this host, and (`wide`) from other hosts.

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
        """Connect to a rank, without waiting for its loop. Raises LinkError."""
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
                own_port = 0 if self.place is None else self.place.port
                connection.sendall(_HELLO.pack(_JOIN, self._secret, self.rank, own_port))
            except OSError as error:
                connection.close()
                problem = str(error)
                continue
            self._add(peer, connection, Dials(True, (place.address, place.port)))
            return
        raise LinkError(f"rank {self.rank} cannot connect to rank {peer}: {problem}")

    def await_connections(self, peers: Collection[int]) -> None:
        """Wait until all these ranks have connected. Raises LinkError."""
        deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
        while missing := [peer for peer in peers if peer not in self._links]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self.ended:
                raise LinkError(f"rank {self.rank} has not been connected to by rank {missing[0]}")
            if select.select((self._epoll,), (), (), left_s)[0]:
                self._look()

    def _add(self, peer: int, connection: socket.socket, dials: Dials) -> None:
        self.is_used = True
        between_hosts = connection.family == socket.AF_INET
        link = self._links[peer] = _Link(peer, connection, self._secret, dials if between_hosts else None)
        self._plug_in(link, connection)

    def _plug_in(self, link: _Link, connection: socket.socket) -> None:
        link.connection = connection
        link.awaits_room = False
        connection.setblocking(False)
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        self._by_descriptor[connection.fileno()] = link
        with contextlib.suppress(FileExistsError):  # registered since it was a stranger's
            self._epoll.register(connection.fileno(), select.EPOLLIN)

    def _unplug(self, link: _Link) -> None:
        """Close the link's connection, or its attempts to mend it."""
        if self._by_descriptor.pop(link.connection.fileno(), None) is not None:
            self._epoll.unregister(link.connection.fileno())
        link.connection.close()
        self._owed.discard(link)
        if link.mending is not None:
            link.mending.close()
            link.mending = None
            self._broken.discard(link)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection = self._doorkeeper.accept(listener)
        except OSError:
            return
        if connection is None:
            return
        if len(self._strangers) >= _STRANGERS_MAX:  # silent strangers must not keep ranks out
            self._send_away(next(iter(self._strangers)))
        connection.setblocking(False)
        self._strangers[connection.fileno()] = (connection, bytearray())
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        self._get_to_know(connection.fileno())  # a rank's first message is here already: no flood closes it

    def _get_to_know(self, descriptor: int) -> None:
        connection, said = self._strangers[descriptor]
        wanted = _HELLO_BYTES[said[0]] if said else 1
        try:
            more = connection.recv(wanted - len(said))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        said += more
        if not more or said[0] not in _HELLO_BYTES:
            self._send_away(descriptor)
        elif len(said) < _HELLO_BYTES[said[0]]:
            if wanted == 1:
                self._get_to_know(descriptor)
        elif said[0] == _JOIN:
            self._meet(descriptor, connection, bytes(said))
        else:
            self._meet_again(descriptor, connection, bytes(said))

    def _meet(self, descriptor: int, connection: socket.socket, said: bytes) -> None:
        """Add a peer that connects for the first time, if it knows the secret."""
        _, secret, peer, port = _HELLO.unpack(said)
        if not mending.is_same(secret, self._secret) or peer in self._links or peer == self.rank:
            self._send_away(descriptor)
            return
        listener = None
        if connection.family == socket.AF_INET and port:
            with contextlib.suppress(OSError):  # it has closed the connection already
                listener = (connection.getpeername()[0], port)
        del self._strangers[descriptor]
        self._add(peer, connection, Dials(False, listener))

    def _meet_again(self, descriptor: int, connection: socket.socket, said: bytes) -> None:
        """Resume a link over a peer's new connection, if its `hello` is genuine."""
        _, peer, nonce, received, _ = mending.HELLO.unpack(said)
        link = self._links.get(peer)
        if (
            link is None
            or link.dials is None
            or link.dials.is_ours
            or link.is_gone
            or not mending.is_hello_of(said, link.secret, peer, self.rank)
            or not link.stream.can_resume(received)
        ):
            self._send_away(descriptor)
            return
        try:
            connection.send(mending.answer(link.secret, nonce, link.stream.received))
        except OSError:
            self._send_away(descriptor)
            return
        del self._strangers[descriptor]
        self._resume(link, connection, received)

    def _resume(self, link: _Link, connection: socket.socket, received: int) -> None:
        self._unplug(link)
        self._plug_in(link, connection)
        link.stream.resume(received)
        if link.is_given_up:
            self.back.append(link.peer)
        self._write(link)

    def _send_away(self, descriptor: int) -> None:
        connection, _ = self._strangers.pop(descriptor)
        self._epoll.unregister(descriptor)
        connection.close()

    # --- messages ------------------------------------------------------------------------------

    def send(self, peer: int, channel: Channel, data: Buffer) -> int:
        """To be written by `flush`; how many bytes wait for that peer now."""
        link = self._links.get(peer)
        if link is None or link.has_sent_last or link.is_gone:
            return 0
        link.stream.put(channel, data)
        self._owed.add(link)
        return link.stream.waiting_bytes

    def waiting_bytes(self, peer: int) -> int:
        """Return the number of bytes to be written to this peer; 0: the peer is gone."""
        link = self._links.get(peer)
        if link is None or link.is_gone or (link.is_given_up and link.mending is not None):
            return 0
        return link.stream.waiting_bytes

    def flush(self) -> float:
        """Write what was sent since the last flush; return how long the loop may wait before `receive`.

        No descriptor announces what becomes due by that time.
        """
        if self._owed:
            owed, self._owed = self._owed, set()
            for link in owed:
                self._write(link)
        if self._arrived or self.ended or self.back:
            return 0.0
        if not self._broken:
            return math.inf
        next_s = min(link.mending.next_s for link in self._broken if link.mending is not None)
        return max(0.0, min(next_s - time.monotonic(), _MENDING_PARK_MAX_S))

    def _write(self, link: _Link) -> None:
        if link.is_gone or link.mending is not None:
            return
        try:
            awaits_room = not link.write()
        except OSError as error:
            self._break(link, error)
            return
        if awaits_room != link.awaits_room:
            link.awaits_room = awaits_room
            events = select.EPOLLIN | select.EPOLLOUT if awaits_room else select.EPOLLIN
            self._epoll.modify(link.connection.fileno(), events)

    def receive(self) -> Iterator[Arrival]:
        """Yield the received messages, or some if there are many; the next call yields the rest."""
        if not self._arrived:
            self._look()
        while self._arrived:
            yield self._arrived.popleft()

    def put_back(self, arrivals: Iterable[Arrival]) -> None:
        """Have these messages received again, before all others."""
        self._arrived.extendleft(reversed([*arrivals]))

    def _look(self) -> None:
        if self._broken:
            self._mend(time.monotonic())
        for descriptor, events in self._epoll.poll(0):
            if (listener := self._listeners.get(descriptor)) is not None:
                self._accept(listener)
            elif descriptor in self._strangers:
                self._get_to_know(descriptor)
            elif (link := self._by_descriptor.get(descriptor)) is not None:
                if events & select.EPOLLOUT:
                    self._write(link)
                if events & ~select.EPOLLOUT and self._by_descriptor.get(descriptor) is link:
                    self._read(link)

    def _read(self, link: _Link) -> None:
        try:
            for kind, data in link.read(self._buffer):
                if kind == LAST:
                    link.has_left = True
                else:
                    self._arrived.append(Arrival(link.peer, Channel(kind), data))
        except WireError as error:
            self._end(link, f"is not connected: {error}")
        except (OSError, EOFError) as error:
            self._break(link, error)
        else:
            if not (link.has_left or link.has_sent_last) and link.stream.say_received():
                self._owed.add(link)

    def _break(self, link: _Link, error: Exception) -> None:
        """Mend the ended connection, unless its end is the peer's end."""
        how = "has ended its connection" if isinstance(error, EOFError) else f"is not connected: {error}"
        if link.dials is None or link.has_left:
            self._end(link, how)
            return
        self._unplug(link)
        received = link.stream.received
        link.mending = Mending(
            self.rank, link.peer, link.secret, link.dials, received, self._epoll, time.monotonic()
        )
        link.mending.is_patient = link.is_given_up
        link.how_broken = how
        self._broken.add(link)

    def _mend(self, now: float) -> None:
        for link in list(self._broken):
            attempts = link.mending
            assert attempts is not None
            if (resumed := attempts.turn(now)) is not None:
                if link.stream.can_resume(resumed.received):
                    self._resume(link, *resumed)
                else:
                    resumed.connection.close()
                    self._end(link, "has lost what was said to it")
            elif attempts.is_refused(now):
                self._end(link, link.how_broken)
            elif not link.is_given_up and now > attempts.since_s + self.patience_s:
                self.ended.append((link.peer, f"{link.how_broken}, and has not been reached since"))
                self.give_up_on(link.peer)

    def _end(self, link: _Link, how: str) -> None:
        """End the link: its peer is gone, or sends what no rank sends."""
        if link.is_gone:
            return
        self._unplug(link)
        link.is_gone = True
        if not link.is_given_up and not link.has_left:
            self.ended.append((link.peer, how))

    def take_ended(self) -> list[tuple[int, str]]:
        """Return the peers, not given up on, whose connections ended since the last call, and how."""
        ended, self.ended = self.ended, []
        return ended

    def take_back(self) -> list[int]:
        """Return the given-up peers that have connected again since the last call."""
        back, self.back = self.back, []
        return back

    def give_up_on(self, peer: int) -> None:
        """Drop what cannot be written to a peer now; the peer may be alive, and about to leave.

        Its messages are still received, since it may need an answer.
        """
        if (link := self._links.get(peer)) is not None:
            link.is_given_up = True
            if link in self._owed:
                self._owed.discard(link)
                self._write(link)
            link.stream.forget_waiting()
            if link.mending is not None:
                link.mending.is_patient = True

    # --- leaving ---------------------------------------------------------------------------------

    def part(self) -> None:
        """Tell all peers that nothing more comes."""
        for link in self._links.values():
            if not link.has_sent_last:
                link.stream.put(LAST, b"")
                link.has_sent_last = True
                self._owed.add(link)

    def has_parted(self) -> bool:
        """Tell whether all remaining peers have parted, too, and all messages to them are written."""
        left = [link for link in self._links.values() if not link.is_given_up and not link.is_gone]
        return all(link.has_left and not link.stream.waiting_bytes for link in left)

    def close(self) -> None:
        for link in self._links.values():
            link.connection.close()
            if link.mending is not None:
                link.mending.close()
        for listener in self._listeners.values():
            listener.close()
        for connection, _ in self._strangers.values():
            connection.close()
        self._doorkeeper.close()
        self._epoll.close()
