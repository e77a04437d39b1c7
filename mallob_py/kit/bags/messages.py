"""What the workers of a bag job tell each other; `ledger.py` says when, and why."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

#: of a worker, as the transport names it; compared and handed back, never looked into
Address: TypeAlias = tuple[int, int]


class State(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of an account: `done` tasks with a `result` (none: empty), and the `bags` left.

    `wasted`: further tasks that were done for nobody, as far as is known; who died cannot tell. `best`: the
    best solution that its tasks were pruned by (none: empty).
    """

    done: int
    result: bytes
    bags: tuple[bytes, ...]
    wasted: int = 0
    best: bytes = b""


class LoanState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A loan given, as it is handed over with the account it belongs to."""

    number: int
    borrower: Address
    seq: int
    state: State


class BagMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what workers send each other."""


class WorkWanted(BagMessage, frozen=True, tag=1):
    #: None: the sender
    asker: Address | None
    #: drawn by each worker once
    token: int
    hops: int
    #: how often who asks has run out of tasks: asked once more for the same need, nobody gives twice
    need: int
    #: workers whom the sender knows, so that all come to know some from everywhere
    others: tuple[Address, ...] = ()
    #: so many are to be looked at before one gives
    looks: int = 0
    #: of those looked at, who has the most tasks left (None: the sender), and how many
    richest: Address | None = None
    most: float = 0.0
    #: only who has more tasks left than this gives
    above: float = 0.0


class Lifeline(BagMessage, frozen=True, tag=9):
    #: as of a request
    token: int
    need: int


class Cut(BagMessage, frozen=True, tag=10):
    pass


class Lend(BagMessage, frozen=True, tag=2):
    number: int
    bag: bytes
    others: tuple[Address, ...] = ()
    #: tasks that the lender does between two looks at its messages
    chunk: int = 1
    #: the best solution that the lender knows
    best: bytes = b""


class Settle(BagMessage, frozen=True, tag=3):
    number: int
    seq: int
    final: bool
    state: State


class Return(BagMessage, frozen=True, tag=4):
    number: int
    state: State
    loans: tuple[LoanState, ...]


class Moved(BagMessage, frozen=True, tag=5):
    number: int


class Forget(BagMessage, frozen=True, tag=6):
    number: int


class Probe(BagMessage, frozen=True, tag=7):
    number: int


class Unknown(BagMessage, frozen=True, tag=8):
    number: int


class Better(BagMessage, frozen=True, tag=11):
    best: bytes


AnyBagMessage: TypeAlias = (
    WorkWanted | Lifeline | Cut | Lend | Settle | Return | Moved | Forget | Probe | Unknown | Better
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyBagMessage)


def encode(message: AnyBagMessage) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> AnyBagMessage:
    """Raises msgspec.DecodeError."""
    message: AnyBagMessage = _decoder.decode(data)
    return message
