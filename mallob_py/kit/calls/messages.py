"""Messages between a client of calls and the workers of its job; buffers travel beside each message.

Arguments and results are snapshots (`values`); all snapshots of a message are in one pickle. A *batch* is a
number of calls of one function sent together; `places` number calls within their batch, from 0. A worker
answers the calls that it has begun, and on request gives back all others.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

#: names of both ends in the proof that they know the job's key (`wire`)
CLIENT, WORKER = b"client", b"worker"


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages."""


# --- messages from a worker --------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """The first message: who connects, and to which job of the client. `python`: the version, as "3.11"."""

    lane: int
    serial: int
    python: str
    host: str
    pid: int


class Place(Message, frozen=True, tag=2):
    """The worker's index in the job tree, and the job's volume as known to the worker."""

    index: int
    volume: int


class Results(Message, frozen=True, tag=3):
    """Outcomes of calls, which took `spent_s` in all. `is_ok`: for each call, whether it returned."""

    batch: int
    places: list[int]
    is_ok: list[bool]
    spent_s: float


class GivenBack(Message, frozen=True, tag=4):
    """Calls of a batch that the worker has not begun and will not begin."""

    batch: int
    places: list[int]


class Unreadable(Message, frozen=True, tag=5):
    """A batch whose function the worker cannot unpickle; the buffer holds the error."""

    batch: int


class Told(Message, frozen=True, tag=6):
    """Progress of the running call."""

    batch: int
    place: int
    done: float
    total: float | None


class Offered(Message, frozen=True, tag=7):
    """The number of calls that other workers could do: submitted by running calls, and not begun."""

    count: int


class Inner(Message, frozen=True, tag=8):
    """Answer to `Wanted`: `count` calls of one function, submitted by a running call.

    `group`: number that the worker gives these calls. Buffers: `function_buffers` for the function, then
    those of the arguments, each (args, kwargs). `is_kept` as in `Function`.
    """

    group: int
    count: int
    function_buffers: int
    is_kept: bool


class Fetch(Message, frozen=True, tag=9):
    """A request for a shared object that a call needs.

    `is_refused`: the asker could not open the descriptor in `Found`, so the object itself must be sent.
    """

    mark: str
    is_refused: bool


class Kept(Message, frozen=True, tag=10):
    """The worker keeps a shared object under the descriptor `fd`."""

    mark: str
    fd: int


# --- messages from the client --------------------------------------------------------------------------


class Function(Message, frozen=True, tag=20):
    """A function for later batches; its buffers are a pickle and its out-of-band data.

    `is_kept`: unpickle the function once, else for each call.
    """

    function: int
    is_kept: bool


class Calls(Message, frozen=True, tag=21):
    """A batch; its buffers hold the arguments.

    `has_keywords`: each call's arguments are (args, kwargs), else args. `retries`: how often a call that
    raises is repeated at most. `is_whole`: send all results at once.
    """

    batch: int
    function: int
    count: int
    has_keywords: bool
    retries: int
    is_whole: bool


class Recall(Message, frozen=True, tag=22):
    """Give back all calls of these batches that the worker has not begun."""

    batches: list[int]


class Stop(Message, frozen=True, tag=28):
    """Drop calls of a batch whose results nobody wants, and interrupt such a call if it is running."""

    batch: int
    places: list[int]


class Forget(Message, frozen=True, tag=23):
    """Drop these functions."""

    functions: list[int]


class Steer(Message, frozen=True, tag=24):
    """To the root: the demand for workers, and how many of `total` calls are done."""

    demand: int
    done: int
    total: int


class Finish(Message, frozen=True, tag=25):
    """To the root: the job is done, after `done` calls."""

    done: int


class Wanted(Message, frozen=True, tag=26):
    """Give away, for idle workers, at most `count` calls that running calls have submitted."""

    count: int


class InnerResults(Message, frozen=True, tag=27):
    """Results of the calls of an `Inner`, as in `Results`."""

    group: int
    is_ok: list[bool]


class Found(Message, frozen=True, tag=29):
    """Answer to `Fetch`: the process and the descriptor under which it keeps the object.

    If `pid` is 0, the buffer is the object; without a buffer, the object does not exist.
    """

    mark: str
    pid: int = 0
    fd: int = -1


class Release(Message, frozen=True, tag=30):
    """Drop a shared object that no further call needs."""

    mark: str


FromWorker: TypeAlias = (
    Hello | Place | Results | GivenBack | Unreadable | Told | Offered | Inner | Fetch | Kept
)
ToWorker: TypeAlias = (
    Function | Calls | Recall | Stop | Forget | Steer | Finish | Wanted | InnerResults | Found | Release
)

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
