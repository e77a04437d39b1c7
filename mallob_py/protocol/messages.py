"""Every message that crosses the wire between PEs, one typed struct each.

Encoded as msgpack arrays that start with a small integer tag; one decoder validates and
dispatches all of them. Fields named `job` are internal job ids, `index` is a worker's place
in its job tree, `stay` numbers the times that a PE has had a worker in a tree, `epoch` is the number of the
sender's balancing result. Tags from 60 on belong to the runtime.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from mallob_py.protocol.interim import Interim
from mallob_py.protocol.progress import Progress
from mallob_py.protocol.volume_search import AnyAnswer, AnyQuestion, EpochVolumes
from mallob_py.trees import index_in_subtree

#: checked where a message is decoded: the number of a PE, a place in a job tree, of workers or the like
Place = Annotated[int, msgspec.Meta(ge=0)]
Index = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages. (Subclasses repeat `frozen`: type checkers do not inherit it.)"""


class Description(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job's description: its bytes where it is small, else its size; then it is fetched as a file.

    If the job is a revision of an incremental job, `chain` is the id of its first revision and
    `revision` its number. PEs only pass these on to their processes.
    """

    size: Count
    inline: bytes | None = None
    chain: int = 0
    revision: int = 0


#: where the root is of a job that has none yet, and of one that is new to nobody: it was given up for a while
NEW_JOB, JOB_AGAIN = -1, -2


class JobEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the balancing knows of one job. Its client is the only author; demand 0: it has ended.

    `standing` orders the jobs that wait when there are more jobs than PEs, larger first. `root`: the PE that
    has, or had last, the job's root; `NEW_JOB`, `JOB_AGAIN`: none yet. `leaves`: that root leaves in order,
    and goes on elsewhere from what it has saved last.
    """

    job: int
    version: int
    demand: Count
    priority: float
    standing: float
    root: Annotated[int, msgspec.Meta(ge=JOB_AGAIN)] = NEW_JOB
    leaves: bool = False


# --- balancing (balancing.py) ---------------------------------------------------------------


class Events(Message, frozen=True, tag=1):
    """News on jobs, on their way up the tree of ranks."""

    events: tuple[JobEvent, ...]


class Epoch(Message, frozen=True, tag=2):
    """One balancing result on its way down: the news that every PE applies as number `epoch`.

    `elapsed_s`: how long the epoch before was in force, if there were more jobs than PEs then; `is_one_host`:
    all PEs are on one host, as far as the root of the tree knew then.
    """

    epoch: int
    events: tuple[JobEvent, ...]
    elapsed_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    is_one_host: bool = False


# --- matching (matching.py) -----------------------------------------------------------------


class Request(Message, frozen=True, tag=3):
    """Wanted: worker number `position` (in level order) of the subtree below index `subtree`.

    One bulk request asks for `count` such workers; number `position` of them meets its idle
    token under the matching number `base + position`. `path` are the ranks of the worker's
    ancestors, the job's client first, the parent last; `asked_s` is when it was first wanted.
    With `description` the worker can start at once (None: not known yet, or too large to spread so).
    `rests_at`: the PE where the job's root, which is wanted, rests as far as its client knows; -1: at none.
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
        """Rank of the parent: the PE that hears of the outcome."""
        return self.path[-1]


class Supply(Message, frozen=True, tag=4):
    """Change in the numbers of unmatched requests and idle tokens in the sender's subtree."""

    requests: int
    tokens: int


class Grant(Message, frozen=True, tag=5):
    """Matching numbers for `requests` requests and `tokens` tokens of the receiver's subtree."""

    first_request: Count
    requests: Count
    first_token: Count
    tokens: Count


class MeetRequest(Message, frozen=True, tag=6):
    """A request with its matching number, to the rank where it meets its token."""

    number: Count
    request: Request


class MeetToken(Message, frozen=True, tag=7):
    """The sender's idle token with its matching number, to the rank where it meets its request."""

    number: Count


class VoidRequest(Message, frozen=True, tag=8):
    """No request comes under this number: it was withdrawn while the number was on its way."""

    number: Count


class VoidToken(Message, frozen=True, tag=9):
    """No token comes under this number: that PE found work while the number was on its way."""

    number: Count


class Adopt(Message, frozen=True, tag=10):
    """To an idle PE: run this worker."""

    request: Request


class Prefer(Message, frozen=True, tag=27):
    """To a PE that may be at an advantage: run this root if you are free, else have it go on from you.

    `is_granted`: if you run it, you are in the tree at once, without `Accepted`.
    """

    request: Request
    is_granted: bool = False


class TokenReturned(Message, frozen=True, tag=11):
    """To an idle PE: nothing came of your token; take part in the matching again."""


# --- job trees (job_tree.py) ----------------------------------------------------------------


class Offer(Message, frozen=True, tag=12):
    """To the parent (for index 0: to the client): I run worker `index` from now on.

    `granted_epoch`: the client's epoch when it granted the place in `Prefer`; -1: it did not.
    """

    job: int
    index: Index
    stay: int
    epoch: int
    granted_epoch: int = -1

    def rejection(self) -> Rejected:
        """The answer no."""
        return Rejected(self.job, self.index, self.stay)


class Accepted(Message, frozen=True, tag=13):
    """To the child: you are in the tree. `past` are past workers of its subtree.

    `losses`: how many workers were lost in this place before, since the parent is there.
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
    """To the child: here is the job's description (where `Accepted` did not have it yet)."""

    job: int
    stay: int
    description: Description


class ChildLeft(Message, frozen=True, tag=16):
    """To the parent: the worker you accepted had left its place before your acceptance.

    Or it is lost, at any time: no process could be had for it, for the reason `lost`.
    """

    job: int
    index: Index
    stay: int
    lost: str = ""


class Blamed(Message, frozen=True, tag=28):
    """To a PE that lost a root of this job: it runs elsewhere, so it was not the job's fault."""

    job: int


class RequestFailed(Message, frozen=True, tag=17):
    """To the parent: your request for `index` is void as of `epoch`; ask again if need be."""

    job: int
    index: Index
    epoch: int


class Query(Message, frozen=True, tag=18):
    """To a PE that once ran worker `index`: resume it if you can (answer: Offer or Denied)."""

    request: Request


class Denied(Message, frozen=True, tag=19):
    """To the parent: I cannot resume that worker now. `kept`: perhaps another time, I still have it."""

    job: int
    index: Index
    kept: bool = False


class Release(Message, frozen=True, tag=20):
    """To a PE with a suspended worker of this job: it will not be resumed for now."""

    job: int


class ProcessWanted(Message, frozen=True, tag=51):
    """To a PE of the same host where a job's root rests: give my worker `number` its process, search and all.

    The process comes outside of messages; `ProcessDenied` says that none does.
    """

    job: int
    number: int
    #: the sender's
    epoch: int


class ProcessDenied(Message, frozen=True, tag=52):
    """The answer to `ProcessWanted` where there is none to give: start one anew."""

    job: int
    number: int


class PastWorker(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`rank` ran worker `index` until `epoch` and may still have it, suspended."""

    index: Index
    rank: Place
    epoch: int


class Remember(Message, frozen=True, tag=21):
    """To the nearest ancestor that stays in the tree: past workers of the sender's subtree.

    `carried_over`: from the last generation (`succession.py`); whoever has taken the place of their parent by
    now is to know of them.
    """

    job: int
    index: int
    past: tuple[PastWorker, ...]
    carried_over: bool = False


#: where a message goes to an address and not to a place in the tree
UNKNOWN_INDEX = -1


class TreeMessage(Message, frozen=True, tag=22):
    """Bytes from worker to worker along the job tree, for the receiver's stay `target`.

    `returned`: it comes back to its sender, since its receiver has left.
    """

    job: int
    target: int
    target_index: int
    source: int
    source_index: int
    returned: bool
    data: bytes

    def back(self) -> TreeMessage:
        """This message on its way back to its sender."""
        return TreeMessage(
            self.job, self.source, self.source_index, self.target, self.target_index, True, self.data
        )


# --- to the client of a job (client.py) -----------------------------------------------------


class RootStarted(Message, frozen=True, tag=23):
    """The root worker's process runs: budgets count from here.

    `leaves`: the job's workers leave in order, so that no past one can be resumed.
    """

    job: int
    leaves: bool = False


class LeaveWanted(Message, frozen=True, tag=48):
    """From the client to where a job's root rests: hand over what there is and end; `RootLeft` follows."""

    job: int
    #: the one in which it rests
    epoch: int


class RootLeft(Message, frozen=True, tag=47):
    """The process of a root that left in order is gone: it saves nothing any more."""

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
    #: CPU time of that worker that has not been told yet
    cpu_s: float = 0.0


class Used(Message, frozen=True, tag=29):
    """A worker has used so much CPU time since it was told last, and so much memory at most so far."""

    job: int
    cpu_s: float
    peak_bytes: int


class Progressed(Message, frozen=True, tag=39):
    """The root tells how far the job is."""

    job: int
    progress: Progress


class Offered(Message, frozen=True, tag=50):
    """A worker offers an answer or a bound that is better than what it has offered before."""

    job: int
    interim: Interim


class Checkpoint(Message, frozen=True, tag=33):
    """The root, in that stay, is so far: the job's next one shall go on from here."""

    job: int
    stay: int
    data: bytes


class CheckpointWanted(Message, frozen=True, tag=34):
    """The root begins: what was the last checkpoint?"""

    job: int
    stay: int


class CheckpointGiven(Message, frozen=True, tag=35):
    """To the root: this one (None: there is none)."""

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
    """The volumes of `epoch`; with its news, if no question has brought them."""

    epoch: int
    events: tuple[JobEvent, ...]
    volumes: EpochVolumes


# --- matching by a tree of idle counts (routing_tree.py) -------------------------------------


class IdleChange(Message, frozen=True, tag=40):
    """Change in the number of idle PEs in the sender's subtree."""

    change: int


class Climb(Message, frozen=True, tag=41):
    """A request that found nobody in the sender's subtree, whose idle count changes by `change`.

    `number` is its asker's number for it.
    """

    number: int
    change: int
    request: Request


class Descend(Message, frozen=True, tag=42):
    """A request for an idle PE of the receiver's subtree: its idle count has one less."""

    number: int
    request: Request


class Waits(Message, frozen=True, tag=43):
    """To the asker: your request of that number waits at the tree's root."""

    number: int


class Withdrawn(Message, frozen=True, tag=44):
    """To the tree's root: my request of that number, which waits with you, is not wanted any more."""

    number: int


# --- matching by random walks (random_walk.py) -----------------------------------------------


class Walk(Message, frozen=True, tag=45):
    """A request on a random walk, which goes home after so many more hops."""

    hops_left: int
    request: Request


class WalkEnded(Message, frozen=True, tag=46):
    """To the asker: the walk of your request found nobody."""

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
