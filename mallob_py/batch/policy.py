"""The interface of policies: what a scheduler sees, and what it can do.

A policy is an object with a name and a method `decide(view)` that returns actions, which the simulator
carries out in their order, at the time of the view. A generator's actions are carried out one by one, so that
the generator sees the effect of each in the view. (`arrived`, `departed` and `ended` of the view are reset
before the first action is carried out.) A policy may remember what its views showed, but must not use any
other information. A run begins with `begin`. Impossible actions raise `PolicyError`.

To add a policy, write a class with the methods of `Policy`, in a package with an entry point:

    [project.entry-points."mallob_py.policies"]
    mine = "my_package:MyPolicy"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from mallob_py.batch.cluster import Room
from mallob_py.batch.costs import FreeResizes, ResizeCost
from mallob_py.batch.job import Job


class Start(msgspec.Struct, frozen=True, gc=False):
    """Start a waiting job, on a number of nodes or on a list of nodes.

    Where nodes are shared, `nodes` is the number of units, or lists the node of each unit (repeatedly for
    several units).
    """

    job: int
    nodes: int | tuple[int, ...]


class Resize(msgspec.Struct, frozen=True, gc=False):
    """Change a running malleable job's nodes, at its next resize point, to a number or a list of nodes."""

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
    """Record the promise that a waiting job starts at this time [s] at the latest."""

    job: int
    at_s: float


class Wake(msgspec.Struct, frozen=True, gc=False):
    """Request a decision at this time [s], even if no event happens at it."""

    at_s: float


Action = Start | Resize | Share | Reserve | Wake


def check_choice(setting: str, value: str, known: Sequence[str]) -> None:
    """Check that the setting of a policy has one of the known values. Raises ValueError."""
    if value not in known:
        raise ValueError(f"{setting} is {value!r}, not one of {', '.join(known)}")


class PolicyError(Exception):
    """A policy's action is impossible. The error's text names policy, job and time."""


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
        "rate",
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
        #: the numbers of the job's nodes, in the order in which the job got them
        self.nodes = nodes
        #: the end [s] of the job by the user's estimate and the claimed speedup
        self.estimated_end_s = estimated_end_s
        #: a number that grows from start to start
        self.order = order
        #: the ordered number of nodes, until the job has this number; None: no order is pending
        self.target: int | None = None
        #: the time [s] of the last order to resize the job; None: no order yet
        self.resized_s: float | None = None
        #: the time [s] until which the job stands still because of its last resize
        self.still_until_s = start_s
        #: the job's measured rate on its present nodes, in its own unit of work per second; None: not known
        self.rate: float | None = None
        #: the guest on the job's nodes, if any
        self.guest: Running | None = None
        #: if the job is a guest: its mates (running jobs on the same nodes), and its share of their cores
        self.mates: list[Running] = []
        self.factor = 1.0

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def freed(self) -> int:
        """Return how many nodes become free at the job's end; a guest's mates keep their nodes."""
        return len(self.nodes) - (self.shared if self.mates else 0)

    @property
    def shared(self) -> int:
        """Return the number of nodes on which the job is a guest."""
        return sum(len(mate.nodes) for mate in self.mates)


def no_remark(running: Running) -> str:
    """Return no text; this is the method `remark` of policies that have none."""
    return ""


class View:
    """The view of a scheduler. A policy must neither change a view nor keep it beyond the decision."""

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
        #: (estimated end [s], order, running job) of all running jobs, sorted
        self.ends: Sequence[tuple[float, int, Running]] = []
        #: the number of jobs at the end of `queue` that have arrived since the last decision
        self.arrived = 0
        #: the jobs that have ended since the last decision
        self.departed: Sequence[Running] = ()
        #: whether anything but arrivals has happened since the last decision: a job has ended, has changed
        #: its size or has become resizable, or a requested wake was due
        self.ended = True
        #: the free resources of nodes that jobs share; None: each job has its own nodes
        self.room: Room | None = None
        #: job -> number of nodes that an evolving job requests, or that a malleable job has work for
        self.wishes: Mapping[int, int] = {}


class Policy(Protocol):
    """A policy; see the module's docstring. With `wants_all_arrivals`, it is also asked if no new job fits.

    With a true attribute `wants_resize_points`, it is also asked whenever a malleable job is between two
    iterations. With `shares_nodes`, it is unsuitable for real jobs (`live`), which have nodes of their own;
    with `shares_cores` as well, it is suitable for real jobs that are bound to cores. With `rate_period_s`
    above 0, it sees rates of jobs, measured from this time [s] after a job's last resize on, over at least
    this time. Its method `remark(running)`, if any, returns a sentence for `batch explain`; `warning(jobs)`
    returns a sentence for `batch simulate` of these jobs, or None.
    """

    name: str
    wants_all_arrivals: bool

    def begin(self, nodes: int) -> None:
        """Begin a new run on a machine of `nodes` nodes."""

    def decide(self, view: View) -> Iterable[Action]: ...


class Wrapper:
    """A wrapper of a policy; it has all attributes of the policy, also those that only some policies have."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.wants_all_arrivals = policy.wants_all_arrivals
        self._policy = policy

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._policy, attribute)

    def begin(self, nodes: int) -> None:
        self._policy.begin(nodes)
