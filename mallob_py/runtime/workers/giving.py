"""Worker processes that go on at another rank of the host (`protocol/giving.py`), and how they get there.

Each rank has a socket in the private folder of its host. Who gives a process sends there its own ends of it:
the process's socket, its pidfd and its lifeline, and what it had read of a message or not sent yet. The
process itself, which is stopped, notices nothing. It remains the child of the fork server that forked it, and
ends with that at the latest.

Guarantees
- A process has one rank at a time. If what was sent reaches no rank, the last lifeline is closed, and the
  kernel ends the process.
- Whoever is asked answers, if with nothing; that may be lost as well.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from pathlib import Path

import msgspec

from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.workers.links import receive_packet

#: what is on its way in a process's socket is no concern of ours; more than this in between is rare
_UNDER_WAY_MAX = 1 << 15


class Given(wire.ProcessMessage, frozen=True):
    """A process for worker `number` of `job` at the receiver. Without descriptors: there is none."""

    job: int
    number: int
    pid: int = 0
    #: CPU time of the process that is not this worker's, or that its client has been told of
    cpu_before_s: float = 0.0
    #: the part of it that is this worker's
    cpu_told_s: float = 0.0
    #: the beginning of a message of the process, and the end of one to it
    unread: bytes = b""
    unsent: bytes = b""


_decode = msgspec.msgpack.Decoder(Given).decode


class GivingSocket:
    """Where a rank gives processes to others of its host, and takes them."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Raises OSError."""
        self._folder = folder
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
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        )
        with contextlib.suppress(OSError):
            self._socket.sendmsg([wire.encode(given)], rights, 0, self._path(rank))

    def receive(self) -> tuple[Given, tuple[int, ...]] | None:
        """The next process that has come, with its descriptors, or word that there is none."""
        while True:
            try:
                packet, descriptors = receive_packet(self._socket)
            except BlockingIOError:
                return None
            with contextlib.suppress(msgspec.DecodeError):
                return _decode(packet), descriptors
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self) -> None:
        """Processes that are on their way here end."""
        self._socket.close()
