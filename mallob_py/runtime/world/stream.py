"""A stream of messages between two ranks that outlives the connections which carry it.

Messages are frames in one sequence of bytes. The receiver counts the bytes that have come and now and then
says how many; the sender keeps what it has written until then. When a connection breaks, both go on over the
next one from the byte where the receiver stands: no message is lost, none comes twice, and their order stays.

A stream that `keeps` nothing cannot be resumed: that of a connection which breaks with its peer only, as one
within a host. Control messages overtake large data that has not begun to be written.

Guarantees: what is kept is no more than ACKNOWLEDGED_BYTES and what the connection had room for. Pure: no
sockets, no clock; `links.py` writes and reads.
"""

from __future__ import annotations

import struct
from collections import deque

from mallob_py.runtime.world.envelope import Channel, WireError

#: size of a message and its channel
_FRAME = struct.Struct("<IB")
_COUNT = struct.Struct("<Q")
#: the channel of the last frame, which is no message: the sender sends nothing any more
LAST = 255
#: the channel of a frame that says how many bytes have come
_COUNTED = 254
_KINDS = frozenset({*Channel, LAST, _COUNTED})
#: a receiver says how much has come after each so many bytes
ACKNOWLEDGED_BYTES = 16 << 10
_BUFFERS_MAX = 64
#: a longer message cannot be sent
MESSAGE_BYTES_MAX = 1 << 31

Buffer = bytes | bytearray | memoryview


class Stream:
    """Both directions, as one end has them. `begun` is to be written next; `written` tells how much was."""

    def __init__(self, *, keeps: bool) -> None:
        self._waiting: dict[Channel, deque[memoryview]] = {channel: deque() for channel in Channel}
        self.waiting_bytes = 0
        #: of frames that are being written: they go first
        self.begun: deque[memoryview] = deque()
        self._keeps = keeps
        #: what was written and may have to be written again, and its place among all that was ever written
        self._kept = bytearray()
        self._kept_from = 0
        #: how many bytes were ever written, those that are to be written again included
        self._written_max = 0
        #: how many bytes have come
        self.received = 0
        self._said_received = 0
        self._data = bytearray()

    # --- out

    def put(self, kind: int, data: Buffer) -> None:
        """A message of a channel, or LAST."""
        queue = self._waiting[Channel.BULK if kind == Channel.BULK else Channel.CONTROL]
        queue.append(memoryview(_FRAME.pack(len(data), kind)))
        if len(data):
            queue.append(memoryview(data).cast("B"))
        self.waiting_bytes += _FRAME.size + len(data)

    def begin(self) -> None:
        """Have something in `begun`: some messages, or one of large data, which others are to overtake."""
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
        """Note that so much of `begun` has gone."""
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
        """But for what is partly written: a frame stays whole."""
        for queue in self._waiting.values():
            queue.clear()
        self.waiting_bytes = sum(len(each) for each in self.begun)

    # --- in

    def take(self, data: Buffer) -> list[tuple[int, bytes]]:
        """Kinds and contents of the messages that are complete with this. Raises WireError."""
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
        if count > self._kept_from:  # else it was said before the stream was resumed
            del self._kept[: count - self._kept_from]
            self._kept_from = count

    def say_received(self) -> bool:
        """Put a word of how much has come, if one is due; whether it was."""
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
        """Whether the peer can have received so many bytes, and what comes after them is here."""
        return self._keeps and self._kept_from <= received <= self._written_max

    def resume(self, received: int) -> None:
        """Go on from there, over a new connection."""
        assert self.can_resume(received)
        if received > self._kept_to:  # it has come by a connection before the one that broke
            self.written(received - self._kept_to)
        again = bytes(memoryview(self._kept)[received - self._kept_from :])
        self._kept.clear()
        self._kept_from = received
        if again:
            self.begun.appendleft(memoryview(again))
            self.waiting_bytes += len(again)
