"""Links: stream sockets, never blocking, to ranks that MPI cannot or should not reach.

Links reach ranks that joined later, which are not in MPI's world, and, if the loss of a rank must be
survived, ranks of other hosts (`transport.py` has the reason).

Why not MPI: its processes can connect later (`MPI_Comm_accept`), but each pair of ranks would have to connect
separately, since collective calls would need ranks that may be dead. Such a call stops both event loops (20
to 35 ms, measured with MPICH), and one loop for ever if the other rank dies before its call; and Open MPI
cannot connect two launches at all. Processes that MPI spawns die with their parents. A socket connects
without the peer's loop, reports the peer's death by itself, and works with any launcher.

A rank listens as soon as ranks may join (`listen`). A joining rank connects to all other ranks (`connect`),
and identifies itself by the session's secret. Within a host the socket is AF_UNIX, in the session's folder;
otherwise it is TCP. Messages are queued; `flush` writes them, control messages before large data.

A connection within a host ends only when the peer ends, and that is noticed at once. A connection between
hosts may break while both ranks live: it is mended (`mending.py`), and its messages continue (`Stream`). The
peer counts as lost when its port refuses connections, or after `patience_s` without a connection. Even then,
rare attempts to connect continue: when a divided network is whole again, both ranks hear of that
(`take_back`).

Guarantees: messages of one rank arrive once and, within a channel, in the order of sending. A connection that
does not send the secret first is closed without an answer. A rank without links has nothing to do: `is_used`
is False. As in MPI, nothing is encrypted: all users of the network must be trusted.
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
#: first message of a connecting rank: kind, secret, own rank, and the port where it listens
_HELLO = struct.Struct(f"<B{SECRET_BYTES}sIH")
_HELLO_BYTES = {_JOIN: _HELLO.size, mending.RESUME: mending.HELLO.size}
_READ_BYTES = 256 << 10
_STRANGERS_MAX = 64
#: greatest number of ranks that may connect at once: at the start, all ranks of other hosts do
_BACKLOG = 4096
_CONNECT_TIMEOUT_S = 10.0
#: time after which data without an acknowledgement breaks the connection, and is sent again over a new one
_UNACKNOWLEDGED_MS = 5000
#: longest time between two checks of broken connections' deadlines
_MENDING_PARK_MAX_S = 0.5


class LinkError(Exception):
    """Error: a rank cannot connect to another rank, or cannot listen."""


#: header of a frame: the message's size, and its channel
_FRAME = struct.Struct("<IB")
_COUNT = struct.Struct("<Q")
#: the channel of the last frame, which is no message: the sender sends nothing after it
LAST = 255
#: the channel of a frame that reports how many bytes were received
_COUNTED = 254
_KINDS = frozenset({*Channel, LAST, _COUNTED})
#: number of received bytes after which a receiver reports its count
ACKNOWLEDGED_BYTES = 16 << 10
_BUFFERS_MAX = 64
#: greatest size of a message
MESSAGE_BYTES_MAX = 1 << 31

Buffer = bytes | bytearray | memoryview


class Stream:
    """One end of a stream of messages between two ranks, which outlives its connections.

    Messages are frames in one sequence of bytes. The receiver counts the bytes and reports the count now and
    then; the sender keeps written bytes until the receiver has counted them. When a connection breaks, both
    ends continue over the next connection at the first byte that the receiver lacks: no message is lost, no
    message arrives twice, and the order stays.

    A stream with `keeps` False keeps no written bytes and cannot be resumed; it suits connections within a
    host, which break only when the peer ends. Control messages overtake large data that is not begun.

    The caller must write the parts in `begun` next, and report the number of written bytes by `written`. The
    stream keeps at most ACKNOWLEDGED_BYTES and the bytes in the connection's buffers. Pure: no sockets, no
    clock.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._waiting: dict[Channel, deque[memoryview]] = {channel: deque() for channel in Channel}
        self.waiting_bytes = 0
        #: parts of frames to write next; the beginning of the first part may be written already
        self.begun: deque[memoryview] = deque()
        self._keeps = keeps
        #: written bytes that may have to be written again, and the position in the stream of the first one
        self._kept = bytearray()
        self._kept_from = 0
        #: number of bytes ever written, including bytes that must be written again
        self._written_max = 0
        #: number of bytes received
        self.received = 0
        self._said_received = 0
        self._data = bytearray()

    # --- messages to the peer

    def put(self, kind: int, data: Buffer) -> None:
        """Queue a message. `kind`: its channel; LAST or _COUNTED for a frame that is no message."""
        queue = self._waiting[Channel.BULK if kind == Channel.BULK else Channel.CONTROL]
        queue.append(memoryview(_FRAME.pack(len(data), kind)))
        if len(data):
            queue.append(memoryview(data).cast("B"))
        self.waiting_bytes += _FRAME.size + len(data)

    def begin(self) -> None:
        """Fill an empty `begun`: with control messages, or, if there are none, with one bulk message only."""
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
        """Record that the first `size_bytes` bytes of `begun` were written."""
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

    # --- messages from the peer

    def take(self, data: Buffer) -> list[tuple[int, bytes]]:
        """Return (kind, content) of each message that `data` completes. Raises WireError."""
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
        if count > self._kept_from:  # a lower count was sent before the stream was resumed
            del self._kept[: count - self._kept_from]
            self._kept_from = count

    def say_received(self) -> bool:
        """Queue a report of the count of received bytes if one is due; return whether one was."""
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
        """Tell whether the peer can have received `received` bytes, and all later bytes are kept here."""
        return self._keeps and self._kept_from <= received <= self._written_max

    def resume(self, received: int) -> None:
        """Continue over a new connection, after the first `received` bytes, which the peer has received."""
        assert self.can_resume(received)
        if received > self._kept_to:  # bytes to be written again had arrived over an earlier connection
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
        """`dials`: how to mend the connection; None: it cannot be mended."""
        self.peer = peer
        self.connection = connection
        self.secret = secret
        self.dials = dials
        self.stream = Stream(keeps=dials is not None)
        self.awaits_room = False
        self.is_given_up = False
        self.has_sent_last = False
        self.has_left = False
        #: whether the connection has ended and will not be mended
        self.is_gone = False
        #: attempts to mend the broken connection
        self.mending: Mending | None = None
        self.how_broken = ""

    def write(self) -> bool:
        """Write as much as the connection takes; return whether everything was written. Raises OSError."""
        stream = self.stream
        while stream.waiting_bytes:
            stream.begin()
            try:
                stream.written(self.connection.sendmsg(stream.begun))
            except BlockingIOError:
                return False
        return True

    def read(self, buffer: bytearray) -> list[tuple[int, bytes]]:
        """Return (kind, content) of each received message. Raises OSError, and EOFError at the end."""
        try:
            size = self.connection.recv_into(buffer)
        except BlockingIOError:
            return []
        if size == 0:
            raise EOFError
        return self.stream.take(memoryview(buffer)[:size])


class Links:
    """All links of one rank. `fileno` is readable when data has arrived, or a connection takes data again."""

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
        #: links whose broken connections are being made again
        self._broken: set[_Link] = set()
        self._arrived: deque[Arrival] = deque()
        #: (peer, reason) of links that have ended, which `take_ended` will return
        self.ended: list[tuple[int, str]] = []
        self.back: list[int] = []
        #: longest time that a connection may be broken before its peer counts as lost
        self.patience_s = math.inf
        self._buffer = bytearray(0)
        self.place: Place | None = None
        #: whether any rank is connected or may connect
        self.is_used = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    def has(self, peer: int) -> bool:
        return peer in self._links

    # --- connected ranks --------------------------------------------------------------------

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
            try:
                connection = self._connected(family, at)
            except OSError as error:
                problem = str(error)
                continue
            self._add(peer, connection, Dials(True, (place.address, place.port)))
            return
        raise LinkError(f"rank {self.rank} cannot connect to rank {peer}: {problem}")

    def _connected(self, family: socket.AddressFamily, at: str | tuple[str, int]) -> socket.socket:
        """Return a new connection over which this rank has identified itself. Raises OSError."""
        connection = socket.socket(family)
        try:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.connect(at)
            own_port = 0 if self.place is None else self.place.port
            connection.sendall(_HELLO.pack(_JOIN, self._secret, self.rank, own_port))
        except OSError:
            connection.close()
            raise
        return connection

    def await_connections(self, peers: Collection[int]) -> None:
        """Wait until all ranks in `peers` have connected. Raises LinkError."""
        deadline_s = time.monotonic() + _CONNECT_TIMEOUT_S
        while missing := [peer for peer in peers if peer not in self._links]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self.ended:
                raise LinkError(f"rank {self.rank} waited in vain for a connection from rank {missing[0]}")
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
        with contextlib.suppress(FileExistsError):  # the connection may be registered already
            self._epoll.register(connection.fileno(), select.EPOLLIN)

    def _unplug(self, link: _Link) -> None:
        """Close the link's connection, and end attempts to mend it."""
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
        self._get_to_know(connection.fileno())  # read at once, so that no flood of strangers displaces a rank

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
            with contextlib.suppress(OSError):  # the peer has closed the connection already
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
        """Queue a message for `flush` to write; return how many bytes now wait for the peer."""
        link = self._links.get(peer)
        if link is None or link.has_sent_last or link.is_gone:
            return 0
        link.stream.put(channel, data)
        self._owed.add(link)
        return link.stream.waiting_bytes

    def waiting_bytes(self, peer: int) -> int:
        """Return the number of bytes that wait for a peer; 0 if the peer cannot be reached."""
        link = self._links.get(peer)
        if link is None or link.is_gone or (link.is_given_up and link.mending is not None):
            return 0
        return link.stream.waiting_bytes

    def flush(self) -> float:
        """Write the messages queued since the last flush; return how long the loop may wait before `receive`.

        No descriptor announces work that becomes due at the end of that time.
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
        """Yield received messages; if there are many, the next calls yield the remaining ones."""
        if not self._arrived:
            self._look()
        while self._arrived:
            yield self._arrived.popleft()

    def put_back(self, arrivals: Iterable[Arrival]) -> None:
        """Put messages back; the next `receive` yields them before all others."""
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
        """Begin to mend a broken connection; end the link if it cannot be mended, or the peer has left."""
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
                    self._end(link, "has lost messages from this rank")
            elif attempts.is_refused(now):
                self._end(link, link.how_broken)
            elif not link.is_given_up and now > attempts.since_s + self.patience_s:
                self.ended.append((link.peer, f"{link.how_broken}, and has not been reached since"))
                self.give_up_on(link.peer)

    def _end(self, link: _Link, how: str) -> None:
        """End a link because its peer has ended or sends what no rank sends."""
        if link.is_gone:
            return
        self._unplug(link)
        link.is_gone = True
        if not link.is_given_up and not link.has_left:
            self.ended.append((link.peer, how))

    def take_ended(self) -> list[tuple[int, str]]:
        """Return (peer, reason) of links that ended since the last call, except links to given-up peers."""
        ended, self.ended = self.ended, []
        return ended

    def take_back(self) -> list[int]:
        """Return the given-up peers that have connected again since the last call."""
        back, self.back = self.back, []
        return back

    def give_up_on(self, peer: int) -> None:
        """Write as much to a peer as its connection takes now; drop all other messages to it.

        The peer may be about to leave. Its messages are still received, because it may need an answer.
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
        """Tell all peers that this rank sends no more messages."""
        for link in self._links.values():
            if not link.has_sent_last:
                link.stream.put(LAST, b"")
                link.has_sent_last = True
                self._owed.add(link)

    def has_left(self, peer: int) -> bool:
        """Tell whether a connected peer has called `part`."""
        link = self._links.get(peer)
        return link is not None and link.has_left

    def has_parted(self) -> bool:
        """Tell whether all remaining peers have called `part`, too, and all messages to them are written."""
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
