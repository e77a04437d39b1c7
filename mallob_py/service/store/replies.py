"""Replies on their way out: what cannot be written now is kept and tried again, each reply on its own.

On a disk that is slow to flush, replies are gathered until `finish_due`, and flushed together.

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
import heapq
import math
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store.entries import Decided
from mallob_py.service.store.flush_policy import FlushPolicy
from mallob_py.service.store.journal import Journal, contents

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
    """Those of one client that have not had all of their replies."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pipes: list[ReplyPipe] = []

    def next_deadline(self) -> float:
        return min((pipe.due_s for pipe in self._pipes), default=math.inf)

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
    """Raises OSError if nobody reads from the pipe."""
    pipe.writer = os.open(f"/proc/self/fd/{pipe.node}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


RETRY_DELAY_MIN_S, RETRY_DELAY_MAX_S = 1.0, 30.0


@dataclass(slots=True)
class _Unpublished:
    decided: Decided
    reply: Reply | None  # None: already in the journal
    on_decided: Callable[[], None] = lambda: None
    delay_s: float = 0.0
    due: float = -math.inf


class Replies:
    """Those of one client that are not published."""

    def __init__(
        self,
        journal: Journal,
        flush_policy: FlushPolicy,
        log: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._flush_policy = flush_policy
        self._log = log
        self._clock = clock
        self._unpublished: dict[int, _Unpublished] = {}
        #: (when, job): each of them that is not being written just now
        self._due: list[tuple[float, int]] = []
        self._pipes = ReplyPipes(clock)

    def __len__(self) -> int:
        return len(self._unpublished)

    def next_deadline(self) -> float:
        return min(self._due[0][0] if self._due else math.inf, self._pipes.next_deadline())

    def add(self, decided: Decided, reply: Reply, on_decided: Callable[[], None] = lambda: None) -> None:
        """`on_decided` is called between the moments when it is in the journal and when it is published."""
        item = self._unpublished[decided.internal_id] = _Unpublished(decided, reply, on_decided)
        if self._flush_policy.is_slow:
            self._await(item)
        else:
            self._finish([item])

    def add_recovered(self, decided: Iterable[Decided]) -> None:
        """Replies that a former service has left in the journal."""
        for entry in decided:
            item = self._unpublished[entry.internal_id] = _Unpublished(entry, None)
            self._await(item)
        self.finish_due()

    def finish_due(self) -> None:
        self._pipes.feed_due()
        now = self._clock()
        due = []
        while self._due and self._due[0][0] <= now:
            _, internal_id = heapq.heappop(self._due)
            due.append(self._unpublished[internal_id])
        self._finish(due)

    def close(self) -> None:
        """A last try; what is in the journal is published by the next service."""
        self._due.clear()
        self._finish(list(self._unpublished.values()))
        self._pipes.close()

    def _finish(self, items: list[_Unpublished]) -> None:
        if not items:
            return
        try:
            self._journal.decide([(item.decided, item.reply) for item in items if item.reply is not None])
            for item in items:
                if item.reply is not None:
                    item.on_decided()
                item.reply = None
            self._journal.release([item.decided for item in items])
        except OSError as error:
            if len(items) == 1:
                self._postpone(items[0], error)
                return
            for item in items:  # perhaps only one of them is in trouble
                self._finish([item])
            return
        for item in items:
            try:
                self._publish(item.decided)
                del self._unpublished[item.decided.internal_id]
            except OSError as error:
                self._postpone(item, error)
        try:
            self._journal.confirm_publications()
        except OSError as error:
            self._log(f"cannot flush replies: {error.strerror}; a loss of power may bring them back")

    def _await(self, item: _Unpublished) -> None:
        heapq.heappush(self._due, (item.due, item.decided.internal_id))

    def _publish(self, decided: Decided) -> None:
        """Raises OSError."""
        pipe = self._pipes.at(
            self._journal.reply_path(decided), lambda: contents(self._journal.path(decided))
        )
        try:
            self._journal.publish(decided)
        except OSError:
            if pipe is not None:
                pipe.close()
            raise
        if pipe is not None:
            self._pipes.feed(pipe)

    def _postpone(self, item: _Unpublished, error: OSError) -> None:
        item.delay_s = min(max(2 * item.delay_s, RETRY_DELAY_MIN_S), RETRY_DELAY_MAX_S)
        item.due = self._clock() + item.delay_s
        self._await(item)
        self._log(
            f"cannot write the reply {item.decided.target}: {error.strerror}; again in {item.delay_s:g} s"
        )
