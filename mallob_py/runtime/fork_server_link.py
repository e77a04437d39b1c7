"""The rank's hold on its fork server: start, ask, listen, restart, stop.

Start it before MPI is: the interpreter of the fork server comes up while MPI does. It is a
new program (not a fork of the rank), so it never shares anything with MPI even when it has
to be started again later.
"""

from __future__ import annotations

import array
import os
import select
import socket
import subprocess
import time
from collections import deque
from contextlib import suppress

import msgspec

from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.interpreter import import_places, python

_PACKET_BYTES = 1 << 16
_MAX_FDS = 2
_STOP_TIMEOUT_S = 3.0


class WorkerLimits(msgspec.Struct, frozen=True):
    """What all worker processes of a rank are subject to.

    `memory_limit_bytes` bounds a process's private memory (not mapped descriptions);
    `niceness` lets ranks go before their workers on a core.
    """

    memory_limit_bytes: int | None = None
    niceness: int = 0


class ServerPacket(msgspec.Struct, frozen=True):
    """A report. `fds` is empty if there was no room for the descriptors that came with it."""

    message: wire.FromServer
    fds: tuple[int, ...]


class ForkServer:
    """A running fork server (use `ForkServer.start`)."""

    def __init__(
        self, preload: tuple[str, ...], limits: WorkerLimits, running: socket.socket | None = None
    ) -> None:
        self._preload = preload
        self._limits = limits
        self._outgoing: deque[bytes] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        if running is None:
            self._launch()
        else:
            running.setblocking(False)
            self._socket = running
            self._configure()

    @classmethod
    def start(
        cls,
        preload: tuple[str, ...] = (),
        limits: WorkerLimits | None = None,
        running: socket.socket | None = None,
    ) -> ForkServer:
        """Returns at once; `preload` names applications to import before the first fork.

        `running`: the control socket of a server that somebody else has started for us.
        """
        return cls(preload, limits or WorkerLimits(), running)

    def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours
        command = [*python(), "-m", "mallob_py.runtime.fork_server"]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is for results
                env=os.environ | import_places(),
                process_group=0,  # a terminal's Ctrl-C is for the rank
            )
        self._configure()

    def _configure(self) -> None:
        self._outgoing.clear()
        limits = self._limits
        self.send(wire.Configure(self._preload, limits.memory_limit_bytes, limits.niceness))

    def restart(self) -> None:
        """Replace a server that has ended, or that should."""
        self.stop()
        self._launch()

    @property
    def pid(self) -> int:
        """Only of a server that we have started ourselves."""
        assert self._process is not None
        return self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: wire.ToServer) -> None:
        self._outgoing.append(wire.encode(message))
        self.flush()

    def flush(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._outgoing:
                self._socket.send(self._outgoing[0])
                self._outgoing.popleft()

    def receive(self) -> ServerPacket | None:
        """The next report, None if there is none yet. Raises EOFError when the server is gone."""
        self.flush()
        try:
            packet, fds = _receive_packet(self._socket)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            raise EOFError from None
        if not packet:
            raise EOFError
        return ServerPacket(wire.decode_from_server(packet), fds)

    def stop(self) -> None:
        """End the server and all of its children; waits for it (bounded)."""
        if self._process is None:
            _await_end(self._socket)
            self._socket.close()
            return
        self._socket.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # importing for long, or stopped: its children die with it
            self._process.kill()
            self._process.wait()


def _await_end(connection: socket.socket) -> None:
    """Ask a server that is not our child to end, and wait for it (bounded; who started it cleans up)."""
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while (left_s := deadline_s - time.monotonic()) > 0:
            if poll.poll(left_s * 1000) and not connection.recv(_PACKET_BYTES):
                break


def _receive_packet(connection: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    fds = array.array("i")
    packet, ancillary, flags, _ = connection.recvmsg(
        _PACKET_BYTES, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        # This process has no descriptor free. Those that did arrive are of no use alone.
        for fd in fds:
            os.close(fd)
        return packet, ()
    return packet, tuple(fds)
