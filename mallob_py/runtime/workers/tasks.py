"""The tasks of worker processes as the rank sees them, and the events that the rank hears.

A task waits (`link` is None) until a process is free. The task makes the first message to its process, and
converts the process's messages into the rank's events.

The number of processes that read inputs is bounded; further reads wait (`Reads`). A read whose process has
used no CPU time between two checks is stalled: it waits for the writer of a named pipe, or for a dead file
server. A stalled read goes on, but does not count against the bound, so that inputs that never arrive block
no other reads. At most `STALLED_MAX` reads may be stalled; if more stall while other reads wait, the read
that has been stalled longest must end.

For an application that the fork server has not imported, only one input is read at a time. Once the reading
process has imported the application without harm, the server imports it, so that not every process must. With
more jobs than PEs, a job's turn may be shorter than the import: so the application's workers begin after the
server's import.

A rank hears of its worker processes by `WorkerPool.poll`. Events of a job's worker are stimuli
(`protocol/stimuli.py`) that name the worker by the number in its key (job, number), which is unique on the
rank. Events of a read name the number of its request.
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
    """An input was read. The file of a mapped description belongs to the caller from now on."""

    request_id: int
    description: LocalDescription


class ReadFailed(_Event, frozen=True):
    """An input cannot be used, or the reading process died. No file is left."""

    request_id: int
    message: str
    field: str


class ReadStalled(_Event, frozen=True):
    """A read is stalled: its input does not arrive at present."""

    request_id: int


class ReadGoesOn(_Event, frozen=True):
    """The input of a stalled read arrives again."""

    request_id: int


class ApplicationKnown(_Event, frozen=True):
    """The traits that an application declares (see `kit.Declaration`) are known."""

    traits: ApplicationTraits


WorkerEvent = OfWorker | ReadDone | ReadFailed | ReadStalled | ReadGoesOn | ApplicationKnown


def missed(key: Key, message: TreeMessage | wire.Deliver) -> WorkerEvent:
    """Return the event that worker `key` has not taken a message."""
    return stimuli.WorkerMissed(key[1], message.source, message.sender, message.data, message.returned)


#: how long a read or an inspection waits for a process if no process can be started
PATIENCE_S = 5.0
#: greatest number of processes that read an input anew after a reading process died, perhaps killed from
#: outside
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
    """The task to run a job's worker."""

    key: Key
    run: wire.Run
    suspended: bool = False
    link: WorkerLink | None = None
    #: whether the task's process was kept for a chain and has not begun this task yet; or (without a link)
    #: whether another rank must give the process
    is_pending: bool = False
    take_up_by_s: float = math.inf
    #: CPU time of the task's process before this task; None: the application does not run yet
    cpu_before_s: float | None = None
    #: the task's CPU time that another rank, which had the process before, has reported
    cpu_told_s: float = 0.0
    #: whether the worker wants `Leave` before it must end
    leaves: bool = False
    #: messages for the worker that arrived before the task had a process
    early: deque[TreeMessage] = field(default_factory=deque)
    early_bytes: int = 0
    #: messages for the worker since the order to leave; None: it has not been ordered to leave
    late: list[wire.Deliver] | None = None
    _application: str | None = None

    @property
    def application(self) -> str:
        """Return the application's name; "" if the description is unusable, which the process will report."""
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
        """Tell whether the task is suspended and its process has not begun to run the application."""
        has_process = self.link is not None and not self.link.closed
        return self.suspended and has_process and self.cpu_before_s is None

    def given_link(self) -> WorkerLink | None:
        """Return the task's process if another rank can get it: if it has begun the task and is stopped."""
        rests = self.suspended and not self.is_pending and self.cpu_before_s is not None
        return self.link if rests and self.link is not None and not self.link.closed else None

    def first_message(self) -> wire.ToWorker:
        return self.run

    def keep(self, message: TreeMessage, limit_bytes: int) -> list[TreeMessage]:
        """Keep a message until there is a process; return the messages dropped to make room, oldest first."""
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
    """The one suspended task of a rank that may start its application before it is stopped."""

    def __init__(self) -> None:
        self._task: JobTask | None = None
        #: time when the task must be stopped
        self.until_s = math.inf

    @property
    def starting(self) -> JobTask | None:
        """Return the task if its application does not run yet."""
        return self._task if self._task is not None and self._task.is_starting else None

    def admits(self, task: JobTask, until_s: float) -> bool:
        """Let a task start until `until_s` if no other task starts; return whether the task may start."""
        if self.starting is not None:
            return False
        self._task, self.until_s = task, until_s
        return True

    def stop(self) -> None:
        """Stop a task whose start takes too long; the start continues when the task is resumed."""
        if (task := self.starting) is not None and task.link is not None:
            task.link.signal(signal.SIGSTOP)
        self._task, self.until_s = None, math.inf


@dataclass(slots=True, eq=False, kw_only=True)
class _Patient:
    """A task that must be done on this rank, so that it waits for a while if no process can be started."""

    give_up_at_s: float = math.inf

    def waits_on(self, now_s: float) -> bool:
        """Tell whether the task waits on after another failure to start a process."""
        self.give_up_at_s = min(self.give_up_at_s, now_s + PATIENCE_S)
        return now_s < self.give_up_at_s


@dataclass(slots=True, eq=False)
class ReadTask(_Patient):
    """The task to read a job's input. `other_readers`: the limit of new readers after a reader's death.

    `kept`: a process kept for the job's chain that reads the input, and is kept again afterwards. `goes_on`:
    whether that process then begins the job.
    """

    request_id: int
    read: wire.Read
    link: WorkerLink | None = None
    kept: KeptWorker | None = None
    goes_on: bool = False
    other_readers: RestartLimit = field(default_factory=lambda: RestartLimit(_OTHER_READERS_MAX))
    #: time when a process first began to read; inf: no process has begun
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
        text = (
            "each process that read the input ended early"
            f" ({self.other_readers.count + 1} processes): {reason}"
        )
        return ReadFailed(self.request_id, text, "application")

    def events_of_giving_up(self, text: str) -> list[WorkerEvent]:
        return [ReadFailed(self.request_id, text, "application")]


@dataclass(slots=True, eq=False)
class InspectTask(_Patient):
    """The task to inspect applications. `names`: the applications not inspected yet, in order."""

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
        """Report that the first application not inspected yet has ended the process."""
        if not self.names:
            return None  # all applications were inspected
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
    """Reads that stall now, reads that go on again, and stalled reads that must end."""

    stalled: list[ReadTask] = field(default_factory=list)
    going_on: list[ReadTask] = field(default_factory=list)
    surplus: list[ReadTask] = field(default_factory=list)


class Reads:
    """The reads of one rank: which may begin, which are stalled, and which wait."""

    def __init__(self, at_once_max: int) -> None:
        self._at_once_max = at_once_max
        #: read under way -> its process's CPU time at the last check [ns]
        self._going: dict[ReadTask, int] = {}
        #: stalled read -> its process's CPU time at the last check [ns], the longest stalled read first
        self._stalled: dict[ReadTask, int] = {}
        self._later: dict[ReadTask, None] = {}
        #: applications that the fork server imports now; applications whose import is not waited for
        self._coming: set[str] = set()
        self._known: set[str] = set()
        #: time when `look` must be called
        self.look_at_s = math.inf

    def admits(self, task: ReadTask, now_s: float) -> bool:
        """Tell whether a read may begin, or begin again; if not, have it wait here."""
        if task in self._going or task in self._stalled:
            return True
        if len(self._going) >= self._at_once_max or self._is_cold(task.read.application):
            self._later[task] = None
            return False
        self._going[task] = -1
        self.look_at_s = min(self.look_at_s, now_s + LOOK_PERIOD_S)
        return True

    def _is_cold(self, application: str) -> bool:
        """Tell whether reads must wait because the application is being imported."""
        if application in self._known:
            return False
        is_going = any(task.read.application == application for task in self._going)
        return is_going or application in self._coming

    def ready(self, waiting: Iterable[Task], starting: JobTask | None) -> deque[Task]:
        """Return the tasks that may get a process now; called if there are more jobs than PEs.

        Workers must wait while their application is being imported.
        """
        return deque(
            task
            for task in waiting
            if not (isinstance(task, JobTask) and self._is_being_imported(task, starting))
        )

    def _is_being_imported(self, task: JobTask, starting: JobTask | None) -> bool:
        """Tell whether a task's application is being imported, by the server or by the one starting task."""
        if task.application in self._coming:
            return True
        if starting is None or starting.application != task.application:
            return False
        return task.application not in self._known | {""}

    def note_import(self, message: wire.Imports | wire.Started, ask_server: Callable[[str], bool]) -> None:
        """Have the server import an application that a process has imported; reads wait for this import.

        `ask_server(application)` asks the server for the import; returns False if that was asked for before.
        """
        match message:
            case wire.Imports(application, is_own=False):
                self.know(application)
            case wire.Imports(application) | wire.Started(application, newly_imported=True):
                if ask_server(application):
                    self._coming.add(application)

    def know(self, application: str) -> None:
        """Record that the fork server has imported an application."""
        self._coming.discard(application)
        self._known.add(application)

    def await_no_import(self) -> None:
        """Stop waiting for imports, because the fork server has ended, perhaps because of an import."""
        self._known |= self._coming
        self._coming.clear()

    def end(self, task: ReadTask) -> None:
        """Remove a read, finished or not."""
        for tasks in (self._going, self._stalled, self._later):
            tasks.pop(task, None)

    def following(self, now_s: float) -> list[ReadTask]:
        """Return the waiting reads that may begin now."""
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
        """Find out which reads have used CPU time since the last call, and which are stalled."""
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
    """Return the CPU time of a read's process [ns]; -1: it has no process."""
    if task.link is not None:
        with (
            suppress(OSError, ValueError),
            open(f"/proc/{task.link.pid}/schedstat", "rb", buffering=0) as file,
        ):
            return int(file.read().split()[0])
    return -1
