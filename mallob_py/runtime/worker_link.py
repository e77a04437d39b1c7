"""The rank's hold on one worker process: its socket, its pidfd, and what waits to be sent.

Nothing here blocks. What a worker does not read (it may be stopped, or computing) waits in
a queue that is bounded: an update replaces the one before it, and the oldest messages of
other workers are given back when they exceed a limit.

Signals go through the pidfd that the fork server opened before it could reap the process,
so that they never hit a stranger with a recycled pid.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from contextlib import suppress

from mallob_py.kit.app import TreeMessage
from mallob_py.runtime import worker_wire as wire

_RECEIVE_BYTES = 1 << 18
#: per turn of the event loop, so that one worker's large result does not delay the others
_MAX_BYTES_PER_TURN = 1 << 22
#: flag of pidfd_send_signal since Linux 6.9: also what the process itself has started
_PIDFD_SIGNAL_PROCESS_GROUP = 1 << 2


class _Outgoing:
    __slots__ = ("data", "is_update", "tree_message")

    def __init__(self, data: bytes, message: wire.Message) -> None:
        self.data = data
        self.is_update = isinstance(message, wire.Update)
        self.tree_message: TreeMessage | None = None
        if isinstance(message, wire.Deliver):
            self.tree_message = TreeMessage(message.source, message.data, message.returned)


class WorkerLink:
    """One worker process as its rank sees it."""

    def __init__(self, forked: wire.Forked, socket_fd: int, pidfd: int, queue_limit_bytes: int) -> None:
        self.serial = forked.serial
        self.pid = forked.pid
        self.generation = forked.generation
        self._socket = socket.socket(fileno=socket_fd)
        self._socket.setblocking(False)
        self._pidfd = pidfd
        self._buffer = wire.FrameBuffer()
        self._head = memoryview(b"")
        self._queue: deque[_Outgoing] = deque()
        self._queued_tree_bytes = 0
        self._queue_limit_bytes = queue_limit_bytes
        self._closed = False
        #: known to have ended: its last words may still be read, nothing can be asked of it
        self.dead = False
        #: what the pool waits for on this socket (0: nothing)
        self.watched_mask = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def has_outgoing(self) -> bool:
        return bool(self._head) or bool(self._queue)

    def send(self, message: wire.ToWorker) -> list[TreeMessage]:
        """Send or queue a message; returns queued ones that had to give way."""
        outgoing = _Outgoing(wire.frame(message), message)
        position = self._queued_update() if outgoing.is_update else None
        if position is None:
            self._queue.append(outgoing)
        else:
            # A newer update takes the place of one that has not left: messages queued behind
            # that one were meant for the new place already.
            self._queue[position] = outgoing
        if outgoing.tree_message is not None:
            self._queued_tree_bytes += len(outgoing.data)
        self.flush()
        return self._shed()

    def _queued_update(self) -> int | None:
        return next((at for at, other in enumerate(self._queue) if other.is_update), None)

    def _shed(self) -> list[TreeMessage]:
        if self._queued_tree_bytes <= self._queue_limit_bytes:
            return []
        dropped: list[TreeMessage] = []
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
        """Send as much of the queue as the worker's socket takes."""
        while not self._closed:
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
                # The process is ending: its exit is reported elsewhere.
                self._head = memoryview(b"")
                self._queue.clear()
                self._queued_tree_bytes = 0
                return
            self._head = self._head[sent:]

    def receive(self) -> tuple[list[wire.FromWorker], bool]:
        """What has arrived, and whether the stream is over. Raises BrokenStream on nonsense."""
        messages: list[wire.FromWorker] = []
        received_bytes = 0
        at_end = self._closed
        while not at_end and received_bytes < _MAX_BYTES_PER_TURN:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            at_end = not data
            received_bytes += len(data)
            self._buffer.feed(data)
            while (body := self._buffer.take()) is not None:
                messages.append(_decode(body))
            if len(data) < _RECEIVE_BYTES:
                break
        return messages, at_end

    def signal(self, number: signal.Signals) -> None:
        """Signal the process and those that it started, unless it is gone."""
        if self._pidfd < 0:
            return
        with suppress(ProcessLookupError):
            _signal_group(self._pidfd, self.pid, number)

    def close_socket(self) -> None:
        if not self._closed:
            self._closed = True
            self._socket.close()

    def close(self) -> None:
        """Let go of the process; it should be dead or about to be."""
        self.close_socket()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _signal_group(pidfd: int, pid: int, number: signal.Signals) -> None:
    """Signal a process that leads a group, and the group. Raises ProcessLookupError if it is gone."""
    try:
        signal.pidfd_send_signal(pidfd, number, None, _PIDFD_SIGNAL_PROCESS_GROUP)
        return
    except ProcessLookupError:
        raise
    except OSError:  # the flag is unknown
        signal.pidfd_send_signal(pidfd, number)
    # Not a stranger's group: the process was there a moment ago. If it is killed, the fork
    # server kills the group, before it reaps.
    if number != signal.SIGKILL:
        os.killpg(pid, number)


def _decode(body: bytes) -> wire.FromWorker:
    try:
        return wire.decode_from_worker(body)
    except ValueError as error:  # msgspec's decoding errors are ValueErrors
        raise wire.BrokenStream(str(error)) from error
