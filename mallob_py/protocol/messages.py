"""Messages between PEs, one typed struct each.

Messages are encoded as msgpack arrays that start with a small integer tag; one decoder validates and
dispatches all of them. Fields named `job` are internal job ids, `index` is a worker's place in its job tree,
`stay` is the number of a worker's stay on its PE, `epoch` is the number of the sender's balancing result.
Tags from 60 on belong to the runtime.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from mallob_py.protocol.interim import Interim
from mallob_py.protocol.progress import Progress
from mallob_py.protocol.volume_search import AnyAnswer, AnyQuestion, EpochVolumes
from mallob_py.trees import index_in_subtree

#: a PE's number, a place in a job tree, or a number of workers; checked when a message is decoded
Place = Annotated[int, msgspec.Meta(ge=0)]
Index = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages. (Subclasses repeat `frozen`: type checkers do not inherit it.)"""


class Description(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job's description: its bytes if small, else only its size: large descriptions are fetched as files.

    For a revision of an incremental job, `chain` is the id of the job's first revision, and `revision` the
    number of this one. PEs only pass both numbers on to their processes.
    """

    size: Count
    inline: bytes | None = None
    chain: int = 0
    revision: int = 0


class JobEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The balancing's knowledge of one job. The job's client is the only author; demand 0: the job has ended.

    `standing` orders waiting jobs when there are more jobs than PEs, larger first. `root`: the PE that has,
    or had last, the job's root; -1: none yet. `leaves`: the root leaves in order, and another PE can go on
    from the job's last checkpoint. `user`: number of the job's user. `had_slice`: the job is not new: it has
    had a PE for a slice, or begins again.
    """

    job: int
    version: int
    demand: Count
    priority: float
    standing: float
    root: Annotated[int, msgspec.Meta(ge=-1)] = -1
    leaves: bool = False
    user: int = 0
    had_slice: bool = False


# --- balancing (balancing.py) ---------------------------------------------------------------


class Events(Message, frozen=True, tag=1):
    """News of jobs, on their way up the tree of ranks."""

    events: tuple[JobEvent, ...]


class Epoch(Message, frozen=True, tag=2):
    """One balancing result on its way down: the news that every PE applies as number `epoch`.

    `elapsed_s`: duration of the epoch before. `is_one_host`: whether that epoch had more jobs than PEs, and
    all PEs were on one host, as far as the tree's root knew.
    """

    epoch: int
    events: tuple[JobEvent, ...]
    elapsed_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    is_one_host: bool = False


# --- matching (matching.py) -----------------------------------------------------------------


class Request(Message, frozen=True, tag=3):
    """Request for worker number `position` (in level order) of the subtree below index `subtree`.

    One bulk request asks for `count` such workers; number `position` of them meets its idle token under the
    matching number `base + position`. `path` are the ranks of the worker's ancestors, the job's client first,
    the parent last; `asked_s` is when the worker was first wanted. With `description` the worker can start at
    once (None: not known yet, or too large for a request). `rests_at`: in a request for a root, the PE where
    the root rests as far as its client knows; -1: at none.
    """

    job: int
    subtree: Index
    position: Count
    count: Annotated[int, msgspec.Meta(ge=1)]
    base: int
    epoch: int
    path: Annotated[tuple[Place, ...], msgspec.Meta(min_length=1)]
    hops: Count
    asked_s: float
    description: Description | None
    rests_at: int = -1

    @property
    def index(self) -> int:
        """The wanted worker's index in its job tree."""
        return index_in_subtree(self.subtree, self.position)

    @property
    def parent(self) -> int:
        """The parent's PE, which hears of the outcome."""
        return self.path[-1]


class Supply(Message, frozen=True, tag=4):
    """Changes in the counts of unmatched requests and of idle tokens in the sender's subtree."""

    requests: int
    tokens: int


class Grant(Message, frozen=True, tag=5):
    """Matching numbers for `requests` requests and `tokens` tokens of the receiver's subtree."""

    first_request: Count
    requests: Count
    first_token: Count
    tokens: Count


class MeetRequest(Message, frozen=True, tag=6):
    """A request with its matching number, sent to the rank where the request meets a token."""

    number: Count
    request: Request


class MeetToken(Message, frozen=True, tag=7):
    """The sender's idle token with its matching number, sent to the rank where the token meets a request."""

    number: Count


class VoidRequest(Message, frozen=True, tag=8):
    """No request comes under this number: it was withdrawn while the number was on its way."""

    number: Count


class VoidToken(Message, frozen=True, tag=9):
    """No token comes under this number: its PE found work while the number was on its way."""

    number: Count


class Adopt(Message, frozen=True, tag=10):
    """To an idle PE: run this worker."""

    request: Request


class Prefer(Message, frozen=True, tag=27):
    """To a PE that may have an advantage for this root: run it if you are free, else pass it on.

    `is_granted`: if you run it, you are in the tree at once, without `Accepted`.
    """

    request: Request
    is_granted: bool = False


class TokenReturned(Message, frozen=True, tag=11):
    """To an idle PE: your token found no request; take part in the matching again."""


# --- job trees (job_tree.py) ----------------------------------------------------------------


class Offer(Message, frozen=True, tag=12):
    """To the parent (for index 0: to the client): I run worker `index` from now on.

    `granted_epoch`: the client's epoch when it granted the place in `Prefer`; -1: no such grant.
    """

    job: int
    index: Index
    stay: int
    epoch: int
    granted_epoch: int = -1

    def rejection(self) -> Rejected:
        """Return the negative answer to this offer."""
        return Rejected(self.job, self.index, self.stay)


class Accepted(Message, frozen=True, tag=13):
    """To the child: you are in the tree. `past` are past workers of its subtree.

    `losses`: workers lost in this place so far, under the present parent.
    """

    job: int
    index: Index
    stay: int
    epoch: int
    parent_stay: int
    past: tuple[PastWorker, ...]
    description: Description | None
    losses: Count = 0


class Rejected(Message, frozen=True, tag=14):
    """To the child: that place is not free (any more)."""

    job: int
    index: Index
    stay: int


class Described(Message, frozen=True, tag=15):
    """To the child: here is the job's description, which `Accepted` did not have yet."""

    job: int
    stay: int
    description: Description


class ChildLeft(Message, frozen=True, tag=16):
    """To the parent: the worker that you accepted has left its seat. `lost`: the reason, if it was lost."""

    job: int
    index: Index
    stay: int
    lost: str = ""


class Blamed(Message, frozen=True, tag=28):
    """To a PE that could not start this job's root: another PE runs the root, so the host was at fault."""

    job: int


class RequestFailed(Message, frozen=True, tag=17):
    """To the parent: your request for `index` is void as of `epoch`; ask again if need be."""

    job: int
    index: Index
    epoch: int


class Query(Message, frozen=True, tag=18):
    """To a PE that once ran worker `index`: resume the worker if you can (answer: Offer or Denied)."""

    request: Request


class Denied(Message, frozen=True, tag=19):
    """To the parent: I cannot resume that worker now. `kept`: I still keep it for later."""

    job: int
    index: Index
    kept: bool = False


class Release(Message, frozen=True, tag=20):
    """To a PE with a suspended worker of this job: another PE has its seat, so do not wait for a `Query`."""

    job: int


class ProcessWanted(Message, frozen=True, tag=51):
    """To a PE of the same host where a job's root rests: give its process to my worker `number`.

    No message carries the process; `ProcessDenied` says that no process comes.
    """

    job: int
    number: int
    #: the sender's epoch
    epoch: int


class ProcessDenied(Message, frozen=True, tag=52):
    """The negative answer to `ProcessWanted`: start a new process."""

    job: int
    number: int


class PastWorker(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`rank` ran worker `index` until `epoch` and may still have it, suspended."""

    index: Index
    rank: Place
    epoch: int


class Remember(Message, frozen=True, tag=21):
    """To the nearest ancestor that stays in the tree: past workers of the sender's subtree.

    `carried_over`: these workers are known from the last generation (`succession.py`); the PE that now has
    their parent's seat must hear of them.
    """

    job: int
    index: int
    past: tuple[PastWorker, ...]
    carried_over: bool = False


#: placeholder for the index in messages to an address
UNKNOWN_INDEX = -1


class TreeMessage(Message, frozen=True, tag=22):
    """Bytes from worker to worker along the job tree; `target` is the stay of the receiving worker.

    `returned`: the message is on its way back to its sender, since the receiver has left.
    """

    job: int
    target: int
    target_index: int
    source: int
    source_index: int
    returned: bool
    data: bytes

    def back(self) -> TreeMessage:
        """Return this message, addressed back to its sender."""
        return TreeMessage(
            self.job, self.source, self.source_index, self.target, self.target_index, True, self.data
        )


# --- to the client of a job (client.py) -----------------------------------------------------


class RootStarted(Message, frozen=True, tag=23):
    """The root worker's process runs: budgets count from here.

    `leaves`: the job's workers leave in order, so that no past worker can be resumed.
    """

    job: int
    leaves: bool = False


class LeaveWanted(Message, frozen=True, tag=48):
    """From the client to the PE of a suspended root: hand over your work and end (`RootLeft`)."""

    job: int
    #: epoch in which the root rests
    epoch: int


class RootLeft(Message, frozen=True, tag=47):
    """The process of a root that left in order is gone: no checkpoint follows."""

    job: int


class DemandChanged(Message, frozen=True, tag=24):
    """The application at the root wants `demand` workers."""

    job: int
    demand: int


class ResultFound(Message, frozen=True, tag=25):
    """A worker has finished the job; `body` is opaque to all PEs but the client."""

    job: int
    index: int
    stay: int
    body: bytes
    peak_memory_bytes: int = 0
    #: CPU time of that worker that no `Used` has reported
    cpu_s: float = 0.0


class Used(Message, frozen=True, tag=29):
    """A worker's CPU time since its last report, and its largest memory so far."""

    job: int
    cpu_s: float
    peak_bytes: int


class Progressed(Message, frozen=True, tag=39):
    """The root's report on the job's progress."""

    job: int
    progress: Progress


class Offered(Message, frozen=True, tag=50):
    """An interim result that a worker offers, better than its earlier ones."""

    job: int
    interim: Interim


class Checkpoint(Message, frozen=True, tag=33):
    """The state from which the job's next root must go on; `stay`: the stay of the root that sends it."""

    job: int
    stay: int
    data: bytes


class CheckpointWanted(Message, frozen=True, tag=34):
    """To the client: a root that begins asks for the last checkpoint."""

    job: int
    stay: int


class CheckpointGiven(Message, frozen=True, tag=35):
    """To the root: the job's last checkpoint; None: there is none."""

    job: int
    stay: int
    data: bytes | None


class WorkerFailed(Message, frozen=True, tag=26):
    """The application cannot go on: `reason` goes into the reply."""

    job: int
    index: int
    reason: str


# --- distributed balancing (distributed_balancing.py) -------------------------------------------


class VolumeQuestion(Message, frozen=True, tag=30):
    """A question to all PEs for the volumes of `epoch`; the first one brings the news of that epoch."""

    epoch: int
    events: tuple[JobEvent, ...]
    question: AnyQuestion


class VolumeAnswer(Message, frozen=True, tag=31):
    """The answer of the sender's subtree."""

    answer: AnyAnswer


class VolumesSettled(Message, frozen=True, tag=32):
    """The volumes of `epoch`, with the epoch's news unless a question has brought the news."""

    epoch: int
    events: tuple[JobEvent, ...]
    volumes: EpochVolumes


# --- matching by a tree of idle counts (routing_tree.py) -------------------------------------


class IdleChange(Message, frozen=True, tag=40):
    """Change in the number of idle PEs in the sender's subtree."""

    change: int


class Climb(Message, frozen=True, tag=41):
    """A request that found no idle PE in the sender's subtree; `change`: change of that subtree's idle count.

    `number`: number of the request, chosen by the PE that asked.
    """

    number: int
    change: int
    request: Request


class Descend(Message, frozen=True, tag=42):
    """A request for an idle PE of the receiver's subtree: the request has reserved one PE there."""

    number: int
    request: Request


class Waits(Message, frozen=True, tag=43):
    """To the PE that asked: your request `number` waits at the tree's root."""

    number: int


class Withdrawn(Message, frozen=True, tag=44):
    """To the tree's root: my waiting request `number` is not wanted any more."""

    number: int


# --- matching by random walks (random_walk.py) -----------------------------------------------


class Walk(Message, frozen=True, tag=45):
    """A request on a random walk, which goes home after `hops_left` more hops."""

    hops_left: int
    request: Request


class WalkEnded(Message, frozen=True, tag=46):
    """To the PE that asked: your request's walk found no idle PE."""

    request: Request


AnyBalancerMessage: TypeAlias = Events | Epoch | VolumeQuestion | VolumeAnswer | VolumesSettled

AnyMatcherMessage: TypeAlias = (
    Supply
    | Grant
    | MeetRequest
    | MeetToken
    | VoidRequest
    | VoidToken
    | IdleChange
    | Climb
    | Descend
    | Waits
    | Withdrawn
    | Walk
    | WalkEnded
)

AnyMessage: TypeAlias = (
    AnyBalancerMessage
    | Request
    | AnyMatcherMessage
    | Adopt
    | Prefer
    | TokenReturned
    | Offer
    | Accepted
    | Rejected
    | Described
    | ChildLeft
    | Blamed
    | RequestFailed
    | Query
    | Denied
    | Release
    | ProcessWanted
    | ProcessDenied
    | Remember
    | TreeMessage
    | RootStarted
    | RootLeft
    | LeaveWanted
    | DemandChanged
    | ResultFound
    | Used
    | Progressed
    | Offered
    | Checkpoint
    | CheckpointWanted
    | CheckpointGiven
    | WorkerFailed
)

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AnyMessage).decode
