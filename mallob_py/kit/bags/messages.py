"""Messages between the workers of a bag job; `ledger.py` says when and why they are sent."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

#: address of a worker. It is opaque: the ledger only compares addresses and sends to them
Address: TypeAlias = tuple[int, int]


class State(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of an account: number of tasks `done`, their `result` (empty: none), and the `bags` left.

    `wasted`: number of tasks done in vain, except those of lost workers, which report nothing. `best`: the
    best solution, by which the tasks were pruned (empty: none).
    """

    done: int
    result: bytes
    bags: tuple[bytes, ...]
    wasted: int = 0
    best: bytes = b""


class LoanState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A loan that is handed over together with the account from which it was given."""

    number: int
    borrower: Address
    seq: int
    state: State


class BagMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages between workers."""


class WorkWanted(BagMessage, frozen=True, tag=1):
    #: the asker's address; None: the sender is the asker
    asker: Address | None
    #: random number that identifies the asker
    token: int
    hops: int
    #: number of the asker's need. A new need begins if tasks were done since the last request; each need is
    #: served once, even if it is asked for again
    need: int
    #: a few workers that the sender knows; so each worker learns of workers all over the tree
    others: tuple[Address, ...] = ()
    #: number of workers that the request must still visit before the richest of them gives
    looks: int = 0
    #: the richest worker visited so far (None: the sender), and its number of tasks left
    richest: Address | None = None
    most: float = 0.0
    #: number of tasks left above which a worker gives
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
    #: number of tasks that the lender does before it reads messages again
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
    """Decode a message. Raises msgspec.DecodeError."""
    message: AnyBagMessage = _decoder.decode(data)
    return message
