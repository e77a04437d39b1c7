"""The processes of the workers of all PEs of a rank: effects in, commands to the pool out.

PEs number their workers each for itself. In the pool, which all PEs of a rank share, worker
w of PE number s of its rank has the number w * capacity + s.

A worker's process is told its place in the tree (index, volume, children) at leisure, since
that wakes it up and a tree that grows changes it several times within milliseconds; but
always before it gets a message of the tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from mallob_py.app import TreeMessage as AppMessage
from mallob_py.protocol.effects import (
    DeliverMessage,
    ResumeWorker,
    StartWorker,
    SuspendWorker,
    TerminateWorker,
    UpdateWorker,
)
from mallob_py.protocol.messages import Blob
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.memory import peak_bytes_of, private_bytes_of
from mallob_py.runtime.worker_events import Key
from mallob_py.runtime.workers import WorkerPool

_UPDATE_DELAY_S = 0.005
_NOTICEABLE = 1.02

WorkerEffect: TypeAlias = (
    StartWorker | UpdateWorker | SuspendWorker | ResumeWorker | TerminateWorker | DeliverMessage
)


class _Place:
    """What a worker's process was last told of its place in the tree."""

    __slots__ = ("children", "index", "is_suspended", "key", "told_bytes", "volume")

    def __init__(self, key: Key, index: int, volume: int) -> None:
        self.key = key
        self.index = index
        self.volume = volume
        self.children: tuple[int, ...] = ()
        self.is_suspended = False
        #: the memory that its job's client has been told of
        self.told_bytes = 0


class HostedWorkers:
    """The workers of `capacity` PEs. `describe(blob)` says where their processes find a description."""

    def __init__(
        self,
        pool: WorkerPool,
        capacity: int,
        describe: Callable[[Blob], wire.Description],
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._capacity = capacity
        self._describe = describe
        self._now = clock
        self._places: dict[int, _Place] = {}
        #: workers whose process has not been told of its present place yet
        self._outdated: set[int] = set()
        #: when `tell_places` is wanted
        self.update_at_s = math.inf

    def owner(self, key: Key) -> tuple[int, int]:
        """Of a process: which PE of the rank it works for, and the worker's number there."""
        worker, slot = divmod(key[1], self._capacity)
        return slot, worker

    def execute(self, slot: int, effect: WorkerEffect) -> None:
        """Do to a process what PE number `slot` of the rank wants."""
        number = effect.worker * self._capacity + slot
        places, pool = self._places, self._pool
        match effect:
            case StartWorker(_, job, index, volume, blob):
                place = places[number] = _Place((job, number), index, volume)
                description = self._describe(blob)
                pool.start(place.key, index, volume, (), description, blob.chain, blob.revision)
            case UpdateWorker(_, volume, children):
                place = places[number]
                place.volume, place.children = volume, children
                self._outdated.add(number)
                self.update_at_s = min(self.update_at_s, self._now() + _UPDATE_DELAY_S)
            case SuspendWorker():
                place = places[number]
                place.is_suspended = True
                pool.suspend(place.key)
            case ResumeWorker(_, index, volume):
                place = places[number]
                place.index, place.volume, place.children = index, volume, ()
                place.is_suspended = False
                pool.resume(place.key, index, volume, ())
            case TerminateWorker():
                pool.terminate(places.pop(number).key)
            case DeliverMessage(_, source_index, data, returned):
                self.tell_places()
                pool.deliver(places[number].key, AppMessage(source_index, data, returned))

    def tell_places(self) -> None:
        """Tell processes their places where these have changed."""
        self.update_at_s = math.inf
        for number in self._outdated:
            if (place := self._places.get(number)) is not None:
                self._pool.update(place.key, place.index, place.volume, place.children)
        self._outdated.clear()

    def grown_memory(self) -> list[tuple[int, int, int]]:
        """Workers that need noticeably more than was told before: PE of the rank, worker, bytes."""
        grown = []
        for place in self._places.values():
            if place.is_suspended or (pid := self._pool.pid_of(place.key)) is None:
                continue
            peak_bytes = peak_bytes_of(pid)
            if peak_bytes > _NOTICEABLE * place.told_bytes:
                place.told_bytes = peak_bytes
                grown.append((*self.owner(place.key), peak_bytes))
        return grown

    def private_bytes(self, slot: int, worker: int) -> int:
        """What comes free if this worker's process ends, about."""
        place = self._places.get(worker * self._capacity + slot)
        pid = None if place is None else self._pool.pid_of(place.key)
        return 0 if pid is None else private_bytes_of(pid)

    def jobs(self) -> set[int]:
        """Jobs that have a worker here, running or suspended."""
        return {place.key[0] for place in self._places.values()}

    def forget(self, key: Key) -> None:
        """The process has crashed."""
        self._places.pop(key[1], None)
