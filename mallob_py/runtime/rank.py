"""One PE on real hardware: the event loop that ties the protocol to MPI, processes and users.

    drain the inbox -> hear the workers -> serve the desk -> fire timers -> flush -> park

The PE decides, this loop does: after every input it executes the effects. It parks in one
`select` on everything that can bring news: the doorbell of the transport, the worker
processes, the desk (on ranks that take jobs in) and signals. Only this thread touches MPI.

A *desk* is where jobs come in: the job-file service, or one `solve`. All ranks stop together:
whoever wants to stop tells all others, so nobody is left waiting.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from mallob_py.app import TreeMessage as AppMessage
from mallob_py.protocol.client import JobParameters
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import (
    AnyEffect,
    DeliverMessage,
    FetchBlob,
    JobEnded,
    JobOver,
    Log,
    ResumeWorker,
    Send,
    StartWorker,
    SuspendWorker,
    TerminateWorker,
    UpdateWorker,
)
from mallob_py.protocol.messages import AnyMessage, Blob, encode
from mallob_py.protocol.pe import PE
from mallob_py.runtime import worker_events as events
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.channel import Channel
from mallob_py.runtime.transfer import (
    BlobFailed,
    BlobHere,
    BlobMissing,
    BlobNeeded,
    BlobWanted,
    ChunkTaken,
    Transfer,
)
from mallob_py.runtime.workers import WorkerPool

if TYPE_CHECKING:
    # Importing it initialises MPI.
    from mallob_py.runtime.transport import Transport

#: descriptions up to this size travel inside messages
INLINE_BYTES_MAX = 4096
_PARK_MAX_S = 0.5
#: a tree that grows changes a worker's place several times within milliseconds
_UPDATE_DELAY_S = 0.005
_LOG_FLUSH_S = 0.5


class Stop(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=50):
    """All ranks end now."""


AnyWireMessage: TypeAlias = (
    AnyMessage | BlobNeeded | BlobHere | BlobWanted | BlobMissing | BlobFailed | ChunkTaken | Stop
)
_decode = msgspec.msgpack.Decoder(AnyWireMessage).decode
_TRANSFER = (BlobNeeded, BlobHere, BlobWanted, BlobMissing, BlobFailed, ChunkTaken)


class Desk(Protocol):
    """Where jobs come in on this rank. `turn` is called when `fileno` is readable or it is time."""

    def fileno(self) -> int | None: ...

    def next_deadline(self) -> float: ...

    def turn(self, now: float) -> None: ...

    def job_ended(self, ended: JobEnded, now: float) -> None: ...

    def worker_event(self, event: events.WorkerEvent, now: float) -> None: ...

    def close(self) -> None: ...


class EventSink(Protocol):
    """Where events are logged."""

    def write(self, now: float, event: str, fields: Mapping[str, object]) -> None: ...

    def flush(self) -> None: ...


class StopBell:
    """Signals that ask for the end, as a descriptor that the loop can wait for."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for each in signals:
            signal.signal(each, self._ring)

    def _ring(self, _signal: int, _frame: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"!")

    def fileno(self) -> int:
        return self._read_fd


class PeerFailure(Exception):
    """Another rank is gone. This version cannot go on without it."""


class _Place:
    """What a worker's process was last told of its place in the tree."""

    __slots__ = ("children", "index", "job", "volume")

    def __init__(self, job: int, index: int, volume: int) -> None:
        self.job = job
        self.index = index
        self.volume = volume
        self.children: tuple[int, ...] = ()


class Rank:
    """One rank of the running system. `run` returns when all ranks stop."""

    def __init__(
        self,
        transport: Transport,
        pool: WorkerPool,
        config: Config,
        log: EventSink,
        session: str,
        clock: Callable[[], float],
        stop_bell: StopBell,
        stop_at_s: float = math.inf,
    ) -> None:
        self.rank = transport.rank
        self.size = transport.size
        self.pool = pool
        self.now = clock
        self.log = log
        self.pe = PE(self.rank, self.size, config)
        self.transfer = Transfer(
            self.rank,
            session,
            transport.host_of,
            self._send,
            transport.send_bulk,
            lambda key: self.pe.blob_ready(int(key), self.now()),
            lambda key, reason: self.pe.blob_failed(int(key), reason, self.now()),
        )
        self._transport = transport
        self._desk: Desk | None = None
        self._places: dict[int, _Place] = {}
        #: workers whose process has not been told of its present place yet
        self._outdated: set[int] = set()
        self._update_at_s = math.inf
        self._stopping = False
        self._next_log_flush = -math.inf
        self._fds = [transport.fileno(), pool.fileno(), stop_bell.fileno()]
        self._stop_bell = stop_bell
        self._stop_at_s = stop_at_s

    # --- for the desk -----------------------------------------------------------------

    def set_desk(self, desk: Desk) -> None:
        self._desk = desk

    def submit(self, job: int, parameters: JobParameters, blob: Blob) -> None:
        """Hand a job to the PE here; the desk hears of its end by `job_ended`."""
        self.pe.submit(job, parameters, blob, self.now())
        self._execute_effects()

    def interrupt(self, job: int) -> bool:
        """End a job; False if it is not live."""
        known = self.pe.interrupt(job, self.now())
        self._execute_effects()
        return known

    def stop(self) -> None:
        """End all ranks, this one included."""
        if not self._stopping:
            self._stopping = True
            for dest in range(self.size):
                if dest != self.rank:
                    self._send(dest, Stop())

    # --- the loop -----------------------------------------------------------------------

    def run(self) -> None:
        """Play our part until somebody stops the system. Raises PeerFailure."""
        gc.freeze()  # what there is now stays: collections need not look at it
        self._execute_effects()
        readable: set[int] = set()
        while not self._stopping:
            self._receive(self._transport.fileno() in readable)
            if lost := self._transport.take_lost():
                raise PeerFailure(f"rank {lost[0]} has failed")
            if self.pool.fileno() in readable or self.pool.next_deadline() <= time.monotonic():
                self._hear_workers()
            if self._stop_bell.fileno() in readable or self.now() >= self._stop_at_s:
                self.stop()
            self._serve_desk(readable)
            self._tick()
            if self.now() >= self._update_at_s:
                self._update_workers()
            self._transport.flush()
            if not self._stopping:
                readable = self._park()
        self._transport.flush()

    def _receive(self, rung: bool) -> None:
        if rung:
            self._transport.wake()
        for arrival in self._transport.receive():
            if arrival.channel is Channel.BULK:
                self.transfer.receive_chunk(arrival.source, arrival.data)
                self._execute_effects()
                continue
            message = _decode(arrival.data)
            if isinstance(message, _TRANSFER):
                self.transfer.receive(arrival.source, message)
                self._execute_effects()
            elif isinstance(message, Stop):
                self._stopping = True
            else:
                self.pe.receive(arrival.source, message, self.now())
                self._execute_effects()

    def _serve_desk(self, readable: set[int]) -> None:
        desk = self._desk
        if desk is not None and (desk.fileno() in readable or desk.next_deadline() <= self.now()):
            desk.turn(self.now())

    def _tick(self) -> None:
        now = self.now()
        if self.pe.next_deadline() <= now:
            self.pe.tick(now)
            self._execute_effects()
        if now >= self._next_log_flush:
            self._next_log_flush = now + _LOG_FLUSH_S
            self.log.flush()

    def _park(self) -> set[int]:
        """Wait for news, at most until the next deadline."""
        deadline = min(self.pe.next_deadline(), self._stop_at_s, self._update_at_s)
        fds = self._fds
        if self._desk is not None:
            deadline = min(deadline, self._desk.next_deadline())
            if (fd := self._desk.fileno()) is not None:
                fds = [*fds, fd]
        wanted_s = min(deadline - self.now(), self.pool.next_deadline() - time.monotonic())
        wanted_s = min(max(0.0, wanted_s), _PARK_MAX_S)
        return set(select.select(fds, (), (), self._transport.park_timeout_s(wanted_s))[0])

    # --- messages out ---------------------------------------------------------------------

    def _send(self, dest: int, message: AnyWireMessage) -> None:
        self._transport.send(dest, encode(message))

    # --- worker processes -------------------------------------------------------------------

    def _hear_workers(self) -> None:
        for event in self.pool.poll():
            now = self.now()
            match event:
                case events.WorkerStarted(key):
                    self.pe.worker_started(key[1], now)
                case events.WorkerResult(key, body):
                    self.pe.worker_found_result(key[1], body, now)
                case events.WorkerFailed(key, text):
                    self.pe.worker_failed(key[1], text, now)
                case events.WorkerCrashed(key, reason):
                    self._places.pop(key[1], None)
                    self.pe.worker_crashed(key[1], reason, now)
                case events.WorkerDemand(key, demand):
                    self.pe.worker_demands(key[1], demand, now)
                case events.WorkerToParent(key, data):
                    self.pe.worker_sends_to_parent(key[1], data, now)
                case events.WorkerToChildren(key, data):
                    self.pe.worker_sends_to_children(key[1], data, now)
                case events.MessageDropped(key):
                    # It waited behind 64 MB that the worker does not read; who sent it is not known here.
                    self.log.write(now, "dropped message", {"job": key[0]})
                case _ if self._desk is not None:
                    self._desk.worker_event(event, now)
            self._execute_effects()

    # --- effects ------------------------------------------------------------------------------

    def _execute_effects(self) -> None:
        while effects := self.pe.take_effects():
            for effect in effects:
                self._execute(effect)

    def _execute(self, effect: AnyEffect) -> None:
        match effect:
            case Send(dest, message):
                self._send(dest, message)
            case Log(event, fields):
                self.log.write(self.now(), event, fields)
            case StartWorker(worker, job, index, volume, blob):
                self._places[worker] = _Place(job, index, volume)
                self.pool.start((job, worker), index, volume, (), self._description(blob))
            case UpdateWorker(worker, volume, children):
                place = self._places[worker]
                place.volume, place.children = volume, children
                self._outdated.add(worker)
                self._update_at_s = min(self._update_at_s, self.now() + _UPDATE_DELAY_S)
            case SuspendWorker(worker):
                self.pool.suspend((self._places[worker].job, worker))
            case ResumeWorker(worker, index, volume):
                place = self._places[worker]
                place.index, place.volume, place.children = index, volume, ()
                self.pool.resume((place.job, worker), index, volume, ())
            case TerminateWorker(worker):
                self.pool.terminate((self._places.pop(worker).job, worker))
            case DeliverMessage(worker, source_index, data, returned):
                self._update_workers()
                key = (self._places[worker].job, worker)
                self.pool.deliver(key, AppMessage(source_index, data, returned))
            case FetchBlob(_, blob, sources):
                self.transfer.fetch(blob, sources)
            case JobOver(job):
                self.transfer.forget(str(job))
            case JobEnded():
                assert self._desk is not None
                self._desk.job_ended(effect, self.now())

    def _update_workers(self) -> None:
        """Tell worker processes their places: at leisure, since that wakes them, but before any message."""
        self._update_at_s = math.inf
        for worker in self._outdated:
            if (place := self._places.get(worker)) is not None:
                self.pool.update((place.job, worker), place.index, place.volume, place.children)
        self._outdated.clear()

    def _description(self, blob: Blob) -> wire.Description:
        if blob.inline is not None:
            return wire.Inline(blob.inline)
        return wire.Mapped(str(self.transfer.path_of(blob.key)), blob.size)

    # --- the end ---------------------------------------------------------------------------

    def close(self) -> bool:
        """Leave no process and no file behind; False if the other ranks could not be met."""
        if self._desk is not None:
            self._desk.close()
        self.pool.close()
        self.transfer.close()
        self.log.flush()
        return self._transport.close()


def blob_of(job: int, description: wire.Description) -> Blob:
    """What a helper process has read, as the protocol passes it on."""
    if isinstance(description, wire.Inline):
        return Blob(str(job), len(description.data), description.data)
    return Blob(str(job), description.size_bytes)


def service_clock(start_s: float) -> Callable[[], float]:
    """Seconds since the service's start (`start_s` since 1970): monotonic here, shared by all hosts."""
    offset_s = time.time() - time.monotonic() - start_s
    return lambda: time.monotonic() + offset_s
