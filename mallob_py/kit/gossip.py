"""A few statements that every worker of a job comes to know, whoever made them.

A table of short texts under names; each worker adds its own (`put`), and all tables become one. A worker
passes its whole table to its neighbours in the job tree when it has changed, and again every second: what is
lost with a worker that leaves comes with the next message. Nothing is ever taken back, and of two values of
one name the larger one stays, so that all workers end with the same table in whatever order messages come.

For tables of some kilobytes, such as which solver has said what: a table is sent as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from mallob_py.kit.app import TreeMessage, WorkerContext

#: a message of ours begins so; others are left alone
MAGIC = b"gossip1:"
_PERIOD_S = 1.0


class Gossip:
    """The table of one worker. May be used from the thread of `run` only."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._table: dict[str, bytes] = {}
        self._next_s = 0.0
        #: for neighbours that have come since
        self._neighbours: tuple[int, ...] = ()

    @property
    def table(self) -> Mapping[str, bytes]:
        """All that is known here."""
        return self._table

    def put(self, name: str, value: bytes) -> None:
        """Say something; the others hear it at the next `turn`."""
        if self._merge(name, value):
            self._next_s = 0.0

    def turn(self, messages: Sequence[TreeMessage]) -> bool:
        """Take in messages (those of others are left alone), and pass on what is due.

        To be called a few times a second at least. True if the table has changed by what has come.
        """
        has_news = False
        for message in messages:
            if message.returned or not message.data.startswith(MAGIC):
                continue
            table = msgspec.msgpack.decode(message.data[len(MAGIC) :], type=dict[str, bytes])
            for name, value in table.items():
                has_news |= self._merge(name, value)
        now = time.monotonic()
        neighbours = (self._context.index, *self._context.children)
        if has_news or neighbours != self._neighbours or now >= self._next_s:
            self._neighbours = neighbours
            self._next_s = now + _PERIOD_S
            self._tell()
        return has_news

    def _merge(self, name: str, value: bytes) -> bool:
        if name in self._table and self._table[name] >= value:
            return False
        self._table[name] = value
        return True

    def _tell(self) -> None:
        if self._table:
            data = MAGIC + msgspec.msgpack.encode(self._table)
            self._context.send_to_parent(data)
            self._context.send_to_children(data)
