"""Messages with large buffers on a stream socket, and the proof that both ends know the job's key.

A frame is: the size of its head (4 bytes), the number of buffers (4 bytes), the size of each buffer (8 bytes
each), the head (a message in msgpack), and the buffers; numbers are little endian. Large buffers are sent
from where they are and received into new memory, so only the kernel copies an array.

Unpickling runs code, so no frame is read before the other end has proved that it knows the key. For this each
end sends 32 random bytes, and answers the other end's bytes with an HMAC (SHA-256), under the key, of its
own role and both ends' bytes. Where no key is possible, `peer_user` replaces the proof.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

#: data that can be sent: bytes, or any other contiguous memory
Buffer: TypeAlias = Any

KEY_BYTES = 32
_NONCE_BYTES = 32
_PREFIX = struct.Struct("<II")
_SIZE_BYTES = 8
#: bounds that only a damaged frame exceeds: a head holds small data, such as the numbers of its calls
_HEAD_BYTES_MAX = 1 << 28
_BUFFERS_MAX = 1 << 24
#: greatest number of buffers in one system call (IOV_MAX is 1024)
_VIEWS_AT_ONCE = 256
#: size of the largest buffers that are copied together
_JOIN_BYTES_MAX = 1 << 13
_STAGE_BYTES = 1 << 16
#: bytes that a Unix socket may hold, if the kernel allows: by default it holds several times less, and both
#: ends take many turns for one array. Network sockets adapt by themselves
_SENT_BYTES_MAX = 1 << 20
_HANDSHAKE_S = 10.0


class PeerGone(Exception):
    """The connection is closed."""


class NotTrusted(Exception):
    """The other end does not know the key."""


class Frame:
    """The head of a frame and the buffers that follow it."""

    __slots__ = ("buffers", "head")

    def __init__(self, head: bytes, buffers: list[bytearray]) -> None:
        self.head = head
        self.buffers = buffers


def frame_parts(head: bytes, buffers: Sequence[Buffer] = ()) -> list[memoryview]:
    """Return the pieces of a frame; large buffers are pieces of their own, not copied."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    sizes = struct.pack(f"<{len(views)}Q", *map(len, views))
    parts: list[memoryview] = []
    small = [_PREFIX.pack(len(head), len(views)), sizes, head]
    for view in views:
        if len(view) <= _JOIN_BYTES_MAX:
            small.append(view)  # type: ignore[arg-type]
        else:
            parts += (memoryview(b"".join(small)), view)
            small = []
    if small:
        parts.append(memoryview(b"".join(small)))
    return parts


class FrameWriter:
    """A writer that sends as many bytes of frames as the socket takes, and keeps the remainder."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._parts: deque[memoryview] = deque()

    def put(self, head: bytes, buffers: Sequence[Buffer] = ()) -> None:
        self._parts.extend(frame_parts(head, buffers))

    @property
    def is_done(self) -> bool:
        return not self._parts

    def flush(self) -> None:
        """Send as much as the socket takes now. Raises PeerGone."""
        parts = self._parts
        while parts:
            views = [parts[index] for index in range(min(len(parts), _VIEWS_AT_ONCE))]
            try:
                sent = self._socket.sendmsg(views)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                raise PeerGone from None
            while parts and sent >= len(parts[0]):
                sent -= len(parts.popleft())
            if sent:
                parts[0] = parts[0][sent:]

    def flush_all(self) -> None:
        """Send all remaining bytes, on a blocking socket. Raises PeerGone."""
        while self._parts:
            self.flush()


class FrameReader:
    """A reader that takes in frames as they come, without waiting."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        #: bytes received and not decoded
        self._stage = bytearray()
        self._scratch = bytearray(_STAGE_BYTES)
        self._head: bytes | None = None
        #: for the frame that is being received: sizes of all its buffers, the buffers begun so far, and the
        #: number of bytes received of the last buffer
        self._sizes: tuple[int, ...] = ()
        self._buffers: list[bytearray] = []
        self._filled = 0

    def read(self) -> list[Frame]:
        """Return the frames that are complete. Raises PeerGone if the connection is closed."""
        frames: list[Frame] = []
        while True:
            self._parse(frames)
            target = self._target()
            try:
                if target is not None:
                    count = self._socket.recv_into(target, 0, socket.MSG_DONTWAIT)
                    self._filled += count
                else:
                    count = self._socket.recv_into(self._scratch, 0, socket.MSG_DONTWAIT)
                    self._stage += memoryview(self._scratch)[:count]
            except (BlockingIOError, InterruptedError):
                return frames
            except OSError:
                count = 0
            if not count:
                if frames:
                    return frames  # the next call of `read` finds the connection's end
                raise PeerGone

    def _target(self) -> memoryview | None:
        """Return the unfilled part of the buffer being received; None: no buffer is being received."""
        index = len(self._buffers) - 1
        if self._head is None or index < 0 or self._filled == len(self._buffers[index]):
            return None
        return memoryview(self._buffers[index])[self._filled :]

    def _parse(self, frames: list[Frame]) -> None:
        stage, begin = self._stage, 0
        while True:
            if self._head is None:
                if len(stage) - begin < _PREFIX.size:
                    break
                head_bytes, count = _PREFIX.unpack_from(stage, begin)
                if head_bytes > _HEAD_BYTES_MAX or count > _BUFFERS_MAX:
                    raise PeerGone
                sizes_end = begin + _PREFIX.size + _SIZE_BYTES * count
                if len(stage) < sizes_end + head_bytes:
                    break
                self._sizes = struct.unpack_from(f"<{count}Q", stage, begin + _PREFIX.size)
                self._head = bytes(memoryview(stage)[sizes_end : sizes_end + head_bytes])
                begin = sizes_end + head_bytes
            if self._buffers and self._filled < len(self._buffers[-1]):
                # staged bytes fill the buffer first; later bytes are received directly into the buffer
                count = min(len(stage) - begin, len(self._buffers[-1]) - self._filled)
                self._buffers[-1][self._filled : self._filled + count] = memoryview(stage)[
                    begin : begin + count
                ]
                self._filled, begin = self._filled + count, begin + count
                if self._filled < len(self._buffers[-1]):
                    break
            if len(self._buffers) < len(self._sizes):
                self._buffers.append(bytearray(self._sizes[len(self._buffers)]))
                self._filled = 0
                continue
            frames.append(Frame(self._head, self._buffers))
            self._head, self._buffers, self._sizes, self._filled = None, [], (), 0
        if begin:
            del stage[:begin]


def let_hold_arrays(connection: socket.socket) -> None:
    """Enlarge a Unix socket's buffer to about a megabyte."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_BYTES_MAX)


# --- the proof ------------------------------------------------------------------------------------


def peer_user(connection: socket.socket) -> int:
    """Ask the kernel for the user id of the process at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


def prove_and_check(connection: socket.socket, key: bytes, own_role: bytes, other_role: bytes) -> None:
    """Prove to the other end that this end knows the key, and check its proof.

    Must be called before any frame is read. Raises NotTrusted, PeerGone.
    """
    connection.settimeout(_HANDSHAKE_S)
    try:
        own_nonce = os.urandom(_NONCE_BYTES)
        connection.sendall(own_nonce)
        other_nonce = _exactly(connection, _NONCE_BYTES)
        connection.sendall(_answer(key, own_role, other_nonce, own_nonce))
        answer = _exactly(connection, _NONCE_BYTES)
    except OSError:
        raise PeerGone from None
    if not hmac.compare_digest(answer, _answer(key, other_role, own_nonce, other_nonce)):
        raise NotTrusted
    connection.settimeout(None)


class Handshake:
    """The proof of `prove_and_check` for an end that must not block: call `advance` when bytes have come."""

    def __init__(self, connection: socket.socket, key: bytes, own_role: bytes, other_role: bytes) -> None:
        self._socket = connection
        self._key, self._roles = key, (own_role, other_role)
        self._own_nonce = os.urandom(_NONCE_BYTES)
        self._data = b""
        self._has_answered = False
        self._send(self._own_nonce)

    def advance(self) -> bool:
        """Take in received bytes; return whether the proof is complete. Raises NotTrusted, PeerGone."""
        wanted = 2 * _NONCE_BYTES - len(self._data)
        try:
            data = self._socket.recv(wanted, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            raise PeerGone from None
        if not data:
            raise PeerGone
        self._data += data
        other_nonce = self._data[:_NONCE_BYTES]
        if len(other_nonce) == _NONCE_BYTES and not self._has_answered:
            self._has_answered = True
            self._send(_answer(self._key, self._roles[0], other_nonce, self._own_nonce))
        if len(self._data) < 2 * _NONCE_BYTES:
            return False
        expected = _answer(self._key, self._roles[1], self._own_nonce, other_nonce)
        if not hmac.compare_digest(self._data[_NONCE_BYTES:], expected):
            raise NotTrusted
        return True

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)  # sending a few bytes on a new connection never blocks
        except OSError:
            raise PeerGone from None


def _answer(key: bytes, role: bytes, nonce: bytes, own_nonce: bytes) -> bytes:
    return hmac.digest(key, role + nonce + own_nonce, "sha256")


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise PeerGone
        data += more
    return data
