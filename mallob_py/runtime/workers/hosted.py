"""Hosted workers: the workers of all PEs of a rank. PEs' effects become commands to the pool.

Each PE numbers its workers by itself; the pool, shared by all PEs of a rank, uses numbers of its own
(`pool_number`).

A process hears its place in the job tree (index, volume, children) with a delay, because news wakes the
process up and a growing tree changes places several times within milliseconds; but a process always hears its
place before a message of another worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from mallob_py.kit.app import TreeMessage as AppMessage
from mallob_py.protocol import effects, stimuli
from mallob_py.protocol.messages import Description
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.memory import peak_bytes_of, private_bytes_of
from mallob_py.runtime.workers.pool import WorkerPool
from mallob_py.runtime.workers.tasks import Key

_UPDATE_DELAY_S = 0.005
#: time between two reports of a worker's CPU time, as a share of the worker's run time so far: reports become
#: rare
_CPU_SHARE = 0.02
_CPU_PERIOD_S = 0.1
_NOTICEABLE = 1.02

WorkerEffect: TypeAlias = (
    effects.StartWorker
    | effects.StartAnew
    | effects.UpdateWorker
    | effects.SuspendWorker
    | effects.ResumeWorker
    | effects.LeaveWorker
    | effects.TerminateWorker
    | effects.DeliverMessage
    | effects.GiveCheckpoint
)


def pool_number(worker: int, slot: int, capacity: int) -> int:
    """Return the pool's number for worker `worker` of PE number `slot` on a rank with `capacity` PEs."""
    return worker * capacity + slot


class _Place:
    """A worker's place in the job tree, and its memory and CPU time reported so far."""

    __slots__ = (
        *("children", "index", "is_suspended", "key", "look_at_s", "since_s"),
        *("told_bytes", "told_cpu_s", "volume"),
    )

    def __init__(self, key: Key, index: int, volume: int, now: float) -> None:
        self.key = key
        self.index = index
        self.volume = volume
        self.children: tuple[int, ...] = ()
        self.is_suspended = False
        #: memory and CPU time that were reported to the job's client
        self.told_bytes = 0
        self.told_cpu_s = 0.0
        #: time when the worker's CPU time is read next, and time when the worker began or was resumed
        self.look_at_s = math.inf
        self.since_s = now


class HostedWorkers:
    """The workers of this rank's `capacity` PEs; the system has `pes()` PEs at present.

    `path_of(job)` returns the path of a job's large description on this host.
    """

    def __init__(
        self, pool: WorkerPool, capacity: int, path_of: Callable[[int], Path], pes: Callable[[], int]
    ) -> None:
        self._pool = pool
        self._pes = pes
        self._capacity = capacity
        self._path_of = path_of
        self._places: dict[int, _Place] = {}
        #: numbers of workers whose processes do not know their present place
        self._outdated: set[int] = set()
        #: time when `tell_places` must be called
        self.update_at_s = math.inf
        #: time when `cpu_news` must be called
        self.cpu_look_at_s = math.inf
        # All PEs of the system together report at most a thousand times a second.
        self._cpu_period_s = max(_CPU_PERIOD_S, pes() / 1000)

    def hear(self, news: stimuli.OfWorker) -> tuple[int, stimuli.OfWorker]:
        """Return the PE that an event of the pool concerns, and the event with that PE's worker number."""
        number = news.worker
        worker, slot = divmod(number, self._capacity)
        match news:
            case stimuli.WorkerAnswered() | stimuli.WorkerCrashed() | stimuli.WorkerLeft():
                news = replace(news, worker=worker, cpu_s=self._untold_cpu_s(number, news.cpu_s))
            case _ if worker != number:
                news = replace(news, worker=worker)
        if isinstance(news, stimuli.WorkerCrashed | stimuli.WorkerLost | stimuli.WorkerLeft):
            self._places.pop(number, None)
        return slot, news

    def execute(self, slot: int, effect: WorkerEffect, now: float) -> None:
        """Carry out an effect of PE number `slot` on a worker's process."""
        number = pool_number(effect.worker, slot, self._capacity)
        places, pool = self._places, self._pool
        match effect:
            case effects.StartWorker(_, job, index, volume, description, is_given):
                place = places[number] = _Place((job, number), index, volume, now)
                self._look_soon(place, now)
                here = self._here(job, description)
                chain = description.chain, description.revision
                pool.start(place.key, index, volume, (), here, *chain, is_given, self._pes() == 1)
            case effects.StartAnew():
                if (waiting := places.get(number)) is not None:
                    pool.start_anew(waiting.key)
            case effects.UpdateWorker(_, volume, children):
                place = places[number]
                place.volume, place.children = volume, children
                self._outdated.add(number)
                self.update_at_s = min(self.update_at_s, now + _UPDATE_DELAY_S)
            case effects.SuspendWorker():
                place = places[number]
                place.is_suspended = True
                self._look_soon(place, now)
                pool.suspend(place.key)
            case effects.ResumeWorker(_, index, volume):
                place = places[number]
                place.index, place.volume, place.children = index, volume, ()
                place.is_suspended = False
                place.since_s = now
                self._look_soon(place, now)
                pool.resume(place.key, index, volume, ())
            case effects.GiveCheckpoint(_, data):
                pool.give_checkpoint(places[number].key, data)
            case effects.LeaveWorker():
                pool.leave(places[number].key)
            case effects.TerminateWorker():
                pool.terminate(places.pop(number).key)
            case effects.DeliverMessage(_, source_index, sender, data, returned):
                self.tell_places()
                pool.deliver(places[number].key, AppMessage(source_index, data, returned, sender))

    def give(self, slot: int, worker: int, rank: int, receiver: int) -> None:
        """Give a suspended worker's process to another rank, for its worker number `receiver`."""
        place = self._places.pop(pool_number(worker, slot, self._capacity))
        self._pool.give(place.key, place.told_cpu_s, rank, (place.key[0], receiver))

    def _here(self, job: int, description: Description) -> wire.LocalDescription:
        if description.inline is not None:
            return wire.Inline(description.inline)
        return wire.Mapped(str(self._path_of(job)), description.size)

    def tell_places(self) -> None:
        """Tell processes their places if these have changed."""
        self.update_at_s = math.inf
        for number in self._outdated:
            if (place := self._places.get(number)) is not None:
                self._pool.update(place.key, place.index, place.volume, place.children)
        self._outdated.clear()

    def grown_memory(self) -> list[tuple[int, stimuli.WorkerUsed]]:
        """Return (PE, news) for each worker that uses noticeably more memory than was reported."""
        grown = []
        for number, place in self._places.items():
            if place.is_suspended or (pid := self._pool.pid_of(place.key)) is None:
                continue
            peak_bytes = peak_bytes_of(pid)
            if peak_bytes > _NOTICEABLE * place.told_bytes:
                place.told_bytes = peak_bytes
                worker, slot = divmod(number, self._capacity)
                grown.append((slot, stimuli.WorkerUsed(worker, 0.0, peak_bytes)))
        return grown

    def cpu_news(self, now: float) -> list[tuple[int, stimuli.WorkerUsed]]:
        """Return (PE, news) for each worker that is due: the news has its CPU time since the last report."""
        news = []
        for number, place in self._places.items():
            if now < place.look_at_s:
                continue
            place.look_at_s = math.inf
            if not place.is_suspended:
                place.look_at_s = now + max(self._cpu_period_s, _CPU_SHARE * (now - place.since_s))
            used_s = self._pool.cpu_seconds_of(place.key)
            if used_s is not None and (untold_s := self._untold_cpu_s(number, used_s)) > 0:
                worker, slot = divmod(number, self._capacity)
                news.append((slot, stimuli.WorkerUsed(worker, untold_s, 0)))
        self.cpu_look_at_s = min((place.look_at_s for place in self._places.values()), default=math.inf)
        return news

    def _untold_cpu_s(self, number: int, used_s: float) -> float:
        """Return a worker's unreported CPU time, and count it as reported."""
        if (place := self._places.get(number)) is None:
            return 0.0
        untold_s = max(0.0, used_s - place.told_cpu_s)
        place.told_cpu_s += untold_s
        return untold_s

    def _look_soon(self, place: _Place, now: float) -> None:
        place.look_at_s = now + self._cpu_period_s
        self.cpu_look_at_s = min(self.cpu_look_at_s, place.look_at_s)

    def private_bytes(self, slot: int, worker: int) -> int:
        """Return about how much memory a worker's end would free; 0: it has no process."""
        place = self._places.get(pool_number(worker, slot, self._capacity))
        pid = None if place is None else self._pool.pid_of(place.key)
        return 0 if pid is None else private_bytes_of(pid)

    def jobs(self) -> set[int]:
        """Return the jobs with a worker here, running or suspended."""
        return {place.key[0] for place in self._places.values()}
