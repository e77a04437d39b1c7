"""What a worker process is busy with, from the rank's side.

A task waits (`link` is None) until a process is free for it. It knows what to tell the
process first, and which event of the rank each of the process's messages is.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from mallob_py.kit.app import TreeMessage
from mallob_py.runtime import worker_events as events
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.worker_link import WorkerLink

#: how long a read waits for a process while none can be had
PATIENCE_S = 5.0
#: a process that dies while it reads an input may have been killed: others try again
READERS_MAX = 3
#: after one of these a task is over
FINAL_EVENTS = (
    events.WorkerResult,
    events.WorkerFailed,
    events.WorkerCrashed,
    events.WorkerLost,
    events.ReadDone,
    events.ReadFailed,
)


@dataclass(slots=True, eq=False)
class JobTask:
    """Being a job's worker."""

    key: events.Key
    run: wire.Run
    suspended: bool = False
    link: WorkerLink | None = None
    #: its process was kept from a former revision and has not yet said that it is at this task
    is_pending: bool = False
    take_up_by_s: float = math.inf
    #: CPU time of its process that is not its own; None before it runs
    cpu_before_s: float | None = None
    #: messages that came before there was a process
    early: deque[TreeMessage] = field(default_factory=deque)
    early_bytes: int = 0

    def first_message(self) -> wire.ToWorker:
        return self.run

    def keep(self, message: TreeMessage, limit_bytes: int) -> list[TreeMessage]:
        """Keep a message until there is a process; returns those that give way, oldest first."""
        self.early.append(message)
        self.early_bytes += len(message.data)
        dropped = []
        while self.early_bytes > limit_bytes:
            dropped.append(self.early.popleft())
            self.early_bytes -= len(dropped[-1].data)
        return dropped

    def take_early(self) -> list[TreeMessage]:
        messages = list(self.early)
        self.early.clear()
        self.early_bytes = 0
        return messages

    def event_of(self, message: wire.FromWorker) -> events.WorkerEvent | None:
        match message:
            case wire.Started(cpu_before_s=before_s):
                self.cpu_before_s = before_s
                return events.WorkerStarted(self.key)
            case wire.ResultFound(body, peak_memory_bytes, cpu_s):
                return events.WorkerResult(self.key, body, peak_memory_bytes, cpu_s)
            case wire.Failed(text):
                return events.WorkerFailed(self.key, text)
            case wire.Demand(demand):
                return events.WorkerDemand(self.key, demand)
            case wire.ToParent(data):
                return events.WorkerToParent(self.key, data)
            case wire.ToChildren(data):
                return events.WorkerToChildren(self.key, data)
        return None

    def event_of_crash(self, reason: str, cpu_s: float) -> events.WorkerEvent:
        used_s = 0.0 if self.cpu_before_s is None else max(0.0, cpu_s - self.cpu_before_s)
        return events.WorkerCrashed(self.key, reason, used_s)

    def events_of_giving_up(self, text: str) -> list[events.WorkerEvent]:
        return [events.WorkerLost(self.key, text)]


@dataclass(slots=True, eq=False, kw_only=True)
class _Patient:
    """A task that has to be done on this host: if no process can be had, it waits for one for a while."""

    give_up_at_s: float = math.inf

    def waits_on(self, now_s: float) -> bool:
        """No process could be had once more: whether to wait for one still."""
        self.give_up_at_s = min(self.give_up_at_s, now_s + PATIENCE_S)
        return now_s < self.give_up_at_s


@dataclass(slots=True, eq=False)
class ReadTask(_Patient):
    """Reading a job's input. `crashes`: how many processes have died of it, or for other reasons."""

    request_id: int
    read: wire.Read
    link: WorkerLink | None = None
    crashes: int = 0

    def first_message(self) -> wire.ToWorker:
        return self.read

    def event_of(self, message: wire.FromWorker) -> events.WorkerEvent | None:
        match message:
            case wire.InputRead(description):
                return events.ReadDone(self.request_id, description)
            case wire.InputRefused(text, field_name):
                return events.ReadFailed(self.request_id, text, field_name)
        return None

    def event_of_crash(self, reason: str, cpu_s: float) -> events.WorkerEvent:
        text = f"each process that read the input ended early ({self.crashes} did): {reason}"
        return events.ReadFailed(self.request_id, text, "application")

    def events_of_giving_up(self, text: str) -> list[events.WorkerEvent]:
        return [events.ReadFailed(self.request_id, text, "application")]


@dataclass(slots=True, eq=False)
class InspectTask(_Patient):
    """Finding out what applications are like; `names` are those not known yet, in order."""

    names: list[str]
    link: WorkerLink | None = None

    def first_message(self) -> wire.ToWorker:
        return wire.Inspect(tuple(self.names))

    def event_of(self, message: wire.FromWorker) -> events.WorkerEvent | None:
        if not isinstance(message, wire.ApplicationTraits):
            return None
        self.names.remove(message.name)
        return events.ApplicationKnown(
            message.name, message.takes_input, message.revises, message.result_files, message.problem
        )

    def event_of_crash(self, reason: str, cpu_s: float) -> events.WorkerEvent | None:
        """The first application not known yet has killed the process."""
        if not self.names:
            return None  # it was done
        problem = f"importing it ended the process: {reason}"
        return events.ApplicationKnown(self.names.pop(0), True, False, (), problem)

    def events_of_giving_up(self, text: str) -> list[events.WorkerEvent]:
        return [events.ApplicationKnown(name, True, False, (), text) for name in self.names]


Task = JobTask | ReadTask | InspectTask
