"""Gossip: statements that all workers of a job learn, whichever worker made them.

Each worker has a table name -> short bytes, adds its own statements (`put`), and merges the tables it gets. A
worker sends its table to its neighbours in the job tree when the table has changed, and every second, so that
the next message replaces a message that was lost with a leaving worker. Names are never removed, and of two
values of a name the larger one is kept. So all workers end with the same table in any order of messages.

Gossip is meant for tables of some kilobytes, because a table is sent as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from mallob_py.kit.app import TreeMessage, WorkerContext

#: first bytes of gossip's messages
MAGIC = b"gossip1:"
_PERIOD_S = 1.0


class Gossip:
    """One worker's table of statements. Must be used in the thread of `run` only."""

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
        """Add a statement. The next `turn` sends it."""
        if self._merge(name, value):
            self._next_s = 0.0

    def turn(self, messages: Sequence[TreeMessage]) -> bool:
        """Take in messages, and send the table if it is due. Must be called a few times a second.

        Args:
            messages: messages from `poll`; messages that are not gossip's are skipped.

        Returns:
            Whether messages have changed the table.
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
