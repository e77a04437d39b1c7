"""The interface of policies: what a scheduler sees, and what it can do.

A policy is an object with a name and a method `decide(view)` that returns actions, which the simulator
carries out in their order, at the time of the view. A generator's actions are carried out one by one, so that
the generator sees the effect of each in the view. (The view tells the changes since the last decision only
until the first action.) A policy may remember its views, but must not use any other information. A run
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
    """Start a waiting job, on a number of nodes or on a list of nodes.

    Where nodes are shared: a number of units, or one unit on each listed node, which may occur several times.
    """

    job: int
    nodes: int | tuple[int, ...]


class Resize(msgspec.Struct, frozen=True, gc=False):
    """Resize a running malleable job, at its next resize point, to a number or a list of nodes."""

    job: int
    nodes: int | tuple[int, ...]


class Share(msgspec.Struct, frozen=True, gc=False):
    """Start a waiting malleable job, the guest, on all nodes of running malleable jobs, its mates.

    The guest gets the share `factor` of each node's cores (more than 0, less than 1). When the guest ends,
    its mates get these cores back; when a mate ends first, the guest gets the mate's nodes.
    """

    guest: int
    mates: tuple[int, ...]
    factor: float = 0.5


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """A recorded promise that a waiting job starts at this time [s] at the latest."""

    job: int
    at_s: float


class Wake(msgspec.Struct, frozen=True, gc=False):
    """Request a decision at this time [s], whether or not there are events before."""

    at_s: float


Action = Start | Resize | Share | Reserve | Wake


def check_choice(setting: str, value: str, known: Sequence[str]) -> None:
    """Check that the setting of a policy has one of the known values. Raises ValueError."""
    if value not in known:
        raise ValueError(f"{setting} is {value!r}, not one of {', '.join(known)}")


class PolicyError(Exception):
    """An error: a policy's action is impossible. The text names policy, job and time."""


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
        #: the numbers of its nodes, in the order in which the job got them
        self.nodes = nodes
        #: the estimated end, by the user's estimate and the claimed speedup
        self.estimated_end_s = estimated_end_s
        #: the number of jobs that were started before
        self.order = order
        #: the ordered number of nodes until the job has it; None if there is no order
        self.target: int | None = None
        #: the time of the last resize or order; None: there was none
        self.resized_s: float | None = None
        #: the time until which the job stands still for its last resize
        self.still_until_s = start_s
        #: the guest on its nodes, if any
        self.guest: Running | None = None
        #: of a guest: the running mates, and the guest's share of their cores
        self.mates: list[Running] = []
        self.factor = 1.0

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def freed(self) -> int:
        """Return the nodes that become free at the job's end; a guest leaves its mates' nodes to them."""
        return len(self.nodes) - (self.shared if self.mates else 0)

    @property
    def shared(self) -> int:
        """Return the number of nodes on which the job is a guest."""
        return sum(len(mate.nodes) for mate in self.mates)


class View:
    """The view of a scheduler. A policy must not change it, nor keep it, as it changes after the decision."""

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
        #: the number of the machine's nodes
        self.nodes = nodes
        #: the costs of resizes on the machine
        self.costs: ResizeCost = costs or FreeResizes()
        #: the number of nodes without a job
        self.free = nodes
        #: the numbers of the free nodes, in no particular order
        self.free_nodes: Sequence[int] = ()
        #: waiting jobs in the order of their submission
        self.queue: Sequence[Job] = []
        #: the running jobs, by id
        self.running: Mapping[int, Running] = {}
        #: (estimated end, order, running job), sorted
        self.ends: Sequence[tuple[float, int, Running]] = []
        #: the number of jobs at the end of `queue` that are new since the last decision
        self.arrived = 0
        #: the jobs that have ended since the last decision
        self.departed: Sequence[Running] = ()
        #: whether anything else has changed since: a job has ended, has changed its size, or can be resized
        #: again
        self.ended = True
        #: the free room of nodes that jobs share; None where they share none
        self.room: Room | None = None
        #: the number of nodes by job: that an evolving job requests, or that a malleable job has work for
        self.wishes: Mapping[int, int] = {}


class Policy(Protocol):
    """A policy, see the module's text. `wants_all_arrivals`: it is also asked if no new job fits.

    With a true attribute `wants_resize_points`, it is also asked whenever a malleable job is between two
    iterations. With `shares_nodes`, it is unsuitable for real jobs (`live`), which have nodes of their own;
    with `shares_cores` as well, it is suitable for jobs that are bound to cores.
    """

    name: str
    wants_all_arrivals: bool

    def begin(self, nodes: int) -> None:
        """Begin a new run on a machine of `nodes` nodes."""

    def decide(self, view: View) -> Iterable[Action]: ...
