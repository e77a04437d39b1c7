"""Messages between a client of calls and the workers of its job; buffers travel beside each message.

Arguments and results are snapshots (`values`), all those of a message in one pickle. A *batch* is a number of
calls of one function sent together; `places` are their places in the batch, from 0. A worker answers calls
that it has begun, and on request gives back all other calls.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

#: roles in the proof of the key (`wire`)
CLIENT, WORKER = b"client", b"worker"


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages."""


# --- from a worker -----------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """The first message: the worker that connects, and the client's job. `python`: the version, as "3.11"."""

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
    """Outcomes of calls, which took `spent_s` together. `is_ok`: whether each call returned."""

    batch: int
    places: list[int]
    is_ok: list[bool]
    spent_s: float


class GivenBack(Message, frozen=True, tag=4):
    """Calls of the batch that were not begun and will not be."""

    batch: int
    places: list[int]


class Unreadable(Message, frozen=True, tag=5):
    """A batch whose function cannot be unpickled here; the buffer is the error."""

    batch: int


class Told(Message, frozen=True, tag=6):
    """Progress of the running call."""

    batch: int
    place: int
    done: float
    total: float | None


class Offered(Message, frozen=True, tag=7):
    """The number of calls, submitted by running calls and not begun, that other workers could do."""

    count: int


class Inner(Message, frozen=True, tag=8):
    """Answer to `Wanted`: `count` calls submitted by a running call; `group` is the worker's number for them.

    Buffers: `function_buffers` for the function, then those of the arguments, each (args, kwargs). `is_kept`
    as in `Function`.
    """

    group: int
    count: int
    function_buffers: int
    is_kept: bool


class Fetch(Message, frozen=True, tag=9):
    """A call needs a shared object. `is_refused`: the told place cannot be opened, so send the object."""

    mark: str
    is_refused: bool


class Kept(Message, frozen=True, tag=10):
    """The worker has a shared object, as this descriptor."""

    mark: str
    fd: int


# --- from the client -----------------------------------------------------------------------------------


class Function(Message, frozen=True, tag=20):
    """A function for later batches; its buffers are a pickle and its out-of-band data.

    `is_kept`: unpickle the function once, else for each call.
    """

    function: int
    is_kept: bool


class Calls(Message, frozen=True, tag=21):
    """A batch; its buffers are those of the arguments.

    `has_keywords`: items are (args, kwargs), else args. `retries`: number of repetitions of a call that
    raises. `is_whole`: send all results at once.
    """

    batch: int
    function: int
    count: int
    has_keywords: bool
    retries: int
    is_whole: bool


class Recall(Message, frozen=True, tag=22):
    """Give back the calls of these batches that are not begun."""

    batches: list[int]


class Stop(Message, frozen=True, tag=28):
    """Drop these calls of a batch, whose results are not wanted; interrupt the running call."""

    batch: int
    places: list[int]


class Forget(Message, frozen=True, tag=23):
    """Drop these functions."""

    functions: list[int]


class Steer(Message, frozen=True, tag=24):
    """To the root: the demand, and how many of how many calls are done."""

    demand: int
    done: int
    total: int


class Finish(Message, frozen=True, tag=25):
    """To the root: the job is done."""

    done: int


class Wanted(Message, frozen=True, tag=26):
    """Give away at most this many calls of running calls, for idle workers."""

    count: int


class InnerResults(Message, frozen=True, tag=27):
    """Results of calls that were given away, as in `Results`."""

    group: int
    is_ok: list[bool]


class Found(Message, frozen=True, tag=29):
    """Answer to `Fetch`: process and descriptor that have the object; without a process, the buffer is it.

    Without a process and a buffer, there is no such object.
    """

    mark: str
    pid: int = 0
    fd: int = -1


class Release(Message, frozen=True, tag=30):
    """Drop a shared object, which no further call needs."""

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
