"""Tasks of worker processes, as the rank sees them, and the events that the rank hears.

A task waits (`link` is None) until a process is free. The task holds the process's first message, and maps
the process's messages to the rank's events.

The number of processes that read inputs is bounded; further reads wait (`Reads`). A process without any CPU
time between two looks is stalled: it waits for the writer of a named pipe, or a dead file server. A stalled
read goes on waiting, but gives up its place, so that inputs which never come block no other reads. There is
room for `STALLED_MAX` stalled reads; if more stall, the one stalled longest must end.

For an application that the fork server has not imported, one input is read at a time. Once the reading
process has imported the application without harm, the server imports it, so that not every process must. With
more jobs than PEs, turns may be shorter than that import: workers of the application begin after it.

A rank hears of its worker processes by `WorkerPool.poll`. Events of a job's worker are stimuli
(`protocol/stimuli.py`), where a worker is the number in its key (job, number), unique on the rank; the last
one has all CPU time of its process. A read is named by the number of its request.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from mallob_py.kit.app import TreeMessage
from mallob_py.protocol import stimuli
from mallob_py.protocol.stimuli import OfWorker
from mallob_py.restarts import RestartLimit
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.worker_wire import ApplicationTraits, LocalDescription
from mallob_py.runtime.workers.kept import KeptWorker
from mallob_py.runtime.workers.links import WorkerLink

#: (job, number of the worker)
Key = tuple[int, int]


class _Event(msgspec.Struct, frozen=True, gc=False):
    pass


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
    """The read gets no input at present, and waits beside the other reads."""

    request_id: int


class ReadGoesOn(_Event, frozen=True):
    """A stalled input comes again."""

    request_id: int


class ApplicationKnown(_Event, frozen=True):
    """An application's declaration has come (see `kit.Declaration`)."""

    traits: ApplicationTraits


WorkerEvent = OfWorker | ReadDone | ReadFailed | ReadStalled | ReadGoesOn | ApplicationKnown


def missed(key: Key, message: TreeMessage) -> WorkerEvent:
    """Return the event for a message that its worker's process does not take."""
    return stimuli.WorkerMissed(key[1], message.source, message.sender, message.data, message.returned)


#: time for which a read waits for a process if none can be started
PATIENCE_S = 5.0
#: most further readers after a process died while reading an input, since it may have been killed
_OTHER_READERS_MAX = 2
#: events that end a task
FINAL_EVENTS = (
    stimuli.WorkerAnswered,
    stimuli.WorkerRaised,
    stimuli.WorkerCrashed,
    stimuli.WorkerLeft,
    stimuli.WorkerLost,
    ReadDone,
    ReadFailed,
)


@dataclass(slots=True, eq=False)
class JobTask:
    """A job's worker."""

    key: Key
    run: wire.Run
    suspended: bool = False
    link: WorkerLink | None = None
    #: whether its process was kept from a former revision and has not yet reported this task; or (without a
    #: link) whether another rank must give it
    is_pending: bool = False
    take_up_by_s: float = math.inf
    #: CPU time of its process before this task; None: the task does not run yet
    cpu_before_s: float | None = None
    #: the task's CPU time reported by another rank, which had the process before
    cpu_told_s: float = 0.0
    #: whether to send `Leave` when the task must end
    leaves: bool = False
    #: messages that arrived before the task had a process
    early: deque[TreeMessage] = field(default_factory=deque)
    early_bytes: int = 0
    #: messages since the task was told to leave; None: it was not told
    late: list[TreeMessage] | None = None
    _application: str | None = None

    @property
    def application(self) -> str:
        """The name of its application; "" if the description is unusable, as the process will report."""
        if self._application is None:
            self._application = ""
            with suppress(OSError, ValueError):
                self._application = wire.application_of(self.run.description)
        return self._application

    @property
    def number(self) -> int:
        return self.key[1]

    @property
    def is_awaited(self) -> bool:
        """Tell whether another rank must give the task's process."""
        return self.is_pending and self.link is None

    @property
    def is_starting(self) -> bool:
        """Tell whether the task must be stopped as soon as it runs."""
        has_process = self.link is not None and not self.link.closed
        return self.suspended and has_process and self.cpu_before_s is None

    def given_link(self) -> WorkerLink | None:
        """Return the task's process if it can go on at another rank: if it runs the task, and is stopped."""
        rests = self.suspended and not self.is_pending and self.cpu_before_s is not None
        return self.link if rests and self.link is not None and not self.link.closed else None

    def first_message(self) -> wire.ToWorker:
        return self.run

    def keep(self, message: TreeMessage, limit_bytes: int) -> list[TreeMessage]:
        """Keep a message until there is a process; return those that give way, oldest first."""
        self.early.append(message)
        self.early_bytes += len(message.data)
        dropped = []
        while self.early_bytes > limit_bytes:
            dropped.append(self.early.popleft())
            self.early_bytes -= len(dropped[-1].data)
        return dropped

    def take_early(self) -> list[wire.Deliver]:
        messages = [wire.Deliver(one.source, one.sender, one.data, one.returned) for one in self.early]
        self.early.clear()
        self.early_bytes = 0
        return messages

    def event_of(self, message: wire.FromWorker) -> WorkerEvent | None:
        match message:
            case wire.Started(cpu_before_s=before_s, leaves=leaves):
                self.cpu_before_s, self.leaves = before_s, leaves
                return stimuli.WorkerStarted(self.number, leaves)
            case wire.ResultFound(body, peak_memory_bytes, cpu_s):
                untold_s = max(0.0, cpu_s - self.cpu_told_s)
                return stimuli.WorkerAnswered(self.number, body, peak_memory_bytes, untold_s)
            case wire.Failed(text):
                return stimuli.WorkerRaised(self.number, text)
            case wire.Left(cpu_s=cpu_s):
                return stimuli.WorkerLeft(self.number, cpu_s)
            case wire.Demand(demand):
                return stimuli.WorkerDemands(self.number, demand)
            case wire.Progressed(progress):
                return stimuli.WorkerProgresses(self.number, progress)
            case wire.Offered(interim):
                return stimuli.WorkerOffers(self.number, interim)
            case wire.Checkpoint(data):
                return stimuli.WorkerSaves(self.number, data)
            case wire.CheckpointWanted():
                return stimuli.WorkerWantsCheckpoint(self.number)
            case wire.ToParent(data):
                return stimuli.WorkerToParent(self.number, data)
            case wire.ToChildren(data):
                return stimuli.WorkerToChildren(self.number, data)
            case wire.ToAddress(pe, stay, data):
                return stimuli.WorkerToWorker(self.number, pe, stay, data)
        return None

    def event_of_crash(self, reason: str, cpu_s: float, is_spared: bool) -> WorkerEvent:
        used_s = 0.0 if self.cpu_before_s is None else max(0.0, cpu_s - self.cpu_before_s)
        return stimuli.WorkerCrashed(self.number, reason, used_s, is_spared)

    def events_of_giving_up(self, text: str) -> list[WorkerEvent]:
        return [stimuli.WorkerLost(self.number, text)]


class Starter:
    """The one task of a rank that was stopped before it ran, and may start nevertheless."""

    def __init__(self) -> None:
        self._task: JobTask | None = None
        #: time when the task must be stopped
        self.until_s = math.inf

    @property
    def starting(self) -> JobTask | None:
        """Return the task, until it has started."""
        return self._task if self._task is not None and self._task.is_starting else None

    def admits(self, task: JobTask, until_s: float) -> bool:
        """Tell whether a task may start, since no other one does."""
        if self.starting is not None:
            return False
        self._task, self.until_s = task, until_s
        return True

    def stop(self) -> None:
        """Stop a start that takes too long: the task continues its start when it is resumed."""
        if (task := self.starting) is not None and task.link is not None:
            task.link.signal(signal.SIGSTOP)
        self._task, self.until_s = None, math.inf


@dataclass(slots=True, eq=False, kw_only=True)
class _Patient:
    """A task that must be done on this host, and waits for a process for a while."""

    give_up_at_s: float = math.inf

    def waits_on(self, now_s: float) -> bool:
        """Tell whether to wait on, after another failure to get a process."""
        self.give_up_at_s = min(self.give_up_at_s, now_s + PATIENCE_S)
        return now_s < self.give_up_at_s


@dataclass(slots=True, eq=False)
class ReadTask(_Patient):
    """Reading a job's input. `other_readers`: further readers after a death, by the task's fault or not.

    `kept`: a process of its chain that reads it, and is kept again afterwards, possibly having begun the job.
    """

    request_id: int
    read: wire.Read
    link: WorkerLink | None = None
    kept: KeptWorker | None = None
    goes_on: bool = False
    other_readers: RestartLimit = field(default_factory=lambda: RestartLimit(_OTHER_READERS_MAX))
    #: time since when a process works on the task; inf: it waits for its first process
    since_s: float = math.inf

    def first_message(self) -> wire.ToWorker:
        return self.read

    def event_of(self, message: wire.FromWorker) -> WorkerEvent | None:
        match message:
            case wire.InputRead(description, goes_on):
                self.goes_on = goes_on
                return ReadDone(self.request_id, description)
            case wire.InputRefused(text, field_name):
                return ReadFailed(self.request_id, text, field_name)
        return None

    def event_of_crash(self, reason: str, cpu_s: float, is_spared: bool) -> WorkerEvent:
        text = f"each process that read the input ended early ({self.other_readers.count + 1} did): {reason}"
        return ReadFailed(self.request_id, text, "application")

    def events_of_giving_up(self, text: str) -> list[WorkerEvent]:
        return [ReadFailed(self.request_id, text, "application")]


@dataclass(slots=True, eq=False)
class InspectTask(_Patient):
    """Inspecting applications; `names` are those not known yet, in order."""

    names: list[str]
    link: WorkerLink | None = None

    def first_message(self) -> wire.ToWorker:
        return wire.Inspect(tuple(self.names))

    def event_of(self, message: wire.FromWorker) -> WorkerEvent | None:
        if not isinstance(message, wire.ApplicationTraits):
            return None
        self.names.remove(message.name)
        return ApplicationKnown(message)

    def event_of_crash(self, reason: str, cpu_s: float, is_spared: bool) -> WorkerEvent | None:
        """Blame the first application not known yet, which has killed the process."""
        if not self.names:
            return None  # all were inspected
        problem = f"importing it ended the process: {reason}"
        return ApplicationKnown(wire.ApplicationTraits(self.names.pop(0), problem=problem))

    def events_of_giving_up(self, text: str) -> list[WorkerEvent]:
        known = [wire.ApplicationTraits(name, problem=text) for name in self.names]
        return [ApplicationKnown(traits) for traits in known]


Task = JobTask | ReadTask | InspectTask

LOOK_PERIOD_S = 1.0
STALLED_MAX = 64


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of stalled reads: newly stalled ones, resumed ones, and ones that must end."""

    stalled: list[ReadTask] = field(default_factory=list)
    going_on: list[ReadTask] = field(default_factory=list)
    surplus: list[ReadTask] = field(default_factory=list)


class Reads:
    """The reads of one rank."""

    def __init__(self, at_once_max: int) -> None:
        self._at_once_max = at_once_max
        #: each unfinished read's CPU time [ns] at the last look
        self._going: dict[ReadTask, int] = {}
        #: CPU time of stalled reads at the last look, the longest stalled read first
        self._stalled: dict[ReadTask, int] = {}
        self._later: dict[ReadTask, None] = {}
        #: applications that the fork server imports now, and those that are not waited for
        self._coming: set[str] = set()
        self._known: set[str] = set()
        #: time when `look` must be called
        self.look_at_s = math.inf

    def admits(self, task: ReadTask, now_s: float) -> bool:
        """Tell whether a read may begin, or begin again; if not, keep it waiting here."""
        if task in self._going or task in self._stalled:
            return True
        if len(self._going) >= self._at_once_max or self._is_cold(task.read.application):
            self._later[task] = None
            return False
        self._going[task] = -1
        self.look_at_s = min(self.look_at_s, now_s + LOOK_PERIOD_S)
        return True

    def _is_cold(self, application: str) -> bool:
        """Tell whether a read of this application must wait until fewer processes import it."""
        if application in self._known:
            return False
        is_going = any(task.read.application == application for task in self._going)
        return is_going or application in self._coming

    def ready(self, waiting: Iterable[Task], starting: JobTask | None) -> deque[Task]:
        """Return the tasks that need a process now, with more jobs than PEs.

        Workers must wait for an import of their application that is under way.
        """
        return deque(
            task
            for task in waiting
            if not (isinstance(task, JobTask) and self._is_being_imported(task, starting))
        )

    def _is_being_imported(self, task: JobTask, starting: JobTask | None) -> bool:
        """Tell whether a task's application is being imported, by the server or a starting task."""
        if task.application in self._coming:
            return True
        if starting is None or starting.application != task.application:
            return False
        return task.application not in self._known | {""}

    def note_import(self, message: wire.Imports | wire.Started, ask_server: Callable[[str], bool]) -> None:
        """Have the fork server import what a process imported without harm; later reads wait for this import.

        `ask_server` asks the server, and tells whether it had not been asked before.
        """
        match message:
            case wire.Imports(application, is_own=False):
                self.know(application)
            case wire.Imports(application) | wire.Started(application, newly_imported=True):
                if ask_server(application):
                    self._coming.add(application)

    def know(self, application: str) -> None:
        """Note that the fork server has imported an application."""
        self._coming.discard(application)
        self._known.add(application)

    def await_no_import(self) -> None:
        """Wait for no import: the fork server is gone, perhaps by what it was importing."""
        self._known |= self._coming
        self._coming.clear()

    def end(self, task: ReadTask) -> None:
        """End a read, done or not."""
        for tasks in (self._going, self._stalled, self._later):
            tasks.pop(task, None)

    def following(self, now_s: float) -> list[ReadTask]:
        """Return waiting reads that begin now."""
        begin: list[ReadTask] = []
        while len(self._going) < self._at_once_max:
            warm = (task for task in self._later if not self._is_cold(task.read.application))
            if (task := next(warm, None)) is None:
                break
            del self._later[task]
            self.admits(task, now_s)
            begin.append(task)
        return begin

    def look(self, now_s: float) -> Changes:
        """Check which reads have used CPU time since the last look."""
        changes = Changes()
        for task, before_ns in list(self._stalled.items()):
            if (used_ns := _cpu_ns(task)) != before_ns:
                del self._stalled[task]
                self._going[task] = used_ns
                changes.going_on.append(task)
        for task, before_ns in list(self._going.items()):
            used_ns = self._going[task] = _cpu_ns(task)
            if used_ns != before_ns or used_ns < 0 or task in changes.going_on:
                continue
            if len(self._stalled) >= STALLED_MAX:
                if not self._later:
                    continue  # a stalled read blocks no other reads
                oldest = next(iter(self._stalled))
                del self._stalled[oldest]
                changes.surplus.append(oldest)
            del self._going[task]
            self._stalled[task] = used_ns
            changes.stalled.append(task)
        self.look_at_s = now_s + LOOK_PERIOD_S if self._going or self._stalled else math.inf
        return changes


def _cpu_ns(task: ReadTask) -> int:
    """Return the CPU time that the process of a read has used; -1 if there is none."""
    if task.link is not None:
        with (
            suppress(OSError, ValueError),
            open(f"/proc/{task.link.pid}/schedstat", "rb", buffering=0) as file,
        ):
            return int(file.read().split()[0])
    return -1
