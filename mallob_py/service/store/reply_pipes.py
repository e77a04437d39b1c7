"""Reply pipes: clients that wait for their reply at a named pipe.

Clients such as Mallob's IPASIR bridge make a named pipe at their reply's path (`"piped-response": true`), and
read the reply there. The reply is renamed into place like any other, so it is as durable, and a later reader
of the path gets the file. A reader with the pipe open gets the same bytes from the pipe, or nothing if this
process dies just then: so the pipe is opened, if it has a reader, before it loses its name. Nothing blocks:
bytes that the reader does not take are offered again. A pipe is closed, so that its reader meets the end, if
no bytes are taken for `GIVE_UP_S` or if there are more than `PIPES_MAX` pipes.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from mallob_py.accepting import is_shortage

#: longest time between a reader's look-up of the path and its opening of the pipe, which has lost its name
_LATE_READER_S = 1.0
GIVE_UP_S = 30.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.001, 0.05
PIPES_MAX = 128
#: greatest capacity of a pipe that needs no further rights
_PIPE_BYTES = 1 << 20


@dataclass(slots=True)
class ReplyPipe:
    """A pipe that waits for a reply, and its descriptors: `writer` is for writing, -1 without a reader."""

    node: int
    content: memoryview
    writer: int = -1
    give_up_s: float = math.inf
    delay_s: float = field(default=_RETRY_MIN_S)
    due_s: float = -math.inf

    def close(self) -> None:
        for descriptor in (self.node, self.writer):
            if descriptor >= 0:
                os.close(descriptor)
        self.node = self.writer = -1


class ReplyPipes:
    """The pipes of one client that have not received all of their replies."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pipes: list[ReplyPipe] = []
        #: time when `feed_due` must be called
        self.deadline_s = math.inf

    @staticmethod
    def at(path: str, read_reply: Callable[[], bytes]) -> ReplyPipe | None:
        """Return the pipe at the path where a reply will be published, if there is one.

        Raises OSError at a shortage: the pipe must keep its name until its reader can be served.
        """
        try:
            if not stat.S_ISFIFO(os.lstat(path).st_mode):
                return None
            node = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if is_shortage(error):
                raise
            return None
        pipe = ReplyPipe(node, memoryview(b""))
        try:
            if not stat.S_ISFIFO(os.fstat(node).st_mode):
                pipe.close()
                return None
            pipe.content = memoryview(read_reply())
            _open(pipe)
        except OSError as error:
            if is_shortage(error):
                pipe.close()
                raise
            # no reader, or no right to write; the reply is still published as a file
        return pipe

    def feed(self, pipe: ReplyPipe) -> None:
        """Give the published reply to the pipe's reader."""
        pipe.give_up_s = self._clock() + (_LATE_READER_S if pipe.writer < 0 else GIVE_UP_S)
        self._pipes.append(pipe)
        if len(self._pipes) > PIPES_MAX:
            self._pipes.pop(0).close()
        self.feed_due()

    def feed_due(self) -> None:
        now = self._clock()
        for pipe in self._pipes:
            if pipe.due_s <= now and not self._feed(pipe, now):
                pipe.close()
        self._pipes = [pipe for pipe in self._pipes if pipe.node >= 0]
        self.deadline_s = min((pipe.due_s for pipe in self._pipes), default=math.inf)

    def close(self) -> None:
        """Close all pipes, so that their readers meet the end."""
        self.feed_due()
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()

    def _feed(self, pipe: ReplyPipe, now: float) -> bool:
        """Write what the pipe takes; return whether the rest must be offered again."""
        try:
            if pipe.writer < 0:
                _open(pipe)
            while pipe.content:
                pipe.content = pipe.content[os.write(pipe.writer, pipe.content) :]
                pipe.give_up_s, pipe.delay_s = now + GIVE_UP_S, _RETRY_MIN_S
            return False
        except BlockingIOError:
            pass
        except OSError:
            if pipe.writer >= 0:
                return False  # the reader has closed the pipe
        pipe.due_s = now + pipe.delay_s
        pipe.delay_s = min(2 * pipe.delay_s, _RETRY_MAX_S)
        return now < pipe.give_up_s


def _open(pipe: ReplyPipe) -> None:
    """Open a pipe for writing. Raises OSError if it has no reader."""
    pipe.writer = os.open(f"/proc/self/fd/{pipe.node}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
