"""What a rank hears from its worker processes (`WorkerPool.poll`).

A job's worker is named by its key (job, context), where context is one incarnation of a
worker on this PE; the reading of an input by the number it was asked with.
"""

from __future__ import annotations

import msgspec

from mallob_py.kit.app import TreeMessage
from mallob_py.runtime.worker_wire import Description

#: (job, context)
Key = tuple[int, int]


class _Event(msgspec.Struct, frozen=True, gc=False):
    pass


class WorkerStarted(_Event, frozen=True):
    """The application runs: process there, description decoded."""

    key: Key


class WorkerResult(_Event, frozen=True):
    """The worker's result (`worker_wire.ResultBody`, encoded); the key is free from now on."""

    key: Key
    body: bytes
    peak_memory_bytes: int
    cpu_s: float


class WorkerLost(_Event, frozen=True):
    """No process could be had for the worker; the key is free from now on."""

    key: Key
    reason: str


class WorkerFailed(_Event, frozen=True):
    """The application raised; the key is free from now on."""

    key: Key
    text: str


class WorkerCrashed(_Event, frozen=True):
    """The process ended without a word; the key is free from now on."""

    key: Key
    reason: str
    cpu_s: float


class WorkerDemand(_Event, frozen=True):
    key: Key
    demand: int


class WorkerToParent(_Event, frozen=True):
    key: Key
    data: bytes


class WorkerToChildren(_Event, frozen=True):
    key: Key
    data: bytes


class MessageDropped(_Event, frozen=True):
    """A message that the worker did not take in time; return it to its sender."""

    key: Key
    message: TreeMessage


class ReadDone(_Event, frozen=True):
    """An input was read. A mapped description's file belongs to the caller from now on."""

    request_id: int
    description: Description


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
    """`problem`: why it cannot be imported (empty if it can)."""

    name: str
    takes_input: bool
    revises: bool
    #: keys of the configuration that name files to be written
    result_files: tuple[str, ...]
    problem: str


#: what a PE hears of its workers
JobWorkerEvent = (
    WorkerStarted
    | WorkerResult
    | WorkerFailed
    | WorkerCrashed
    | WorkerLost
    | WorkerDemand
    | WorkerToParent
    | WorkerToChildren
)
WorkerEvent = (
    JobWorkerEvent | MessageDropped | ReadDone | ReadFailed | ReadStalled | ReadGoesOn | ApplicationKnown
)
