"""Clauses on their way between a worker process and the solver's process. Neither end ever blocks."""

from __future__ import annotations

import socket
import struct
from collections import deque

from mallob_sat.clauses import Clauses

_SIZE = struct.Struct("<I")
#: clauses that the other end has not read yet; more are dropped
_UNREAD_BYTES_MAX = 1 << 20
_READ_BYTES = 1 << 18


class ClausePipe:
    """One end: sends clauses to the other and receives what that has sent."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._received = bytearray()

    @classmethod
    def pair(cls) -> tuple[ClausePipe, ClausePipe]:
        ours, theirs = socket.socketpair()
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, clauses: Clauses) -> None:
        self._flush()
        if not len(clauses) or self._unsent_bytes > _UNREAD_BYTES_MAX:
            return
        body = clauses.encode()
        self._unsent.append(memoryview(_SIZE.pack(len(body)) + body))
        self._unsent_bytes += len(self._unsent[-1])
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._end.send(self._unsent[0])
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                return
            self._unsent_bytes -= sent
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def received(self) -> list[Clauses]:
        """What has come whole."""
        while True:
            try:
                data = self._end.recv(_READ_BYTES)
            except (BlockingIOError, ConnectionResetError):
                break
            if not data:
                break
            self._received += data
        found, begin = [], 0
        while len(self._received) - begin >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._received, begin)
            end = begin + _SIZE.size + size
            if end > len(self._received):
                break
            found.append(Clauses.decode(bytes(self._received[begin + _SIZE.size : end])))
            begin = end
        del self._received[:begin]
        return found

    def close(self) -> None:
        self._end.close()
