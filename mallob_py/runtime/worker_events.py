"""What a rank hears from its worker processes (`WorkerPool.poll`).

What happens to the worker of a job is a stimulus (`protocol/stimuli.py`), where a worker is the number in
its key (job, number), which no other worker of the rank has; all CPU time of its process is in the last one.
The reading of an input is named by the number it was asked with.
"""

from __future__ import annotations

import msgspec

from mallob_py.kit.app import TreeMessage
from mallob_py.protocol.stimuli import OfWorker
from mallob_py.runtime.worker_wire import ApplicationTraits, LocalDescription

#: (job, number of the worker)
Key = tuple[int, int]


class _Event(msgspec.Struct, frozen=True, gc=False):
    pass


class MessageDropped(_Event, frozen=True):
    """A message that the worker did not take in time; return it to its sender."""

    key: Key
    message: TreeMessage


class ReadDone(_Event, frozen=True):
    """An input was read. A mapped description's file belongs to the caller from now on."""

    request_id: int
    description: LocalDescription


class ReadFailed(_Event, frozen=True):
    """The input cannot be used, or the reading process died. No file is left."""

    request_id: int
    message: str
    field: str


class ReadStalled(_Event, frozen=True):
    """Nothing of an input comes at present; it is waited for, beside others."""

    request_id: int


class ReadGoesOn(_Event, frozen=True):
    """It comes after all."""

    request_id: int


class ApplicationKnown(_Event, frozen=True):
    """What an application declares (see `kit.Declaration`)."""

    traits: ApplicationTraits


WorkerEvent = OfWorker | MessageDropped | ReadDone | ReadFailed | ReadStalled | ReadGoesOn | ApplicationKnown
