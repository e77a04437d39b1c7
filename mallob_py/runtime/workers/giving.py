"""Worker processes that go on at another rank of the host (`protocol/giving.py`), and how they get there.

Each rank has a socket in the private folder of its host. Who gives a process sends there its own ends of it:
the process's socket, its pidfd and its lifeline, and what it had read of a message or not sent yet. The
process itself, which is stopped, notices nothing. It remains the child of the fork server that forked it, and
ends with that at the latest.

Guarantees
- A process has one rank at a time. If what was sent reaches no rank, the last lifeline is closed, and the
  kernel ends the process. Few packets may wait at a socket: what finds no room there is sent again for a
  while.
- Whoever is asked answers, if with nothing; that may be lost as well.
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

#: what is on its way in a process's socket is no concern of ours; more than this in between is rare
_UNDER_WAY_MAX = 1 << 15
#: how often and how long a rank is tried whose socket is full; afterwards nobody waits there any more
_RETRY_S, _TRIED_S = 0.01, 1.0


class Given(wire.ProcessMessage, frozen=True):
    """A process for worker `number` of `job` at the receiver. Without descriptors: there is none."""

    job: int
    number: int
    pid: int = 0
    #: CPU time of the process that is not this worker's, or that its client has been told of
    cpu_before_s: float = 0.0
    #: the part of it that is this worker's
    cpu_told_s: float = 0.0
    #: it hands over what it has when it has to go
    leaves: bool = False
    #: the beginning of a message of the process, and the end of one to it
    unread: bytes = b""
    unsent: bytes = b""


_decode = msgspec.msgpack.Decoder(Given).decode


class GivingSocket:
    """Where a rank gives processes to others of its host, and takes them."""

    def __init__(self, folder: Path, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError."""
        self._folder = folder
        self._clock = clock
        #: (until when, rank, packet, descriptors of our own) of what has found no room yet
        self._unsent: deque[tuple[float, int, bytes, list[int]]] = deque()
        #: when `turn` is wanted
        self.deadline_s = math.inf
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(self._path(rank))

    def _path(self, rank: int) -> str:
        return str(self._folder / f"given-{rank}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, rank: int, given: Given, descriptors: tuple[int, ...] = ()) -> None:
        """Send a process to a rank, or word that there is none. If that fails, it is as if it were lost."""
        if len(given.unread) + len(given.unsent) > _UNDER_WAY_MAX:
            given, descriptors = Given(given.job, given.number), ()
        packet = wire.encode(given)
        if self._is_sent(rank, packet, descriptors):
            return
        own: list[int] = []
        try:
            for descriptor in descriptors:
                own.append(os.dup(descriptor))
        except OSError:  # no more can be had
            _close(own)
            return
        self._unsent.append((self._clock() + _TRIED_S, rank, packet, own))
        self.deadline_s = min(self.deadline_s, self._clock() + _RETRY_S)

    def _is_sent(self, rank: int, packet: bytes, descriptors: Sequence[int]) -> bool:
        """Try once. False if there is no room at that rank; it may as well be gone."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._socket.sendmsg([packet], rights if descriptors else [], 0, self._path(rank))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def turn(self, now_s: float) -> None:
        """Try once more what has found no room."""
        for _ in range(len(self._unsent)):
            until_s, rank, packet, descriptors = one = self._unsent.popleft()
            if now_s < until_s and not self._is_sent(rank, packet, descriptors):
                self._unsent.append(one)
            else:
                _close(descriptors)
        self.deadline_s = now_s + _RETRY_S if self._unsent else math.inf

    def receive(self) -> tuple[Given, tuple[int, ...]] | None:
        """The next process that has come, with its descriptors, or word that there is none."""
        while True:
            try:
                packet, descriptors = receive_packet(self._socket)
            except BlockingIOError:
                return None
            with contextlib.suppress(msgspec.DecodeError):
                return _decode(packet), descriptors
            _close(descriptors)

    def close(self) -> None:
        """Processes that are on their way here end, and those that have found no room."""
        self._socket.close()
        for *_, descriptors in self._unsent:
            _close(descriptors)
        self._unsent.clear()


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
