"""Links: a rank's connections to its worker processes and to their fork server. Nothing here blocks.

`WorkerLink`: the connection to one worker process. Messages that the process does not read (it may be
stopped, or computing) wait in a bounded queue: a new update replaces a queued one; beyond a limit, the oldest
queued messages of other workers are given back to the caller. Signals go through the pidfd that the fork
server opened before it could reap the process, so they never hit another process with a reused pid. The
process ends when no rank holds its lifeline.

`LinkWatch`: tells which links can be read or written. It is an epoll object, so the event loop waits for one
descriptor for all workers.

`ForkServer`: the connection to the fork server, which must be started before MPI. The first server may be a
cheap fork of this process; later servers are new programs, so they share nothing with a running MPI.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from contextlib import suppress

import msgspec

from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.processes import import_places, left_of, python

_RECEIVE_BYTES = 1 << 18
#: bytes read from one worker per turn of the loop, at most, so that a large result does not delay other
#: workers
_MAX_BYTES_PER_TURN = 1 << 22
#: flag of pidfd_send_signal since Linux 6.9: signal the process's group, too
_PIDFD_SIGNAL_PROCESS_GROUP = 1 << 2


class _Outgoing:
    __slots__ = ("data", "is_update", "tree_message")

    def __init__(self, data: bytes, message: wire.ProcessMessage) -> None:
        self.data = data
        self.is_update = isinstance(message, wire.Update)
        self.tree_message = message if isinstance(message, wire.Deliver) else None


class WorkerLink:
    """A rank's connection to one worker process."""

    def __init__(
        self,
        forked: wire.Forked,
        descriptors: tuple[int, ...],
        queue_limit_bytes: int,
        unread: bytes = b"",
        unsent: bytes = b"",
    ) -> None:
        """Use a socket, pidfd and lifeline (`descriptors`). `unread`, `unsent`: see `under_way`."""
        self.serial = forked.serial
        self.pid = forked.pid
        self.generation = forked.generation
        socket_fd, self._pidfd, self._lifeline = descriptors
        self._socket = socket.socket(fileno=socket_fd)
        self._socket.setblocking(False)
        self._buffer = wire.FrameBuffer(unread)
        self._head = memoryview(unsent)
        self._queue: deque[_Outgoing] = deque()
        self._queued_tree_bytes = 0
        self._queue_limit_bytes = queue_limit_bytes
        #: whether the socket is closed
        self.closed = False
        #: whether another rank's fork server forked the process, so that only `pidfd` shows its end
        self.is_given = self.serial < 0
        #: whether the process is known to have ended; its last messages may still be read
        self.dead = False
        #: CPU time that the process used for earlier tasks
        self.cpu_before_s = 0.0
        #: mask of the events that `LinkWatch` watches on the socket (0: none)
        self.watched_mask = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def pidfd(self) -> int:
        return self._pidfd

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return socket, pidfd and lifeline, by which another rank can take over this process."""
        return self.fileno(), self._pidfd, self._lifeline

    @property
    def under_way(self) -> tuple[bytes, bytes]:
        """Return the beginning of an incomplete message from the process, and all bytes to send to it."""
        return self._buffer.begun, b"".join((self._head, *(outgoing.data for outgoing in self._queue)))

    @property
    def has_outgoing(self) -> bool:
        return bool(self._head) or bool(self._queue)

    def send(self, message: wire.ToWorker) -> list[wire.Deliver]:
        """Send or queue a message; return the messages that are dropped because the queue is too long."""
        outgoing = _Outgoing(wire.frame(message), message)
        position = self._queued_update() if outgoing.is_update else None
        if position is None:
            self._queue.append(outgoing)
        else:
            # Replacing an unsent update is right: the messages queued behind it are for the newest place,
            # too.
            self._queue[position] = outgoing
        if outgoing.tree_message is not None:
            self._queued_tree_bytes += len(outgoing.data)
        self.flush()
        return self._shed()

    def _queued_update(self) -> int | None:
        return next((at for at, other in enumerate(self._queue) if other.is_update), None)

    def _shed(self) -> list[wire.Deliver]:
        if self._queued_tree_bytes <= self._queue_limit_bytes:
            return []
        dropped: list[wire.Deliver] = []
        kept: deque[_Outgoing] = deque()
        for outgoing in self._queue:
            if outgoing.tree_message is None or self._queued_tree_bytes <= self._queue_limit_bytes:
                kept.append(outgoing)
                continue
            self._queued_tree_bytes -= len(outgoing.data)
            dropped.append(outgoing.tree_message)
        self._queue = kept
        return dropped

    def flush(self) -> None:
        """Send as much of the queue as the socket takes."""
        while not self.closed:
            if not self._head:
                if not self._queue:
                    return
                outgoing = self._queue.popleft()
                if outgoing.tree_message is not None:
                    self._queued_tree_bytes -= len(outgoing.data)
                self._head = memoryview(outgoing.data)
            try:
                sent = self._socket.send(self._head)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                # The process ends; the fork server or the pidfd will report that.
                self._head = memoryview(b"")
                self._queue.clear()
                self._queued_tree_bytes = 0
                return
            self._head = self._head[sent:]

    def receive(self) -> tuple[list[wire.FromWorker], bool]:
        """Return the messages that have arrived, and whether the stream has ended. Raises BrokenStream."""
        messages: list[wire.FromWorker] = []
        received_bytes = 0
        at_end = self.closed
        while not at_end and received_bytes < _MAX_BYTES_PER_TURN:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            at_end = not data
            received_bytes += len(data)
            messages += map(_decode, self._buffer.cut(data))
            if len(data) < _RECEIVE_BYTES:
                break
        return messages, at_end

    def signal(self, number: signal.Signals) -> None:
        """Signal the process and the processes in its group, unless it has ended."""
        if self._pidfd < 0:
            return
        with suppress(ProcessLookupError):
            _signal_group(self._pidfd, self.pid, number)

    def close_socket(self) -> None:
        if not self.closed:
            self.closed = True
            self._socket.close()

    def close(self) -> None:
        """Close all descriptors of a process that has ended, ends now, or belongs to another rank."""
        self.close_socket()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            os.close(self._lifeline)
            self._pidfd = -1


def _signal_group(pidfd: int, pid: int, number: signal.Signals) -> None:
    """Signal a process and the group it leads. Raises ProcessLookupError if the process has ended."""
    try:
        signal.pidfd_send_signal(pidfd, number, None, _PIDFD_SIGNAL_PROCESS_GROUP)
        return
    except ProcessLookupError:
        raise
    except OSError:  # this kernel does not know the flag
        signal.pidfd_send_signal(pidfd, number)
    # The group's number is not reused: the process existed a moment ago. A kill of the group is left to the
    # fork server, which kills the group before it reaps the process.
    if number != signal.SIGKILL:
        os.killpg(pid, number)


def _decode(body: bytes) -> wire.FromWorker:
    try:
        return wire.decode_from_worker(body)
    except ValueError as error:  # msgspec's decoding errors are ValueErrors
        raise wire.BrokenStream(str(error)) from error


WRITABLE = select.EPOLLOUT
#: event: the end of a process that another rank has given
ENDED = 1 << 30


class LinkWatch:
    """An epoll object for all links, the server's socket, the socket for given processes, and wake-ups."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)
        self._links: dict[int, WorkerLink] = {}
        #: pidfd -> link of a process that another rank has given
        self._given: dict[int, WorkerLink] = {}
        self._server_fd = -1

    @property
    def closed(self) -> bool:
        return self._epoll.closed

    def fileno(self) -> int:
        return self._epoll.fileno()

    def wake(self) -> None:
        """Make `fileno()` readable until the next `ready()`."""
        os.eventfd_write(self._wakeup_fd, 1)

    def ready(self) -> list[tuple[WorkerLink | None, int]]:
        """Return (link, events) of ready links; link None: the server, or the socket for given processes."""
        ready: list[tuple[WorkerLink | None, int]] = []
        for fd, mask in self._epoll.poll(0):
            if fd == self._wakeup_fd:
                with suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif (link := self._links.get(fd)) is not None:
                ready.append((link, mask))
            elif (link := self._given.get(fd)) is not None:
                ready.append((link, ENDED))
            else:
                ready.append((None, mask))
        return ready

    def watch_given(self, fd: int) -> None:
        """Watch the socket for processes that other ranks give."""
        self._epoll.register(fd, select.EPOLLIN)

    def watch_server(self, fd: int) -> None:
        self._server_fd = fd
        self._epoll.register(fd, select.EPOLLIN)

    def forget_server(self) -> None:
        self._epoll.unregister(self._server_fd)
        self._server_fd = -1

    def watch(self, link: WorkerLink) -> None:
        """Watch a link: for messages, and for room to write if anything is queued."""
        if link.closed:
            return
        mask = select.EPOLLIN | (select.EPOLLOUT if link.has_outgoing else 0)
        if link.watched_mask == mask:
            return
        if link.watched_mask == 0:
            self._links[link.fileno()] = link
            self._epoll.register(link.fileno(), mask)
            if link.is_given:
                self._given[link.pidfd] = link
                self._epoll.register(link.pidfd, select.EPOLLIN)
        else:
            self._epoll.modify(link.fileno(), mask)
        link.watched_mask = mask

    def forget(self, link: WorkerLink) -> None:
        if link.watched_mask:
            self._epoll.unregister(link.fileno())
            del self._links[link.fileno()]
            link.watched_mask = 0
            if link.is_given:
                self._epoll.unregister(link.pidfd)
                del self._given[link.pidfd]

    def close(self) -> None:
        self._epoll.close()
        os.close(self._wakeup_fd)


_PACKET_BYTES = 1 << 16
_MAX_FDS = 3
_STOP_TIMEOUT_S = 3.0


class WorkerLimits(msgspec.Struct, frozen=True):
    """The limits of all worker processes of a rank.

    `memory_limit_bytes` bounds a process's private memory (without mapped descriptions), and
    `input_max_bytes` bounds each input file. Output goes to files in `output_dir`; if that is "", to the
    rank's standard error.
    """

    memory_limit_bytes: int | None = None
    output_dir: str = ""
    input_max_bytes: int | None = None


class ServerPacket(msgspec.Struct, frozen=True):
    """A report of the fork server, and its descriptors `fds`; empty if this process had none free."""

    message: wire.FromServer
    fds: tuple[int, ...]


class _Fork:
    """A child process that is a fork of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, timeout_s: float) -> None:
        """Wait for the child's end. Raises subprocess.TimeoutExpired."""
        if left_of([self.pid], timeout_s):
            raise subprocess.TimeoutExpired("fork server", timeout_s)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """A running fork server; made by `ForkServer.start` or `ForkServer.fork`."""

    def __init__(
        self,
        preload: tuple[str, ...],
        limits: WorkerLimits,
        running: socket.socket | None,
        process: _Fork | None = None,
    ) -> None:
        self._preload = preload
        self._limits = limits
        self._outgoing: deque[bytes] = deque()
        self._process: subprocess.Popen[bytes] | _Fork | None = process
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
        """Start a server without waiting for it. `preload`: applications to import before the first fork.

        `running`: the control socket of a server that another process has started for this rank.
        """
        return cls(preload, limits or WorkerLimits(), running)

    @classmethod
    def fork(cls, preload: tuple[str, ...] = (), limits: WorkerLimits | None = None) -> ForkServer:
        """Fork a server from this process, which must have a single thread and no MPI yet."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        rank = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                from mallob_py.runtime.workers.fork_server import be_server

                be_server(theirs, rank)
            finally:
                os._exit(1)
        theirs.close()
        return cls(preload, limits or WorkerLimits(), ours, _Fork(pid))

    def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours
        command = [*python(), "-m", "mallob_py.runtime.workers.fork_server"]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # only the rank writes to stdout: results
                env=os.environ | import_places(),
                process_group=0,  # a terminal's Ctrl-C must reach only the rank
            )
        self._configure()

    def _configure(self) -> None:
        self._outgoing.clear()
        limits = self._limits
        self.send(
            wire.Configure(
                self._preload, limits.memory_limit_bytes, limits.output_dir, limits.input_max_bytes
            )
        )

    def restart(self) -> None:
        """End the server, if it has not ended, and start a new one."""
        self.stop()
        self._launch()

    @property
    def pid(self) -> int:
        """Return the process id of a server that is a child of this process."""
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
        """Return the server's next report; None: none has arrived. Raises EOFError at the server's end."""
        self.flush()
        try:
            packet, fds = receive_packet(self._socket)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            raise EOFError from None
        if not packet:
            raise EOFError
        return ServerPacket(wire.decode_from_server(packet), fds)

    def stop(self) -> None:
        """End the server and its children, and wait for the server's end for a bounded time."""
        if self._process is None:
            _await_end(self._socket)
            self._socket.close()
            return
        self._socket.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # the server imports for long, or is stopped: kill it
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel may keep the server from ending
                self._process.wait(_STOP_TIMEOUT_S)


def _await_end(connection: socket.socket) -> None:
    """End a server that is not a child of this process; wait for its end for a bounded time."""
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    poll = select.poll()
    with suppress(OSError):  # the connection may be closed
        connection.shutdown(socket.SHUT_WR)
        poll.register(connection, select.POLLIN)
        while (left_s := deadline_s - time.monotonic()) > 0:
            if poll.poll(left_s * 1000) and not connection.recv(_PACKET_BYTES):
                break


def receive_packet(connection: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """Return a packet and its descriptors; if not all descriptors can be received, return none of them."""
    fds = array.array("i")
    packet, ancillary, flags, _ = connection.recvmsg(
        _PACKET_BYTES, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        # This process has too few descriptors free; an incomplete set of descriptors is of no use.
        for fd in fds:
            os.close(fd)
        return packet, ()
    return packet, tuple(fds)
