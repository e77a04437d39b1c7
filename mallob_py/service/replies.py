"""Replies on their way out: what cannot be written now is kept and tried again, each reply on its own.

On a medium that is slow to flush, replies are gathered until `finish_due`, and flushed together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mallob_py.service.entries import Decided
from mallob_py.service.journal import Journal, contents
from mallob_py.service.medium import Medium
from mallob_py.service.reply import Reply
from mallob_py.service.reply_pipes import ReplyPipes

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
        medium: Medium,
        log: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._medium = medium
        self._log = log
        self._clock = clock
        self._unpublished: dict[int, _Unpublished] = {}
        self._pipes = ReplyPipes(clock)

    def __len__(self) -> int:
        return len(self._unpublished)

    def next_deadline(self) -> float:
        unpublished = min((item.due for item in self._unpublished.values()), default=math.inf)
        return min(unpublished, self._pipes.next_deadline())

    def add(self, decided: Decided, reply: Reply, on_decided: Callable[[], None] = lambda: None) -> None:
        """`on_decided` is called between the moments when it is in the journal and when it is published."""
        self._unpublished[decided.internal_id] = _Unpublished(decided, reply, on_decided)
        if not self._medium.is_slow:
            self._finish([self._unpublished[decided.internal_id]])

    def add_recovered(self, decided: Iterable[Decided]) -> None:
        """Replies that a former service has left in the journal."""
        for entry in decided:
            self._unpublished[entry.internal_id] = _Unpublished(entry, None)
        self.finish_due()

    def finish_due(self) -> None:
        self._pipes.feed_due()
        now = self._clock()
        self._finish([item for item in self._unpublished.values() if item.due <= now])

    def close(self) -> None:
        """A last try; what is in the journal is published by the next service."""
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
        self._log(
            f"cannot write the reply {item.decided.target}: {error.strerror}; again in {item.delay_s:g} s"
        )
