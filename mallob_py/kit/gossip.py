"""Gossip: statements that all workers of a job learn, whichever worker made them.

A table of short texts by name: each worker adds its own (`put`), and the tables merge. A worker sends its
table to its neighbours in the job tree when the table has changed, and every second: a message lost with a
worker that leaves is made good by the next. Names are never removed, and of two values of a name the larger
one stays. So all workers end with the same table, whatever the order of messages.

For tables of some kilobytes, since a table is sent as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from mallob_py.kit.app import TreeMessage, WorkerContext

#: first bytes of our messages
MAGIC = b"gossip1:"
_PERIOD_S = 1.0


class Gossip:
    """The table of one worker. To be used in the thread of `run` only."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._table: dict[str, bytes] = {}
        self._next_s = 0.0
        #: indices of this worker and its children when the table was last sent
        self._neighbours: tuple[int, ...] = ()

    @property
    def table(self) -> Mapping[str, bytes]:
        """The statements known here."""
        return self._table

    def put(self, name: str, value: bytes) -> None:
        """Add a statement, sent at the next `turn`."""
        if self._merge(name, value):
            self._next_s = 0.0

    def turn(self, messages: Sequence[TreeMessage]) -> bool:
        """Take in messages, and send the table if it is due. Call it a few times a second.

        Args:
            messages: messages from `poll`; messages of others are skipped.

        Returns:
            Whether the table has changed by messages.
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
