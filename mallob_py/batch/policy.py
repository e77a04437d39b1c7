"""The interface of policies: what a scheduler sees, and what it can do.

A policy is an object with a name and a method `decide(view)` that returns actions, which the simulator
carries out in their order, at the time of the view; those of a generator one by one, so that it sees in the
view what each has brought when it goes on. (What has changed since the last decision is told in the view
until the first action.) It may keep a memory of what it was shown, but must not look at anything else; a run
begins with `begin`. Impossible actions raise `PolicyError`.

A policy of one's own is a class with the methods of `Policy`, in a package with an entry point:

    [project.entry-points."mallob_py.policies"]
    mine = "my_package:MyPolicy"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from mallob_py.batch.cluster import Room
from mallob_py.batch.costs import FreeResizes, ResizeCost
from mallob_py.batch.job import Job


class Start(msgspec.Struct, frozen=True, gc=False):
    """Start a waiting job, on so many nodes or on just these.

    Where nodes are shared: so many units, or one on each of these nodes, which may occur several times.
    """

    job: int
    nodes: int | tuple[int, ...]


class Resize(msgspec.Struct, frozen=True, gc=False):
    """Let a running malleable job have so many nodes, or just these, from its next resize point on."""

    job: int
    nodes: int | tuple[int, ...]


class Share(msgspec.Struct, frozen=True, gc=False):
    """Start a waiting malleable job, the guest, on all nodes of running malleable ones, its mates.

    Of the cores of each node, it gets the share `factor` (more than 0, less than 1). When it ends, its mates
    have them back; when a mate ends before, the guest has its nodes for itself.
    """

    guest: int
    mates: tuple[int, ...]
    factor: float = 0.5


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """A promise that a waiting job starts at this time [s] at the latest, which is kept account of."""

    job: int
    at_s: float


class Wake(msgspec.Struct, frozen=True, gc=False):
    """Ask for a decision at this time [s], whatever happens until then."""

    at_s: float


Action = Start | Resize | Share | Reserve | Wake


class PolicyError(Exception):
    """A policy wants something impossible; the text names policy, job and time."""


class Running:
    """A running job, as a scheduler sees it."""

    __slots__ = (
        "estimated_end_s",
        "factor",
        "guest",
        "job",
        "mates",
        "nodes",
        "order",
        "resized_s",
        "start_s",
        "still_until_s",
        "target",
    )

    def __init__(
        self, job: Job, start_s: float, nodes: list[int], estimated_end_s: float, order: int
    ) -> None:
        self.job = job
        self.start_s = start_s
        #: their numbers, in the order in which the job got them
        self.nodes = nodes
        #: by the user's estimate and the speedup that is said of the job
        self.estimated_end_s = estimated_end_s
        #: how many jobs were started before
        self.order = order
        #: number of nodes that was ordered and not yet taken; None if there is no order
        self.target: int | None = None
        #: when it was resized last, or had an order to; None: never
        self.resized_s: float | None = None
        #: until when it stands still for the resize that it has taken last
        self.still_until_s = start_s
        #: the job that shares its nodes, if any
        self.guest: Running | None = None
        #: of a guest: those still running whose nodes it shares, and the share of their cores that it has
        self.mates: list[Running] = []
        self.factor = 1.0

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def freed(self) -> int:
        """The number of nodes free when the job has ended: a guest leaves those of its mates to them."""
        return len(self.nodes) - (self.shared if self.mates else 0)

    @property
    def shared(self) -> int:
        """On how many nodes it is a guest."""
        return sum(len(mate.nodes) for mate in self.mates)


class View:
    """The view of a scheduler. Nothing of it may be changed, or kept: it goes on changing."""

    __slots__ = (
        "arrived",
        "costs",
        "departed",
        "ended",
        "ends",
        "free",
        "free_nodes",
        "nodes",
        "now_s",
        "queue",
        "room",
        "running",
        "wishes",
    )

    def __init__(self, nodes: int, costs: ResizeCost | None = None) -> None:
        self.now_s = 0.0
        #: of the machine
        self.nodes = nodes
        #: what resizes cost on it
        self.costs: ResizeCost = costs or FreeResizes()
        #: nodes that run no job
        self.free = nodes
        #: which these are, in no particular order
        self.free_nodes: Sequence[int] = ()
        #: waiting jobs in the order of their submission
        self.queue: Sequence[Job] = []
        #: by job
        self.running: Mapping[int, Running] = {}
        #: (estimated end, order, running job), sorted
        self.ends: Sequence[tuple[float, int, Running]] = []
        #: so many jobs at the end of `queue` are new since the last decision
        self.arrived = 0
        #: what ran at the last decision and has ended since
        self.departed: Sequence[Running] = ()
        #: whether anything else has changed since: a job has ended, changed its size, or can be resized again
        self.ended = True
        #: what is left of nodes that jobs share; None where they do not
        self.room: Room | None = None
        #: evolving jobs that ask for a number of nodes, with that number
        self.wishes: Mapping[int, int] = {}


class Policy(Protocol):
    """See the module's text. `wants_all_arrivals`: also of jobs for which too few nodes are free.

    With an attribute `wants_resize_points` that is true, it is also asked whenever a malleable job is between
    two of its iterations. With one `shares_nodes` that is true, it is nothing for real jobs (`live`), which
    have their nodes for themselves; with `shares_cores` as well, it is for those that are bound to cores.
    """

    name: str
    wants_all_arrivals: bool

    def begin(self, nodes: int) -> None:
        """A new run on a machine of so many nodes."""

    def decide(self, view: View) -> Iterable[Action]: ...
