"""One worker of one job on one PE: its states and what belongs to it (P 3.2, 3.3).

States of a worker:

    (none), SUSPENDED --adopt--> COMMITTED --description known--> ACTIVE
    COMMITTED, ACTIVE --volume drops, rejected--> SUSPENDED (with a process) or forgotten
    any --job ends, cache full, memory is short--> terminated
    ACTIVE (not the root) --memory is short--> without a process --there is memory--> COMMITTED
    COMMITTED, ACTIVE --no process can be had--> LOST --parent has accepted--> forgotten

A worker is in the tree from its adoption on: it asks for children, accepts them and even
starts before its parent has answered, so a tree grows by all its layers at once. If its
parent rejects it, it sends those children away too.
"""

from __future__ import annotations

from enum import Enum

from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.job_tree import Seats
from mallob_py.protocol.messages import Blob, TreeMessage


class WorkerState(Enum):
    COMMITTED = "committed"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    LOST = "lost"


class Worker:
    """One worker of one job on this PE. `number` names its process, `context` its present stay."""

    def __init__(self, number: int, job: int) -> None:
        self.number = number
        self.job = job
        self.index = -1
        self.context = -1
        self.path: tuple[int, ...] = ()
        self.state = WorkerState.COMMITTED
        self.seats: Seats
        self.blob: Blob | None = None
        self.accepted_epoch: int | None = None
        self.parent_context = -1
        #: StartWorker has been emitted
        self.has_process = False
        #: the process has reported that it runs
        self.is_running = False
        self.asked_s = 0.0
        self.volume = 1
        self.created = True
        self.restarts = 0
        #: its process has run, now or before
        self.has_run = False
        #: of its place, before it
        self.losses = 0
        #: why and by whose fault there is no process
        self.loss: tuple[Fault, str] | None = None
        #: its process was ended for lack of memory, and may be started again
        self.is_paused = False
        #: messages that came before the process runs, with the ranks they came from
        self.inbox: list[tuple[int, TreeMessage]] = []

    @property
    def client(self) -> int:
        return self.path[0]

    @property
    def is_dead(self) -> bool:
        """It is in the tree without a process: that died too often, memory is short, or it is lost."""
        return self.state in (WorkerState.ACTIVE, WorkerState.LOST) and not self.has_process

    @property
    def parent(self) -> int:
        return self.path[-1]
