"""The messages between a client of calls and the workers of its job; buffers travel beside each message.

Arguments and results are snapshots (`values`), those of a message in one pickle. A *batch* is a number of
calls of one function that are sent together; `places` are theirs in the batch, from 0 on. What a worker has
begun it answers; what it has not begun it gives back when it is asked to.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

#: roles in the proof of the key (`wire`)
CLIENT, WORKER = b"client", b"worker"


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all of them."""


# --- of a worker -------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """The first one: who connects, for which of the client's jobs. `python`: its version, as "3.11"."""

    lane: int
    serial: int
    python: str
    host: str
    pid: int


class Place(Message, frozen=True, tag=2):
    """The worker's index in the job tree, and the job's number of workers as it knows it."""

    index: int
    volume: int


class Results(Message, frozen=True, tag=3):
    """Outcomes of calls, which took `spent_s` together. `is_ok`: each has returned."""

    batch: int
    places: list[int]
    is_ok: list[bool]
    spent_s: float


class GivenBack(Message, frozen=True, tag=4):
    """These calls of the batch were not begun and will not be."""

    batch: int
    places: list[int]


class Unreadable(Message, frozen=True, tag=5):
    """A batch's function cannot be unpickled here; the buffer is the error."""

    batch: int


class Told(Message, frozen=True, tag=6):
    """The call that is running says how far it is."""

    batch: int
    place: int
    done: float
    total: float | None


class Offered(Message, frozen=True, tag=7):
    """Calls that a running call wants have not been begun: so many could be done by others."""

    count: int


class Inner(Message, frozen=True, tag=8):
    """Answers `Wanted`: `count` calls that a running call wants, `group` as the worker numbers it.

    Buffers: `function_buffers` for the function, then those of the arguments, each (args, kwargs). `is_kept`:
    as of `Function`.
    """

    group: int
    count: int
    function_buffers: int
    is_kept: bool


# --- of the client -------------------------------------------------------------------------------------


class Function(Message, frozen=True, tag=20):
    """A function for batches that follow; its buffers are a pickle and what belongs to it.

    `is_kept`: it is unpickled once, else for each call.
    """

    function: int
    is_kept: bool


class Calls(Message, frozen=True, tag=21):
    """A batch. The buffers are those of its arguments.

    `has_keywords`: each item is (args, kwargs), else args. `retries`: so often a call that raises is
    repeated.
    `is_whole`: all results are wanted at once.
    """

    batch: int
    function: int
    count: int
    has_keywords: bool
    retries: int
    is_whole: bool


class Recall(Message, frozen=True, tag=22):
    """Give back what is not begun of these batches."""

    batches: list[int]


class Stop(Message, frozen=True, tag=28):
    """The results of these calls of a batch are not wanted: interrupt the one that is running."""

    batch: int
    places: list[int]


class Forget(Message, frozen=True, tag=23):
    """These functions are of no use any more."""

    functions: list[int]


class Steer(Message, frozen=True, tag=24):
    """For the root: the demand, and how many calls of how many are done."""

    demand: int
    done: int
    total: int


class Finish(Message, frozen=True, tag=25):
    """For the root: the job is done."""

    done: int


class Wanted(Message, frozen=True, tag=26):
    """Give calls of running calls away, so many at most, for others who have nothing to do."""

    count: int


class InnerResults(Message, frozen=True, tag=27):
    """The results of calls that were given away, as in `Results`."""

    group: int
    is_ok: list[bool]


FromWorker: TypeAlias = Hello | Place | Results | GivenBack | Unreadable | Told | Offered | Inner
ToWorker: TypeAlias = Function | Calls | Recall | Stop | Forget | Steer | Finish | Wanted | InnerResults

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
