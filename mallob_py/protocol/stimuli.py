"""All that a PE can be told, one struct for each kind: `PE.handle(stimulus, now)` takes any of them.

The runtime, the simulator and logs share this alphabet. What a PE does follows from its number, its
settings and the stimuli with their times alone, so those of a real run can be played again
(`simulation/replay.py`).

`worker` is the number that the effect `StartWorker` gave; what is said of a number whose process is gone
has no effect, for news of a process and its end may cross.
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
    """A message of PE `source`. Those of one source come in the order in which they were sent."""

    source: int
    message: AnyMessage


class Tick(Stimulus, frozen=True):
    """Time has passed: it is `PE.deadline_s`, or later."""


# --- where jobs come from ---------------------------------------------------------------------


class JobParameters(JobTerms, frozen=True, kw_only=True):
    """A job's terms, as those who decide have changed them, and what its client knows beside them.

    `near`: a PE where the root had better be, if it is free. `growth_delay_s`: instead of the config's.
    `waiting_since_s`: for who comes first where PEs are scarce; None: since the submission.
    `turn_s`: what it is to have had when it is said to rest (`JobRests`). `spent`: what it had before it was
    given up.
    """

    near: int | None = None
    growth_delay_s: float | None = None
    waiting_since_s: float | None = None
    turn_s: float = 0.0
    spent: Spent | None = None


class JobSubmitted(Stimulus, frozen=True):
    """A job whose id is new in the whole system. It ends with one `JobEnded`."""

    job: int
    parameters: JobParameters
    description: Description
    #: what its first root begins with, from a former service
    checkpoint: bytes | None = None


class JobInterrupted(Stimulus, frozen=True):
    """A job that was submitted here is not wanted any more; nothing, if it is not live."""

    job: int


class JobSetBack(Stimulus, frozen=True):
    """A job that was submitted here is to be given up as soon as it rests; `JobGivenUp` follows.

    Unless it ends before, or is not live.
    """

    job: int


class TermsChanged(Stimulus, frozen=True):
    """A job that was submitted here has these bounds from now on (0: none); ignored if it is not live."""

    job: int
    priority: float
    max_demand: int


# --- worker processes -------------------------------------------------------------------------


class WorkerStarted(Stimulus, frozen=True):
    """The application runs: process there, description decoded.

    `leaves`: its workers hand over what they have when they leave (`leaving.py`).
    """

    worker: int
    leaves: bool = False


class WorkerAnswered(Stimulus, frozen=True):
    """The application has a result. `cpu_s`: CPU time that `WorkerUsed` has not told."""

    worker: int
    body: bytes
    peak_memory_bytes: int = 0
    cpu_s: float = 0.0


class WorkerRaised(Stimulus, frozen=True):
    """The application raised: the job ends with `reason`."""

    worker: int
    reason: str


class WorkerCrashed(Stimulus, frozen=True):
    """The process died without a word. `cpu_s`: CPU time that `WorkerUsed` has not told.

    `is_spared`: memory was short, and the death is not counted as the job's; another process gets no memory
    soon.
    """

    worker: int
    reason: str
    cpu_s: float = 0.0
    is_spared: bool = False


class WorkerLost(Stimulus, frozen=True):
    """The process that `StartWorker` asked for cannot be had on this host."""

    worker: int
    reason: str


class WorkerLeft(Stimulus, frozen=True):
    """The process asked to by `LeaveWorker` has left. `cpu_s`: CPU time that `WorkerUsed` has not told."""

    worker: int
    cpu_s: float = 0.0


class WorkerUsed(Stimulus, frozen=True):
    """For the job's statistics: CPU time since the last time, largest memory so far (0: no news)."""

    worker: int
    cpu_s: float
    peak_bytes: int


class WorkerDemands(Stimulus, frozen=True):
    """The application could use so many workers; heard of the root only."""

    worker: int
    demand: int


class WorkerProgresses(Stimulus, frozen=True):
    """The application tells how far its job is; heard of the root only."""

    worker: int
    progress: Progress


class WorkerOffers(Stimulus, frozen=True):
    """The application offers an answer or a bound, at whichever worker."""

    worker: int
    interim: Interim


class WorkerSaves(Stimulus, frozen=True):
    """The application has a checkpoint; heard of the root only."""

    worker: int
    data: bytes


class WorkerWantsCheckpoint(Stimulus, frozen=True):
    """The application at the root begins, and asks for the last checkpoint."""

    worker: int


class WorkerToParent(Stimulus, frozen=True):
    """The application has something for the worker above it."""

    worker: int
    data: bytes


class WorkerToChildren(Stimulus, frozen=True):
    """The application has something for the workers right below it."""

    worker: int
    data: bytes


class WorkerToWorker(Stimulus, frozen=True):
    """The application has something for the worker that PE `pe` has, or had, in that `stay`."""

    worker: int
    pe: int
    stay: int
    data: bytes


class WorkerMissed(Stimulus, frozen=True):
    """The process did not take this message (all of a `DeliverMessage`): it left before, or is far behind."""

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
    """The host gives workers no processes (`HostHealth`): adopt none until then."""

    until_s: float


class DropPast(Stimulus, frozen=True):
    """Memory is short: let go of so many suspended workers, least recently used first."""

    count: int


class PauseWorker(Stimulus, frozen=True):
    """Memory is short: end the process of the running worker, unless it is a root."""


class UnpauseWorker(Stimulus, frozen=True):
    """There is memory: give the paused worker another process."""


class Drain(Stimulus, frozen=True):
    """The rank is to leave: nothing new starts, and workers that leave in order do so (`PE.is_drained`)."""


class SystemEnds(Stimulus, frozen=True):
    """All ranks end: the running worker hands over what it has, if it leaves in order; a root saves, too."""


#: what the pool of worker processes tells of one of them
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
