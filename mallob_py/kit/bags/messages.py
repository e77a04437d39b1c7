"""Messages between the workers of a bag job; `ledger.py` says when and why."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

#: address of a worker, opaque: compared and handed back
Address: TypeAlias = tuple[int, int]


class State(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of an account: `done` tasks with a `result` (empty: none), and the `bags` left.

    `wasted`: further tasks done in vain, as far as known; dead workers cannot tell. `best`: the best solution
    by which the tasks were pruned (empty: none).
    """

    done: int
    result: bytes
    bags: tuple[bytes, ...]
    wasted: int = 0
    best: bytes = b""


class LoanState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A loan given, handed over together with its account."""

    number: int
    borrower: Address
    seq: int
    state: State


class BagMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages between workers."""


class WorkWanted(BagMessage, frozen=True, tag=1):
    #: the asker; None: the sender
    asker: Address | None
    #: random mark of the asker
    token: int
    hops: int
    #: number of times that the asker has run out of tasks: each need is served once, even if asked for again
    need: int
    #: a few workers that the sender knows; so each worker learns of workers all over the tree
    others: tuple[Address, ...] = ()
    #: number of workers still to be looked at before one gives
    looks: int = 0
    #: among the workers looked at, the one with the most tasks left (None: the sender), and its tasks
    richest: Address | None = None
    most: float = 0.0
    #: a worker gives only if it has more tasks left than this
    above: float = 0.0


class Lifeline(BagMessage, frozen=True, tag=9):
    #: token of the request
    token: int
    need: int


class Cut(BagMessage, frozen=True, tag=10):
    pass


class Lend(BagMessage, frozen=True, tag=2):
    number: int
    bag: bytes
    others: tuple[Address, ...] = ()
    #: tasks that the lender does between two looks at messages
    chunk: int = 1
    #: the best solution known to the lender
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
    """Return a message. Raises msgspec.DecodeError."""
    message: AnyBagMessage = _decoder.decode(data)
    return message
