"""A cluster of PEs in virtual time: events from a heap, delays from a model, no threads.

Messages between two PEs keep their order, as MPI's do; between different pairs they may
overtake each other at will. A PE whose messages have a cost handles one after another; PEs of
one rank share an event loop, so there only one of them is busy at a time.
Worker processes are stand-ins that start after a delay and never compute. What users do
(`submit`, `interrupt`, results, crashes) comes from outside by `at`, and what fails of itself is
asked of `fails`. Whatever happens follows from the seed, so any run can be replayed.

At a quiescent moment, with nothing in flight and no protocol timer running,
`check.check_invariants` must hold; `run` can call it then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import Any

import msgspec

from mallob_py.protocol.balancing import local_rule, shared_rule
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import (
    AnyEffect,
    BlameHost,
    DeliverMessage,
    FetchDescription,
    GiveCheckpoint,
    JobEnded,
    JobGivenUp,
    JobOver,
    JobRests,
    JobSaved,
    JobSought,
    JobUnheard,
    LeaveWorker,
    Log,
    ResumeWorker,
    Send,
    StartWorker,
    SuspendWorker,
    TerminateWorker,
    UpdateWorker,
)
from mallob_py.protocol.host_health import Fault, HostHealth
from mallob_py.protocol.messages import AnyMessage, Description
from mallob_py.protocol.pe import PE
from mallob_py.protocol.placement import Placement
from mallob_py.protocol.stimuli import (
    AnyStimulus,
    DescriptionHere,
    DescriptionMissing,
    HostRests,
    JobInterrupted,
    JobParameters,
    JobSetBack,
    JobSubmitted,
    Received,
    TermsChanged,
    Tick,
    WorkerCrashed,
    WorkerLeft,
    WorkerLost,
    WorkerMissed,
    WorkerStarted,
)
from mallob_py.simulation.delays import Delays, RandomDelays


class Step(Enum):
    """What happens for a worker, one after the other."""

    FETCH = "fetch"
    START = "start"


class Failing(Enum):
    """How one of these steps fails."""

    #: the host has no room for the description
    ROOM = "room"
    #: the description can be had from nobody
    SOURCE = "source"
    #: no process can be forked
    FORK = "fork"
    #: the process dies before it runs
    DEATH = "death"

    @property
    def step(self) -> Step:
        return Step.FETCH if self in (Failing.ROOM, Failing.SOURCE) else Step.START


Action = Callable[[], object]
MessageTest = Callable[[int, int, AnyMessage], bool]
Observer = Callable[[float, int, str, dict[str, Any]], None]

#: in place of the source of a message: other things that happen at a PE
TICK, _WAKE, _ACTION = -1, -2, -3
#: after so many events, times of last deliveries that are past are thrown away
_EVENTS_PER_CLEANING = 1 << 17


class Process:
    """A worker's process, as far as the protocol can tell."""

    def __init__(self, effect: StartWorker) -> None:
        self.job = effect.job
        self.index = effect.index
        self.volume = effect.volume
        self.is_started = False
        self.is_suspended = False
        self.is_leaving = False
        self.has_ended = False
        self.checkpoint: bytes | None = None
        self.children: tuple[int, ...] = ()
        self.heard: list[DeliverMessage] = []


def submission(job: int, parameters: Mapping[str, Any]) -> JobSubmitted:
    """How a job comes in; every other one's description is in messages."""
    description = Description(10, b"x" * 10 if job % 2 else None)
    return JobSubmitted(job, JobParameters(**parameters), description)


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
    """`size` PEs, their network, their processes and a virtual clock.

    `observe(now, rank, event, fields)` hears what the PEs log. `capacities` says how many PEs
    each rank hosts, else each PE is a rank of its own; everywhere else here, and in reports,
    a rank is a PE's number.
    """

    def __init__(
        self,
        size: int,
        seed: int = 0,
        config: Config | None = None,
        delays: Delays | None = None,
        observe: Observer | None = None,
        capacities: Sequence[int] | None = None,
    ) -> None:
        self.size = size
        self.placement = Placement(capacities or [1] * size)
        assert self.placement.size == size, f"capacities {capacities} are not those of {size} PEs"
        self.seed = seed
        self.config = config or Config()
        self.now = 0.0
        self.delays = delays or RandomDelays(seed)
        rule = shared_rule(local_rule(size, self.config.slices), size)
        self.pes = [PE(rank, size, self.config, rule) for rank in range(size)]
        self.processes: dict[tuple[int, int], Process] = {}
        self.health = [HostHealth(self.config) for _ in range(self.placement.ranks)]
        #: whether something goes wrong this time: (PE, job, step)
        self.fails: Callable[[int, int, Step], Failing | None] = lambda rank, job, step: None
        self.ended: dict[int, JobEnded] = {}
        self.submitted: dict[int, int] = {}
        self._submissions: dict[int, JobSubmitted] = {}
        #: the last checkpoints that clients have kept
        self.saved: dict[int, bytes] = {}
        #: those whose workers leave in order
        self.orderly: set[int] = set()
        self.logs: deque[tuple[float, int, str, dict[str, Any]]] = deque(maxlen=200_000)
        self.observe = observe or (lambda *event: self.logs.append(event))
        self.on_ended: Callable[[JobEnded], None] = lambda ended: None
        #: how often jobs were given up for a while
        self.given_up = 0
        self.messages_sent = 0
        self._heap: list[tuple[float, int, int, int, Any]] = []
        self._order = 0
        self._messages_received = 0
        #: fetches and starts of processes under way
        self._under_way = 0
        self._next_tick_s = [math.inf] * size
        self._last_delivery: dict[int, float] = {}
        self._holds: list[Hold] = []
        self._message_s = self.delays.message_s if capacities is None else self._message_between_s
        #: from a PE to its event loop
        self._loop_of: Sequence[int] = self.placement.rank_of
        slowness = [self.delays.slowness(loop) for loop in self._loop_of]
        self._handling_s = [self.delays.handling_s * factor for factor in slowness]
        self._sending_s = [self.delays.sending_s * factor for factor in slowness]
        self._has_costs = any(self._handling_s) or any(self._sending_s)
        #: of each event loop
        self._busy_until_s = [0.0] * self.placement.ranks
        #: messages that wait for a busy event loop: (PE, source, message)
        self._inboxes: dict[int, deque[tuple[int, int, AnyMessage]]] = {}
        for rank in range(size):
            self._after(rank)

    # --- scripts ------------------------------------------------------------------------

    def at(self, when_s: float, action: Action) -> None:
        """Do something at that time; the cluster may be quiescent before."""
        self._push(when_s, 0, _ACTION, action)

    def submit(self, job: int, rank: int = 0, leaves: bool = False, **parameters: Any) -> None:
        self.submitted[job] = rank
        if leaves:
            self.orderly.add(job)
        self._submissions[job] = submission(job, parameters)
        self.tell(rank, self._submissions[job])

    def _submit_again(self, it: JobGivenUp) -> None:
        """A job that was given up comes in again, with what it has had and saved."""
        rank, former = self.submitted[it.job], self._submissions[it.job]
        if it.job in self.ended or it.job in self.pes[rank].client.jobs:
            return
        parameters = msgspec.structs.replace(former.parameters, spent=it.spent)
        again = JobSubmitted(it.job, parameters, former.description, self.saved.get(it.job))
        self._submissions[it.job] = again
        self.tell(rank, again)

    def interrupt(self, job: int) -> None:
        self.tell(self.submitted[job], JobInterrupted(job))

    def set_back(self, job: int) -> None:
        self.tell(self.submitted[job], JobSetBack(job))

    def crash(self, rank: int, worker: int) -> None:
        """A worker's process dies."""
        self._end_process(rank, WorkerCrashed(worker, "killed by signal 9"))

    def _end_process(self, rank: int, news: WorkerCrashed | WorkerLost | WorkerLeft) -> None:
        """A process is no more, which its PE is told."""
        del self.processes[rank, news.worker]
        self.tell(rank, news)

    def set_terms(self, job: int, priority: float, max_demand: int) -> None:
        self.tell(self.submitted[job], TermsChanged(job, priority, max_demand))

    def tell(self, rank: int, stimulus: AnyStimulus) -> None:
        """Whatever a PE is told, it is told here."""
        self.pes[rank].handle(stimulus, self.now)
        self._after(rank)

    def present(self) -> Iterable[tuple[int, PE]]:
        """The PEs that there are, each with its place here, which is its number unless ranks come and go."""
        return enumerate(self.pes)

    def host_of(self, rank: int) -> int:
        """The process that a PE is in."""
        return self._loop_of[rank]

    def capacity_of(self, host: int) -> int:
        return self.placement.capacities[host]

    def running(self, job: int) -> list[tuple[int, int]]:
        """(rank, worker number) of the job's processes that run, root first."""
        found = [
            (process.index, key)
            for key, process in self.processes.items()
            if process.job == job and process.is_started and not (process.is_suspended or process.has_ended)
        ]
        return [key for _, key in sorted(found)]

    def at_work(self, job: int) -> list[tuple[int, int]]:
        """The same without those that leave."""
        return [key for key in self.running(job) if not self.processes[key].is_leaving]

    def hold(self, test: MessageTest) -> Hold:
        """Keep back messages for which `test(source, dest, message)` holds."""
        hold = Hold(self, test)
        self._holds.append(hold)
        return hold

    # --- network and processes ----------------------------------------------------------

    def _push(self, when_s: float, rank: int, source: int, item: Any) -> None:
        self._order += 1
        heappush(self._heap, (max(when_s, self.now), self._order, rank, source, item))

    def _later(self, delay_s: float, action: Action) -> None:
        """Something is in flight until `action` happens."""

        def arrive() -> None:
            self._under_way -= 1
            action()

        self._under_way += 1
        self._push(self.now + delay_s, 0, _ACTION, arrive)

    def post(self, source: int, dest: int, message: AnyMessage) -> None:
        """Send a message that leaves its PE now."""
        self._post(source, dest, message, self.now)

    def _post(self, source: int, dest: int, message: AnyMessage, departure_s: float) -> None:
        for hold in self._holds:
            if hold.takes(source, dest, message):
                hold.messages.append((source, dest, message))
                return
        self.messages_sent += 1
        when_s = departure_s + self._message_s(source, dest)
        pair = source << 32 | dest
        last_delivery = self._last_delivery
        if last_delivery.get(pair, 0.0) > when_s:
            when_s = last_delivery[pair]
        last_delivery[pair] = when_s
        self._order += 1
        heappush(self._heap, (when_s, self._order, dest, source, message))

    def _message_between_s(self, source: int, dest: int) -> float:
        if self._loop_of[source] == self._loop_of[dest]:
            return self.delays.local_s
        return self.delays.message_s(source, dest)

    def _forget_past_deliveries(self) -> None:
        for pair in [pair for pair, when_s in self._last_delivery.items() if when_s <= self.now]:
            del self._last_delivery[pair]

    def _after(self, rank: int) -> None:
        """Execute the effects of a PE and note when it wants its next tick."""
        pe = self.pes[rank]
        while effects := pe.take_effects():
            loop = self._loop_of[rank]
            departure_s = max(self.now, self._busy_until_s[loop])
            for effect in effects:
                if type(effect) is Send:
                    departure_s += self._sending_s[rank]
                    self._post(rank, effect.dest, effect.message, departure_s)
                else:
                    self._execute(rank, effect)
            self._busy_until_s[loop] = departure_s
        deadline_s = pe.deadline_s
        if deadline_s < self._next_tick_s[rank]:
            self._next_tick_s[rank] = deadline_s = max(deadline_s, self.now)
            self._order += 1
            heappush(self._heap, (deadline_s, self._order, rank, TICK, None))

    def _execute(self, rank: int, effect: AnyEffect) -> None:
        match effect:
            case Log(event, fields):
                self.observe(self.now, rank, event, fields)
            case FetchDescription(job):
                self._fetch(rank, job)
            case StartWorker(worker):
                assert (rank, worker) not in self.processes, f"worker {worker} started twice on rank {rank}"
                process = self.processes[rank, worker] = Process(effect)
                failing = self.fails(rank, effect.job, Step.START)
                delay_s = self.delays.process_start_s(rank)
                self._later(delay_s, lambda: self._started(rank, worker, process, failing))
            case SuspendWorker(worker):
                self.processes[rank, worker].is_suspended = True
            case ResumeWorker(worker, index, volume):
                process = self.processes[rank, worker]
                process.is_suspended, process.index, process.volume = False, index, volume
                if process.is_started:
                    started = WorkerStarted(worker, process.job in self.orderly)
                    self._later(self.delays.process_resume_s(rank), lambda: self.tell(rank, started))
            case LeaveWorker(worker):
                process = self.processes[rank, worker]
                assert process.is_started
                process.is_leaving = True
                self._later(self.delays.process_start_s(rank), lambda: self._left(rank, worker))
            case TerminateWorker(worker):
                self.processes.pop((rank, worker), None)
            case UpdateWorker(worker, volume, children):
                process = self.processes[rank, worker]
                process.volume, process.children = volume, children
            case DeliverMessage(worker):
                self.processes[rank, worker].heard.append(effect)
            case BlameHost(fault, reason):
                self._rest(rank, fault, reason)
            case GiveCheckpoint(worker, data):
                self.processes[rank, worker].checkpoint = data
            case JobSaved(job, checkpoint):
                self.saved[job] = checkpoint
            case JobGivenUp():
                self.given_up += 1
                self._later(0.0, lambda: self._submit_again(effect))
            case JobOver() | JobUnheard() | JobSought() | JobRests():
                pass
            case JobEnded(job):
                assert job not in self.ended, f"job {job} ended twice"
                self.ended[job] = effect
                self.on_ended(effect)
            case Send():
                raise AssertionError("messages are posted, not executed")

    def _fetch(self, rank: int, job: int) -> None:
        failing = self.fails(rank, job, Step.FETCH)

        stimulus: AnyStimulus = DescriptionHere(job)
        if failing is not None:
            fault = Fault.HOST if failing is Failing.ROOM else Fault.NOBODY
            stimulus = DescriptionMissing(job, f"no {failing.value}", fault)
        self._later(self.delays.fetch_s(rank), lambda: self.tell(rank, stimulus))

    def _rest(self, rank: int, fault: Fault, reason: str) -> None:
        """What the event loop of a rank does: all of its PEs rest."""
        loop = self._loop_of[rank]
        until_s = self.health[loop].blame(fault, reason, self.now)
        for neighbour in self._pes_of(loop):
            self.pes[neighbour].handle(HostRests(until_s), self.now)
            if neighbour != rank:
                self._after(neighbour)

    def _pes_of(self, loop: int) -> Sequence[int]:
        return self.placement.pes_of(loop)

    def _started(self, rank: int, worker: int, process: Process, failing: Failing | None) -> None:
        if self.processes.get((rank, worker)) is not process:
            return
        if failing is not None:
            if failing is Failing.FORK:
                self._end_process(rank, WorkerLost(worker, "no fork"))
            else:
                self._end_process(rank, WorkerCrashed(worker, "exit status 1"))
        else:
            process.is_started = True
            self.health[self._loop_of[rank]].clear()
            if not process.is_suspended:
                self.tell(rank, WorkerStarted(worker, process.job in self.orderly))

    def _left(self, rank: int, worker: int) -> None:
        """A process has handed over what it had, unless it has come to its end before."""
        if (process := self.processes.get((rank, worker))) is not None:
            for late in process.heard[-1:]:
                self.tell(rank, WorkerMissed(*msgspec.structs.astuple(late)))
            self._end_process(rank, WorkerLeft(worker))

    # --- running ------------------------------------------------------------------------

    def is_quiescent(self) -> bool:
        """Nothing is in flight or held back, and no protocol timer runs."""
        return (
            self.messages_sent == self._messages_received
            and self._under_way == 0
            and not any(hold.messages for hold in self._holds)
            and all(pe.is_quiescent() for _, pe in self.present())
        )

    def run(
        self,
        until_s: float = math.inf,
        on_quiescent: Callable[[Cluster], None] | None = None,
        events_max: float = 1_000_000,
    ) -> int:
        """Play events up to `until_s`; returns how many. `on_quiescent` is called at quiescent moments."""
        count = 0
        quiet = False
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            if on_quiescent is None:
                self._step()
            else:
                if not quiet and heap[0][0] > self.now and self.is_quiescent():
                    quiet = True
                    on_quiescent(self)
                before = self.messages_sent, self._messages_received, self._under_way
                self._step()
                quiet = quiet and before == (self.messages_sent, self._messages_received, self._under_way)
            count += 1
            assert count < events_max, f"no end after {events_max} events (seed {self.seed})"
            if count % _EVENTS_PER_CLEANING == 0:
                self._forget_past_deliveries()
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
            self._step()

    def _step(self) -> None:
        """The next event: a message, a tick, or something else."""
        when_s, _, rank, source, item = heappop(self._heap)
        assert when_s >= self.now, "time goes back"
        self.now = when_s
        if source >= 0:
            if self._has_costs and not self._takes_now(rank, source, item):
                return
            self._messages_received += 1
            self.deliver(rank, source, item)
        elif source == TICK:
            self._tick(rank)
        elif source == _WAKE:
            self._wake(rank)
        else:
            item()

    def deliver(self, dest: int, source: int, message: AnyMessage) -> None:
        """A message has arrived."""
        self.tell(dest, Received(source, message))

    def _tick(self, rank: int) -> None:
        if self._next_tick_s[rank] != self.now:
            return  # there was a sooner one
        loop = self._loop_of[rank]
        if self._has_costs and self._busy_until_s[loop] > self.now:
            self._next_tick_s[rank] = self._busy_until_s[loop]
            self._push(self._next_tick_s[rank], rank, TICK, None)
            return
        self._next_tick_s[rank] = math.inf
        self._busy_until_s[loop] = self.now + self._handling_s[rank]
        self.tell(rank, Tick())

    def _takes_now(self, rank: int, source: int, message: AnyMessage) -> bool:
        """Make the event loop busy with a message that has arrived, or let the message wait for it."""
        loop = self._loop_of[rank]
        inbox = self._inboxes.get(loop)
        if inbox is None and self._busy_until_s[loop] <= self.now:
            self._busy_until_s[loop] = self.now + self._handling_s[rank]
            return True
        if inbox is None:
            inbox = self._inboxes[loop] = deque()
            self._push(self._busy_until_s[loop], loop, _WAKE, None)
        inbox.append((rank, source, message))
        return False

    def _wake(self, loop: int) -> None:
        """A busy event loop is ready for the next message that waits for it."""
        inbox = self._inboxes[loop]
        rank, source, message = inbox.popleft()
        self._busy_until_s[loop] = self.now + self._handling_s[rank]
        self._messages_received += 1
        self.deliver(rank, source, message)
        if inbox:
            self._push(self._busy_until_s[loop], loop, _WAKE, None)
        else:
            del self._inboxes[loop]
