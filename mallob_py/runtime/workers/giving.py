"""Giving: a rank hands a worker's process to another rank of the host (`protocol/giving.py`).

Each rank has a socket in its host's private folder. The giving rank sends to the receiving rank's socket: the
process's socket, pidfd and lifeline, an incomplete message from the process, and unsent bytes to it. The
process itself is stopped and notices nothing. It remains a child of the fork server that forked it, and ends
with that server at the latest.

Guarantees
- A process belongs to one rank at a time. If a packet reaches no rank, the last lifeline is closed, and the
  kernel ends the process. Few packets fit into a socket; a packet without room is sent again for a while.
- For every process that must be given, a packet is sent. If the process has ended, the packet says so.
  Packets may be lost.
"""

from __future__ import annotations

import array
import contextlib
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.workers.links import receive_packet

#: greatest number of bytes of messages given with a process; a process with more is not given
_UNDER_WAY_MAX = 1 << 15
#: period and duration of retries while a rank's socket is full; after that, the receiver does not wait any
#: more
_RETRY_S, _TRIED_S = 0.01, 1.0


class Given(wire.ProcessMessage, frozen=True):
    """A process for worker `number` of `job` at the receiver; without descriptors: there is no process."""

    job: int
    number: int
    pid: int = 0
    #: CPU time of the process for earlier tasks, plus this worker's CPU time already reported
    cpu_before_s: float = 0.0
    #: this worker's CPU time that was reported to the job's client
    cpu_told_s: float = 0.0
    #: whether the worker wants `Leave` before it must end
    leaves: bool = False
    #: beginning of an incomplete message from the process, and unsent bytes to it
    unread: bytes = b""
    unsent: bytes = b""


_decode = msgspec.msgpack.Decoder(Given).decode


class GivingSocket:
    """The socket by which a rank gives processes to other ranks of its host, and receives theirs."""

    def __init__(self, folder: Path, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the socket. Raises OSError."""
        self._folder = folder
        self._clock = clock
        #: packets that had no room: (time of the last try, rank, packet, copies of the descriptors)
        self._unsent: deque[tuple[float, int, bytes, list[int]]] = deque()
        #: time when `turn` must be called
        self.deadline_s = math.inf
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(self._path(rank))

    def _path(self, rank: int) -> str:
        return str(self._folder / f"given-{rank}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, rank: int, given: Given, descriptors: tuple[int, ...] = ()) -> None:
        """Send a rank a process, or the message that there is none. After a failure, the packet is lost."""
        if len(given.unread) + len(given.unsent) > _UNDER_WAY_MAX:
            given, descriptors = Given(given.job, given.number), ()
        packet = wire.encode(given)
        if self._is_sent(rank, packet, descriptors):
            return
        own: list[int] = []
        try:
            for descriptor in descriptors:
                own.append(os.dup(descriptor))
        except OSError:  # no descriptor is free
            _close(own)
            return
        self._unsent.append((self._clock() + _TRIED_S, rank, packet, own))
        self.deadline_s = min(self.deadline_s, self._clock() + _RETRY_S)

    def _is_sent(self, rank: int, packet: bytes, descriptors: Sequence[int]) -> bool:
        """Try once to send a packet; return False if the rank's socket has no room now."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._socket.sendmsg([packet], rights if descriptors else [], 0, self._path(rank))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def turn(self, now_s: float) -> None:
        """Try again to send packets that had no room."""
        for _ in range(len(self._unsent)):
            until_s, rank, packet, descriptors = one = self._unsent.popleft()
            if now_s < until_s and not self._is_sent(rank, packet, descriptors):
                self._unsent.append(one)
            else:
                _close(descriptors)
        self.deadline_s = now_s + _RETRY_S if self._unsent else math.inf

    def receive(self) -> tuple[Given, tuple[int, ...]] | None:
        """Return the next packet with its descriptors; None: no packet has arrived."""
        while True:
            try:
                packet, descriptors = receive_packet(self._socket)
            except BlockingIOError:
                return None
            with contextlib.suppress(msgspec.DecodeError):
                return _decode(packet), descriptors
            _close(descriptors)

    def close(self) -> None:
        """Close the socket; processes on their way to this rank end, and so do unsent processes."""
        self._socket.close()
        for *_, descriptors in self._unsent:
            _close(descriptors)
        self._unsent.clear()


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
