"""A job of a batch system: the scheduler's knowledge (`Job`), and the truth (`Truth`)."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from mallob_py.batch.cluster import Cluster
from mallob_py.batch.speedup import LINEAR, Amdahl, Downey, Linear, Logarithmic, Power

AnySpeedup = Linear | Power | Amdahl | Logarithmic | Downey


class Kind(enum.Enum):
    """The kinds of jobs, by who determines a job's number of nodes."""

    #: the user determines the number of nodes
    RIGID = "rigid"
    #: the scheduler determines the number of nodes at the job's start
    MOLDABLE = "moldable"
    #: the scheduler determines the number of nodes at the job's start, and changes the number while the job
    #: runs
    MALLEABLE = "malleable"
    #: the job asks for other numbers of nodes while it runs
    EVOLVING = "evolving"


class Job(msgspec.Struct, frozen=True, gc=False):
    """A job as known to a scheduler. Times are seconds; `nodes` is the requested, preferred number of nodes.

    `id` counts a workload's jobs from 0, in the order of submission; `number` is the job's number in its
    source. `estimate_s` is the requested time on `nodes` nodes. `speedup` is the claimed speedup, which may
    be wrong. `demand` is what each unit needs of a shared node's resources (see cluster.py); empty: a unit is
    a whole node.
    """

    id: int
    submit_s: float
    nodes: int
    estimate_s: float
    kind: Kind = Kind.RIGID
    nodes_min: int = 0
    nodes_max: int = 0
    speedup: AnySpeedup = LINEAR
    number: int = 0
    queue: str = ""
    user: str = ""
    demand: tuple[float, ...] = ()

    @property
    def low(self) -> int:
        """The smallest number of nodes on which the job can run."""
        return self.nodes if self.kind is Kind.RIGID else self.nodes_min or self.nodes

    @property
    def high(self) -> int:
        """The greatest number of nodes that the job can use."""
        return self.nodes if self.kind is Kind.RIGID else self.nodes_max or self.nodes

    @property
    def is_malleable(self) -> bool:
        return self.kind is Kind.MALLEABLE

    def estimate_on(self, nodes: int) -> float:
        """Return the estimated run time [s] on this many nodes."""
        return (
            self.estimate_s
            if nodes == self.nodes
            else self.estimate_s / self.speedup.speed(nodes, self.nodes)
        )


class Wish(msgspec.Struct, frozen=True, gc=False):
    """A wish for `nodes` nodes, which comes up when the part `progress` (0 to 1) of the job's work is done.

    An evolving job requests this number. A malleable job without `iterations` has work for at most this
    number from then on.
    """

    progress: float
    nodes: int


class Truth(msgspec.Struct, frozen=True, gc=False):
    """The truth unknown to schedulers: run time [s] on the preferred number of nodes, and the true speedup.

    A malleable job with `iterations` (of equal work) can be resized only between two of them.
    """

    run_s: float
    speedup: AnySpeedup | None = None
    iterations: int = 0
    wishes: tuple[Wish, ...] = ()


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """A job of a source that can never run, and the reason. Times [s] and `nodes` are as requested."""

    number: int
    submit_s: float
    nodes: int
    estimate_s: float
    reason: str
    queue: str = ""
    user: str = ""


class Workload(msgspec.Struct, frozen=True):
    """Jobs sorted by (submission, number), their truths in the same order, and the machine's number of nodes.

    `left_out`: (reason for leaving out jobs of the source, number of these jobs); `rejected`: the jobs left
    out; `remarks`: how the source was understood. With a `cluster`, jobs share its nodes: they are rigid, and
    `Job.nodes` counts their units.
    """

    jobs: Sequence[Job]
    truths: Sequence[Truth]
    nodes: int = 0
    name: str = ""
    left_out: tuple[tuple[str, int], ...] = ()
    cluster: Cluster | None = None
    rejected: Sequence[Rejected] = ()
    remarks: tuple[str, ...] = ()
    #: the time of the first submission on the source's clock [s]
    origin_s: float = 0.0
