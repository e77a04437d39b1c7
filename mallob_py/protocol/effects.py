"""Effects: what a PE wants done outside, appended to `PE.effects` and executed in order.

All parts of one PE put what they want done into its `Outbox`. `worker` is the number of a worker on
its PE: it stays the same while the worker is suspended and resumed, and is never used twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.messages import AnyMessage, Description


class Outcome(Enum):
    """Why a job has ended."""

    RESULT = "result"
    TIME_LIMIT = "time-limit"
    WALLCLOCK_LIMIT = "wallclock-limit"
    CPU_LIMIT = "cpu-limit"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class Effect(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all effects."""


class Send(Effect, frozen=True):
    """Deliver `message` to rank `dest` (never the own one)."""

    dest: int
    message: AnyMessage


class FetchDescription(Effect, frozen=True):
    """Bring the description to this host; then call `description_here`.

    `sources` are the ranks to get it from where it is not here yet: the parent, which may
    not have it (any more), then the client, which has it as long as the job lives.
    """

    job: int
    description: Description
    sources: tuple[int, ...]


class JobOver(Effect, frozen=True):
    """The job is over for everybody: nothing of it is needed here any more."""

    job: int


class JobUnheard(Effect, frozen=True):
    """No message has spoken of the job for long: nothing of it is kept here, but it may come back."""

    job: int


class StartWorker(Effect, frozen=True):
    """Start a worker's process; then call `worker_started`.

    `is_given`: its process comes from another PE of the host (`GiveWorker`), running already. One is started
    anew if `StartAnew` says so, or if none comes soon.
    """

    worker: int
    job: int
    index: int
    volume: int
    description: Description
    is_given: bool = False


class StartAnew(Effect, frozen=True):
    """No process comes from another PE for this worker."""

    worker: int


class GiveWorker(Effect, frozen=True):
    """Let PE `pe`, of the same host, have the worker's process, which rests, for its worker `number`.

    If that cannot be done, end the process.
    """

    worker: int
    pe: int
    number: int


class SuspendWorker(Effect, frozen=True):
    """Stop the worker's process where it is."""

    worker: int


class ResumeWorker(Effect, frozen=True):
    """Let a suspended worker's process go on, with this place in the tree."""

    worker: int
    index: int
    volume: int


class LeaveWorker(Effect, frozen=True):
    """Tell the worker's process to hand over what it has, and to end; then call `WorkerLeft`.

    It runs on beside the PE's next worker, and gets messages, until it ends or is terminated.
    """

    worker: int


class TerminateWorker(Effect, frozen=True):
    """End the worker's process."""

    worker: int


class UpdateWorker(Effect, frozen=True):
    """Tell a running worker its volume and the indices of its children."""

    worker: int
    volume: int
    children: tuple[int, ...]


class BlameHost(Effect, frozen=True):
    """A worker got no process here: `HostHealth.blame` says how long the PEs of the rank are to `rest`."""

    fault: Fault
    reason: str


class DeliverMessage(Effect, frozen=True):
    """Hand a tree message to a worker's process. `sender` is (PE, stay): an address to answer to."""

    worker: int
    source_index: int
    sender: tuple[int, int]
    data: bytes
    returned: bool


class GiveCheckpoint(Effect, frozen=True):
    """Hand the job's last checkpoint to the root's process that asked for it; None: there is none."""

    worker: int
    data: bytes | None


class JobStats(msgspec.Struct, frozen=True):
    """Times of one job in seconds, from its submission to the PE; None: never got there.

    `root` is the PE that first ran the job's root.
    """

    balanced_s: float | None
    scheduled_s: float | None
    started_s: float | None
    response_s: float
    wallclock_s: float
    #: the volume added up over time, times the threads of a PE: what a CPU limit bounds
    pe_s: float
    max_volume: int
    #: of the worker that needed most; 0 if not known
    peak_memory_bytes: int = 0
    #: CPU time of its workers' processes, as far as it has been told
    cpu_s: float = 0.0
    root: int | None = None
    #: the part of `wallclock_s` in which the job had a PE: what a time limit bounds
    turns_s: float = 0.0


class JobSought(Effect, frozen=True):
    """A PE is sought for the root of a job taken in here: at most once for each submitted job.

    Before anybody else is told. From now on the job may run: a root with a small description starts before
    its client has accepted it.
    """

    job: int


class JobRests(Effect, frozen=True):
    """A job taken in here has had a turn, and waits for the next one: said once at most."""

    job: int


class Spent(msgspec.Struct, frozen=True):
    """A job's use of the PEs before it was given up for a while. Times on the client's clock."""

    started_s: float | None
    pe_s: float
    cpu_s: float
    max_volume: int
    peak_memory_bytes: int
    #: as in `JobStats`
    turns_s: float = 0.0


class JobGivenUp(Effect, frozen=True):
    """A job taken in here has been given up: nothing is left of it, and it may be submitted again."""

    job: int
    spent: Spent


class JobSaved(Effect, frozen=True):
    """A job taken in here has a new checkpoint, with which it may be submitted again."""

    job: int
    checkpoint: bytes


class JobEnded(Effect, frozen=True):
    """A job taken in here has ended: exactly one for each submitted job.

    `interim`: the best that its workers had offered, whatever the outcome.
    """

    job: int
    outcome: Outcome
    body: bytes | None
    reason: str | None
    stats: JobStats
    interim: Interim | None = None


class Log(Effect, frozen=True):
    """One line of the event log."""

    event: str
    fields: dict[str, Any]


AnyEffect: TypeAlias = (
    Send
    | FetchDescription
    | JobOver
    | JobUnheard
    | StartWorker
    | StartAnew
    | GiveWorker
    | SuspendWorker
    | ResumeWorker
    | LeaveWorker
    | TerminateWorker
    | UpdateWorker
    | DeliverMessage
    | GiveCheckpoint
    | BlameHost
    | JobSought
    | JobRests
    | JobGivenUp
    | JobSaved
    | JobEnded
    | Log
)


class Outbox:
    """Effects of one PE. Messages to its own rank never leave it: they wait in `to_self`."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        #: what is to be done outside, in this order; always this queue
        self.effects: deque[AnyEffect] = deque()
        #: have one more thing done
        self.act: Callable[[AnyEffect], None] = self.effects.append
        self.to_self: deque[AnyMessage] = deque()

    def send(self, dest: int, message: AnyMessage) -> None:
        if dest == self.rank:
            self.to_self.append(message)
        else:
            self.effects.append(Send(dest, message))
