"""A cluster of PEs in virtual time: events from a heap, random delays, no threads.

Messages between two PEs keep their order, as MPI's do; between different pairs they may
overtake each other at will. Worker processes are stand-ins that start after a random delay
and never compute. What users do (`submit`, `interrupt`, results, crashes) comes from outside
by `at`. Whatever happens follows from the seed, so any run can be replayed.

At a quiescent moment, with nothing in flight and no protocol timer running,
`check.check_invariants` must hold; `run` calls it then.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from mallob_py.protocol.balancing import VolumeRule, local_volumes
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
from mallob_py.protocol.messages import AnyMessage, Blob, JobEvent
from mallob_py.protocol.pe import PE
from mallob_py.simulation.delays import Delays, RandomDelays

Action = Callable[[], None]
MessageTest = Callable[[int, int, AnyMessage], bool]


class Process:
    """A worker's process, as far as the protocol can tell."""

    def __init__(self, effect: StartWorker) -> None:
        self.job = effect.job
        self.index = effect.index
        self.volume = effect.volume
        self.is_started = False
        self.is_suspended = False
        self.children: tuple[int, ...] = ()
        self.heard: list[DeliverMessage] = []


class Hold:
    """Messages kept back by a script; later ones of the same pairs of ranks queue behind them."""

    def __init__(self, cluster: Cluster, test: MessageTest) -> None:
        self._cluster = cluster
        self.test = test
        self.messages: list[tuple[int, int, AnyMessage]] = []
        self.is_open = False

    def takes(self, source: int, dest: int, message: AnyMessage) -> bool:
        return not self.is_open and (
            self.test(source, dest, message)
            or any((source, dest) == (held[0], held[1]) for held in self.messages)
        )

    def release(self) -> None:
        """Let all kept messages go, in their order, and keep no more."""
        self.is_open = True
        messages, self.messages = self.messages, []
        for source, dest, message in messages:
            self._cluster.post(source, dest, message)


class Cluster:
    """`size` PEs, their network, their processes and a virtual clock."""

    def __init__(
        self, size: int, seed: int = 0, config: Config | None = None, delays: Delays | None = None
    ) -> None:
        self.size = size
        self.seed = seed
        self.config = config or Config()
        self.now = 0.0
        self._delays: Delays = delays or RandomDelays(seed)
        rule = self._shared_rule(local_volumes(size))
        self.pes = [PE(rank, size, self.config, rule) for rank in range(size)]
        self.processes: dict[tuple[int, int], Process] = {}
        self.ended: dict[int, JobEnded] = {}
        self.submitted: dict[int, int] = {}
        self.logs: deque[tuple[float, int, str, dict[str, Any]]] = deque(maxlen=200_000)
        self.messages_sent = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = 0
        self._in_flight = 0
        self._ticks: dict[int, float] = {}
        self._last_delivery: dict[tuple[int, int], float] = {}
        self._holds: list[Hold] = []
        self._dirty = set(range(size))
        for rank in range(size):
            self._after(rank)

    @staticmethod
    def _shared_rule(rule: VolumeRule) -> VolumeRule:
        """All PEs get the volumes of an epoch from one evaluation; two images of it must agree."""
        results: dict[int, tuple[dict[int, JobEvent], Any]] = {}

        def shared(epoch: int, jobs: Any) -> Any:
            known = results.get(epoch)
            if known is None:
                results.pop(epoch - 64, None)
                known = results[epoch] = (dict(jobs), rule(epoch, jobs))
            assert known[0] == jobs, f"two PEs have different images of epoch {epoch}"
            return known[1]

        return shared

    # --- scripts ------------------------------------------------------------------------

    def at(self, when_s: float, action: Action) -> None:
        """Do something at that time; the cluster may be quiescent before."""
        self._push(when_s, action)

    def submit(self, job: int, rank: int = 0, **parameters: Any) -> None:
        self.submitted[job] = rank
        blob = Blob(f"job{job}", 10, b"x" * 10 if job % 2 else None)
        self.pes[rank].submit(job, JobParameters(**parameters), blob, self.now)
        self._after(rank)

    def interrupt(self, job: int) -> None:
        rank = self.submitted[job]
        self.pes[rank].interrupt(job, self.now)
        self._after(rank)

    def call(self, rank: int, action: Callable[[PE], object]) -> None:
        """Anything else that the outside may tell a PE."""
        action(self.pes[rank])
        self._after(rank)

    def running(self, job: int) -> list[tuple[int, int]]:
        """(rank, worker number) of the job's processes that run, root first."""
        found = [
            (process.index, key)
            for key, process in self.processes.items()
            if process.job == job and process.is_started and not process.is_suspended
        ]
        return [key for _, key in sorted(found)]

    def hold(self, test: MessageTest) -> Hold:
        """Keep back messages for which `test(source, dest, message)` holds."""
        hold = Hold(self, test)
        self._holds.append(hold)
        return hold

    # --- network and processes ----------------------------------------------------------

    def _push(self, when_s: float, action: Action) -> None:
        self._order += 1
        heapq.heappush(self._heap, (max(when_s, self.now), self._order, action))

    def _later(self, delay_s: float, action: Action) -> None:
        """Something is in flight until `action` happens."""
        self._in_flight += 1
        self._push(self.now + delay_s, lambda: self._arrive(action))

    def _arrive(self, action: Action) -> None:
        self._in_flight -= 1
        action()

    def post(self, source: int, dest: int, message: AnyMessage) -> None:
        for hold in self._holds:
            if hold.takes(source, dest, message):
                hold.messages.append((source, dest, message))
                return
        self.messages_sent += 1
        self._in_flight += 1
        when_s = self.now + self._delays.message_s(source, dest)
        when_s = max(when_s, self._last_delivery.get((source, dest), 0.0))
        self._last_delivery[source, dest] = when_s
        self._push(when_s, lambda: self._arrive(lambda: self._deliver(source, dest, message)))

    def _deliver(self, source: int, dest: int, message: AnyMessage) -> None:
        self.pes[dest].receive(source, message, self.now)
        self._after(dest)

    def _after(self, rank: int) -> None:
        """Execute the effects of a PE and note when it wants its next tick."""
        pe = self.pes[rank]
        for effect in pe.take_effects():
            self._execute(rank, effect)
        deadline = pe.next_deadline()
        if deadline < math.inf and deadline < self._ticks.get(rank, math.inf):
            self._ticks[rank] = deadline
            self._push(deadline, lambda: self._tick(rank, deadline))

    def _tick(self, rank: int, deadline: float) -> None:
        if self._ticks.get(rank) == deadline:
            del self._ticks[rank]
            self.pes[rank].tick(self.now)
            self._after(rank)

    def _execute(self, rank: int, effect: AnyEffect) -> None:
        match effect:
            case Send(dest, message):
                self.post(rank, dest, message)
            case Log(event, fields):
                self.logs.append((self.now, rank, event, fields))
            case FetchBlob(job):
                self._later(
                    self._delays.fetch_s(rank),
                    lambda: self.call(rank, lambda pe: pe.blob_ready(job, self.now)),
                )
            case StartWorker(worker):
                assert (rank, worker) not in self.processes, f"worker {worker} started twice on rank {rank}"
                process = self.processes[rank, worker] = Process(effect)
                self._later(self._delays.process_start_s(rank), lambda: self._started(rank, worker, process))
            case SuspendWorker(worker):
                self.processes[rank, worker].is_suspended = True
            case ResumeWorker(worker, index, volume):
                process = self.processes[rank, worker]
                process.is_suspended, process.index, process.volume = False, index, volume
                if process.is_started:
                    self._later(0.0, lambda: self.call(rank, lambda pe: pe.worker_started(worker, self.now)))
            case TerminateWorker(worker):
                self.processes.pop((rank, worker), None)
            case UpdateWorker(worker, volume, children):
                process = self.processes[rank, worker]
                process.volume, process.children = volume, children
            case DeliverMessage(worker):
                self.processes[rank, worker].heard.append(effect)
            case JobOver():
                pass
            case JobEnded(job):
                assert job not in self.ended, f"job {job} ended twice"
                self.ended[job] = effect

    def _started(self, rank: int, worker: int, process: Process) -> None:
        if self.processes.get((rank, worker)) is process:
            process.is_started = True
            if not process.is_suspended:
                self.call(rank, lambda pe: pe.worker_started(worker, self.now))

    # --- running ------------------------------------------------------------------------

    def is_quiescent(self) -> bool:
        """Nothing is in flight or held back, and no protocol timer runs."""
        return (
            self._in_flight == 0
            and not any(hold.messages for hold in self._holds)
            and all(pe.is_quiescent() for pe in self.pes)
        )

    def run(
        self,
        until_s: float = math.inf,
        on_quiescent: Callable[[Cluster], None] | None = None,
        events_max: int = 300_000,
    ) -> int:
        """Play events up to `until_s`; returns how many. `on_quiescent` is called at quiescent moments."""
        count = 0
        quiet = False
        while self._heap and self._heap[0][0] <= until_s:
            when_s, _, action = heapq.heappop(self._heap)
            if on_quiescent is not None and not quiet and when_s > self.now and self.is_quiescent():
                quiet = True
                on_quiescent(self)
            self.now = when_s
            before = self.messages_sent, self._in_flight
            action()
            quiet = quiet and before == (self.messages_sent, self._in_flight)
            count += 1
            assert count < events_max, f"no end after {events_max} events (seed {self.seed})"
        if until_s < math.inf:
            self.now = max(self.now, until_s)
        if on_quiescent is not None and self.is_quiescent():
            on_quiescent(self)
        return count

    def settle(self, within_s: float = 5.0) -> None:
        """Run until quiescent, at most `within_s` of virtual time."""
        limit_s = self.now + within_s
        while not self.is_quiescent():
            due = bool(self._heap) and self._heap[0][0] <= limit_s
            assert due, f"no rest within {within_s} s (seed {self.seed})"
            when_s, _, action = heapq.heappop(self._heap)
            self.now = when_s
            action()
