"""Effects: the actions that a PE orders, appended to `PE.effects` and executed in order.

All parts of a PE put their effects into its `Outbox`. `worker` is the number of a worker on its PE: the
number stays the same while the worker is suspended and resumed, and is never reused.
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
    """The reason of a job's end."""

    RESULT = "result"
    TIME_LIMIT = "time-limit"
    WALLCLOCK_LIMIT = "wallclock-limit"
    CPU_LIMIT = "cpu-limit"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class Effect(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all effects."""


class Send(Effect, frozen=True):
    """Deliver `message` to PE `dest`, never to the sending PE itself."""

    dest: int
    message: AnyMessage


class FetchDescription(Effect, frozen=True):
    """Bring the description to this host; then report `DescriptionHere` or `DescriptionMissing`.

    `sources`: PEs to fetch from: the parent, which may lack the description, then the client, which has it as
    long as the job lives.
    """

    job: int
    description: Description
    sources: tuple[int, ...]


class JobOver(Effect, frozen=True):
    """Drop all data of the job, which is over everywhere."""

    job: int


class JobUnheard(Effect, frozen=True):
    """Drop all data of the job: no message has named it for long. The job may come back."""

    job: int


class StartWorker(Effect, frozen=True):
    """Start a worker's process; then report `WorkerStarted`.

    `is_given`: the process comes from another PE of the host (`GiveWorker`). If it does not come soon, or at
    `StartAnew`, a new process is started.
    """

    worker: int
    job: int
    index: int
    volume: int
    description: Description
    is_given: bool = False


class StartAnew(Effect, frozen=True):
    """Start a new process for the worker, since no other PE gives one."""

    worker: int


class GiveWorker(Effect, frozen=True):
    """Give the worker's resting process to PE `pe` of the same host, as the process of its worker `number`.

    If that fails, end the process.
    """

    worker: int
    pe: int
    number: int


class SuspendWorker(Effect, frozen=True):
    """Stop the worker's process without ending it; `ResumeWorker` continues it."""

    worker: int


class ResumeWorker(Effect, frozen=True):
    """Continue a suspended worker's process, with this index and volume."""

    worker: int
    index: int
    volume: int


class LeaveWorker(Effect, frozen=True):
    """Have the worker's process hand over its work and end; then report `WorkerLeft`.

    The process runs on beside the PE's next worker, and gets messages, until it ends or is terminated.
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
    """Record that a worker got no process here; `HostHealth.blame` says how long the rank's PEs must rest."""

    fault: Fault
    reason: str


class DeliverMessage(Effect, frozen=True):
    """Hand a tree message to a worker's process. `sender` is (PE, stay), an address for answers."""

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
    """A job's times in seconds since its submission to the PE (None: never reached), and its use of PEs.

    `root` is the PE that first ran the job's root.
    """

    balanced_s: float | None
    scheduled_s: float | None
    started_s: float | None
    response_s: float
    wallclock_s: float
    #: volume integrated over time, times the threads of a PE; a CPU limit bounds this time
    pe_s: float
    max_volume: int
    #: largest memory of one worker; 0: unknown
    peak_memory_bytes: int = 0
    #: reported CPU time of the job's workers
    cpu_s: float = 0.0
    root: int | None = None
    #: part of `wallclock_s` in which the job had a PE; a time limit bounds this time
    turns_s: float = 0.0


class JobSought(Effect, frozen=True):
    """Report that a PE is sought for the root of a job taken in here; at most once per submission.

    From now on the job may run: a root with a small description starts before its client has accepted it.
    """

    job: int


class JobRests(Effect, frozen=True):
    """Report that a job taken in here has had its first turn, and waits for the next one."""

    job: int


class Spent(msgspec.Struct, frozen=True):
    """Resources used by a job that was given up and begins anew later. Times are on the client's clock."""

    started_s: float | None
    pe_s: float
    cpu_s: float
    max_volume: int
    peak_memory_bytes: int
    #: time in which the job had a PE, which a time limit bounds
    turns_s: float = 0.0


class JobGivenUp(Effect, frozen=True):
    """Report that a job taken in here was given up: all PEs have dropped it; it may be submitted again."""

    job: int
    spent: Spent


class JobSaved(Effect, frozen=True):
    """Report a new checkpoint of a job taken in here, for the job's next submission."""

    job: int
    checkpoint: bytes


class JobEnded(Effect, frozen=True):
    """Report that a job taken in here has ended; exactly once per job.

    `interim`: the best interim result that the job's workers have offered, whether or not the job has a
    result.
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
    """The effects of one PE. Messages from the PE to itself are no effects: they wait in `to_self`."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        #: the effects in order; this queue is never replaced
        self.effects: deque[AnyEffect] = deque()
        #: function that adds an effect
        self.act: Callable[[AnyEffect], None] = self.effects.append
        self.to_self: deque[AnyMessage] = deque()

    def send(self, dest: int, message: AnyMessage) -> None:
        if dest == self.rank:
            self.to_self.append(message)
        else:
            self.effects.append(Send(dest, message))
