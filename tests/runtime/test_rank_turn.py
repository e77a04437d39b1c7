"""What a rank does in one turn of its loop when a large description is on its way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mallob_py.runtime.channel import Arrival, Channel
from mallob_py.runtime.rank import Rank


class Flood:
    """A transport on which chunks never cease to arrive."""

    def receive(self) -> Iterator[Arrival]:
        while True:
            yield Arrival(1, Channel.BULK, b"chunk")


class Taker:
    def __init__(self) -> None:
        self.chunks = 0

    def receive_chunk(self, source: int, data: bytes) -> None:
        self.chunks += 1


def test_chunks_that_never_cease_let_the_loop_go_on() -> None:
    rank: Any = object.__new__(Rank)
    rank._transport, rank.transfer = Flood(), Taker()
    rank._settle = lambda *pes: None
    rank._receive(False)
    taken = rank.transfer.chunks
    assert taken > 0
    rank._receive(False)
    assert rank.transfer.chunks == 2 * taken
