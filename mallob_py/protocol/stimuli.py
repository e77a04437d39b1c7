"""Stimuli of a PE, one struct for each kind: `PE.handle(stimulus, now)` takes any of them.

The runtime, the simulator and logs share this alphabet. A PE's effects follow from its number, its settings
and the timed stimuli alone, so a real run can be replayed (`simulation/replay.py`).

`worker` is the number in the effect `StartWorker`; stimuli about a number whose process is gone have no
effect, since news of a process and its end may cross.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mallob_py.protocol.effects import Spent
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.protocol.messages import AnyMessage, Description
from mallob_py.protocol.progress import Progress


class Stimulus(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all stimuli."""


# --- other PEs and time -----------------------------------------------------------------------


class Received(Stimulus, frozen=True):
    """A message of PE `source`. Messages of one source come in the order sent."""

    source: int
    message: AnyMessage


class Tick(Stimulus, frozen=True):
    """The time `PE.deadline_s` has come."""


# --- jobs -------------------------------------------------------------------------------------


class JobParameters(JobTerms, frozen=True, kw_only=True):
    """A job's terms, as changed by the service, and what else its client knows of the job.

    `near`: the PE preferred for the root, if free. `growth_delay_s`: replaces the config's.
    `waiting_since_s`: begin of the wait that decides how early the job gets a PE; None: the submission.
    `turn_s`: PE time after which the job may be suspended in favour of a waiting job (`JobRests`). `spent`:
    what the job had used when it was given up. `user`: number of the job's user.
    """

    near: int | None = None
    growth_delay_s: float | None = None
    waiting_since_s: float | None = None
    turn_s: float = 0.0
    spent: Spent | None = None
    user: int = 0


class JobSubmitted(Stimulus, frozen=True):
    """A new job, live nowhere in the system, is submitted. If it is not given up, one `JobEnded` follows."""

    job: int
    parameters: JobParameters
    description: Description
    #: checkpoint of a former service, for the job's first root
    checkpoint: bytes | None = None


class JobInterrupted(Stimulus, frozen=True):
    """A job submitted here is not wanted any more; ignored if the job is not live."""

    job: int


class JobSetBack(Stimulus, frozen=True):
    """A job submitted here must be given up once it rests; `JobGivenUp` follows if the job does not end."""

    job: int


class TermsChanged(Stimulus, frozen=True):
    """A job submitted here gets these terms (`max_demand` 0: no bound); ignored if the job is not live."""

    job: int
    priority: float
    max_demand: int


# --- worker processes -------------------------------------------------------------------------


class WorkerStarted(Stimulus, frozen=True):
    """The application runs: its process exists, and the description is decoded.

    `leaves`: its workers leave in order (`leaving.py`).
    """

    worker: int
    leaves: bool = False


class WorkerAnswered(Stimulus, frozen=True):
    """The application has a result. `cpu_s`: CPU time not in any `WorkerUsed`."""

    worker: int
    body: bytes
    peak_memory_bytes: int = 0
    cpu_s: float = 0.0


class WorkerRaised(Stimulus, frozen=True):
    """The application raised an error: the job ends with `reason`."""

    worker: int
    reason: str


class WorkerCrashed(Stimulus, frozen=True):
    """The process died. `cpu_s`: CPU time not in any `WorkerUsed`.

    `is_spared`: memory was short, so the death does not count against the job, and a new process would not
    get memory soon.
    """

    worker: int
    reason: str
    cpu_s: float = 0.0
    is_spared: bool = False


class WorkerLost(Stimulus, frozen=True):
    """The process ordered by `StartWorker` cannot be started on this host."""

    worker: int
    reason: str


class WorkerLeft(Stimulus, frozen=True):
    """A process has ended, as `LeaveWorker` ordered. `cpu_s`: CPU time not in any `WorkerUsed`."""

    worker: int
    cpu_s: float = 0.0


class WorkerUsed(Stimulus, frozen=True):
    """News for the job's statistics: CPU time since the last report, largest memory so far (0: no news)."""

    worker: int
    cpu_s: float
    peak_bytes: int


class WorkerDemands(Stimulus, frozen=True):
    """The application could use this many workers; only the root is heard."""

    worker: int
    demand: int


class WorkerProgresses(Stimulus, frozen=True):
    """The application reports its job's progress; only the root is heard."""

    worker: int
    progress: Progress


class WorkerOffers(Stimulus, frozen=True):
    """The application, at any worker, offers an answer or a bound."""

    worker: int
    interim: Interim


class WorkerSaves(Stimulus, frozen=True):
    """The application has a checkpoint; only the root is heard."""

    worker: int
    data: bytes


class WorkerWantsCheckpoint(Stimulus, frozen=True):
    """The application at the root begins, and asks for the last checkpoint."""

    worker: int


class WorkerToParent(Stimulus, frozen=True):
    """The application has a message for the worker's parent."""

    worker: int
    data: bytes


class WorkerToChildren(Stimulus, frozen=True):
    """The application has a message for the worker's children."""

    worker: int
    data: bytes


class WorkerToWorker(Stimulus, frozen=True):
    """The application has a message for the worker that PE `pe` has, or had, in that `stay`."""

    worker: int
    pe: int
    stay: int
    data: bytes


class WorkerMissed(Stimulus, frozen=True):
    """The process did not take the message of a `DeliverMessage`, since it had ended or reads too slowly."""

    worker: int
    source_index: int
    sender: tuple[int, int]
    data: bytes
    returned: bool


# --- descriptions -----------------------------------------------------------------------------


class DescriptionHere(Stimulus, frozen=True):
    """The description asked for by `FetchDescription` is on this host."""

    job: int


class DescriptionMissing(Stimulus, frozen=True):
    """The description asked for by `FetchDescription` cannot be brought to this host, or stored here."""

    job: int
    reason: str
    fault: Fault


# --- the host ---------------------------------------------------------------------------------


class HostRests(Stimulus, frozen=True):
    """The host gives workers no processes (`HostHealth`): adopt no workers until `until_s`."""

    until_s: float


class DropPast(Stimulus, frozen=True):
    """Memory is short: drop this many suspended workers, least recently used first."""

    count: int


class PauseWorker(Stimulus, frozen=True):
    """Memory is short: end the process of the running worker, unless it is a root."""


class UnpauseWorker(Stimulus, frozen=True):
    """There is memory: give the paused worker a new process."""


class Drain(Stimulus, frozen=True):
    """The rank must leave: nothing new starts, and workers leave in order if they can (`PE.is_drained`)."""


class SystemEnds(Stimulus, frozen=True):
    """All ranks end: the running worker leaves in order if it can; a root saves its job, too."""


#: stimuli from the pool of worker processes
OfWorker: TypeAlias = (
    WorkerStarted
    | WorkerAnswered
    | WorkerRaised
    | WorkerCrashed
    | WorkerLost
    | WorkerLeft
    | WorkerUsed
    | WorkerDemands
    | WorkerProgresses
    | WorkerOffers
    | WorkerSaves
    | WorkerWantsCheckpoint
    | WorkerToParent
    | WorkerToChildren
    | WorkerToWorker
    | WorkerMissed
)

AnyStimulus: TypeAlias = (
    Received
    | Tick
    | JobSubmitted
    | JobInterrupted
    | JobSetBack
    | TermsChanged
    | OfWorker
    | DescriptionHere
    | DescriptionMissing
    | HostRests
    | DropPast
    | PauseWorker
    | UnpauseWorker
    | Drain
    | SystemEnds
)
