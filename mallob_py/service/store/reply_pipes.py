"""Replies that are waited for at a named pipe.

Clients such as Mallob's IPASIR bridge wait for their reply at a named pipe: they make it where the reply
will be (`"piped-response": true` says so), and read the reply from there. The reply is renamed into place
like any other, so it is as durable; who opens its path from then on reads the file. Who opened the pipe
before reads the same from the pipe, or nothing if this process dies just then: for that the pipe is opened,
if somebody reads from it, before it loses its name. Nothing there blocks: what the reader does not take at
once is offered again. Pipes are given up, so that their readers come to an end, if nobody takes anything
for `GIVE_UP_S` or others need their place.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

#: between the look-up of a path and its opening; nobody can find the pipe any more
_LATE_READER_S = 1.0
GIVE_UP_S = 30.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.001, 0.05
PIPES_MAX = 128
#: what a pipe may hold without further rights
_PIPE_BYTES = 1 << 20


@dataclass(slots=True)
class ReplyPipe:
    """Where a reply is waited for. `node` is the pipe, whatever its path; `writer` is -1 without a reader."""

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
    """The pipes of one client that have not had all of their replies."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pipes: list[ReplyPipe] = []
        #: when `feed_due` is wanted
        self.deadline_s = math.inf

    @staticmethod
    def at(path: str, read_reply: Callable[[], bytes]) -> ReplyPipe | None:
        """The pipe at the path of a reply that is about to be published; mostly there is none."""
        try:
            if not stat.S_ISFIFO(os.lstat(path).st_mode):
                return None
            node = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        pipe = ReplyPipe(node, memoryview(b""))
        try:
            if not stat.S_ISFIFO(os.fstat(node).st_mode):
                pipe.close()
                return None
            pipe.content = memoryview(read_reply())
            _open(pipe)
        except OSError:
            pass  # no reader, or no right to write: the file is there for it
        return pipe

    def feed(self, pipe: ReplyPipe) -> None:
        """The reply is published; give it to who waits at the pipe."""
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
        """Readers that have not had everything come to an end."""
        self.feed_due()
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()

    def _feed(self, pipe: ReplyPipe, now: float) -> bool:
        """Whether there is more to do."""
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
                return False  # the reader has gone
        pipe.due_s = now + pipe.delay_s
        pipe.delay_s = min(2 * pipe.delay_s, _RETRY_MAX_S)
        return now < pipe.give_up_s


def _open(pipe: ReplyPipe) -> None:
    """Open a pipe for writing. Raises OSError if no process reads from it."""
    pipe.writer = os.open(f"/proc/self/fd/{pipe.node}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
