"""The settings of the protocol, the same on every PE."""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated

import msgspec

from mallob_py.protocol.rotation import Slices

_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
_Count = Annotated[int, msgspec.Meta(ge=0)]

#: smallest number of suspended roots that one PE may keep, and that all PEs together may keep
_RESIDENTS, _RESIDENTS_OF_ALL = 16, 96


def window_of(pes: int) -> int:
    """Return how many jobs a client may have at work: on PEs, waiting for a PE, or being read."""
    return 2 * pes + 16


def again_of(pes: int) -> int:
    """Return how many given-up jobs a client may have at work again."""
    return pes + 8


def express_of(pes: int) -> int:
    """Return how many jobs a client may have at work besides jobs that keep their process between turns."""
    return window_of(pes) + again_of(pes)


class Reuse(Enum):
    """Ways of finding suspended workers again (P 3.3, compare P Table 2)."""

    NONE = "none"
    #: each parent remembers only its own past children
    BASIC = "basic"
    #: past workers are remembered along the tree, and idle PEs wait for jobs that want them again
    FULL = "full"


class Matching(Enum):
    """Ways of matching requests and idle PEs."""

    #: matching by prefix sums: `matching.py`, P 3.2
    PREFIX_SUM = "prefix-sum"
    #: matching by a tree of idle counts: `routing_tree.py`, P 4.1
    ROUTING_TREE = "routing-tree"


class Balancing(Enum):
    """Ways of computing the volumes, with equal results (P 3.1, 4.1)."""

    #: every PE computes all volumes: one all-reduction per epoch, work linear in the number of jobs
    LOCAL = "local"
    #: all PEs compute the volumes together: several reductions of constant length per epoch
    DISTRIBUTED = "distributed"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings. Longer delays save messages and cost latency; see `balancing.py` and the matchers.

    Bounds are checked where a setting is read from a file.
    """

    balancing: Balancing = Balancing.LOCAL
    reuse: Reuse = Reuse.FULL
    #: shortest time between two sends of events by one PE
    balancing_delay_s: _Seconds = 0.001
    #: shortest time between two sends of matching contributions by one PE
    matching_delay_s: _Seconds = 0.0003
    matcher: Matching = Matching.PREFIX_SUM
    #: number of random PEs that a request visits first, one by one (`random_walk.py`); -1: no limit
    random_hops: Annotated[int, msgspec.Meta(ge=-1)] = 0
    #: whether one request stands for a whole subtree of workers, with matching by prefix sums
    bulk_requests: bool = True
    #: time for which an idle PE stays free for a suspended worker whose job grows again
    reuse_patience_s: _Seconds = 0.005
    #: length of a job's turn, with more jobs than PEs; 0: jobs keep their PE
    slice_s: _Seconds = 0.5
    #: length of a job's first turn; each next turn is twice as long
    first_slice_s: _Seconds = 0.05
    #: longest time for which a PE stays free for a root whose turn is due there
    turn_patience_s: _Seconds = 0.25
    #: longest time for which a PE stays free for its worker of the last generation
    succession_hold_s: _Seconds = 0.25
    #: time for which a PE keeps a worker or an answer of the last generation while no message names its job
    succession_patience_s: _Seconds = 60.0
    #: number of suspended workers kept per PE (C in P 3.3)
    job_cache: _Count = 4
    #: number of suspended roots kept per PE, of jobs that rest between turns; None: see `residents_per_pe`
    residents: _Count | None = None
    #: longest time for a worker that leaves in order to hand over its work
    leave_grace_s: _Seconds = 1.0
    #: greatest number of workers of a PE that leave in order at the same time; if one more must leave, the
    #: process that has been leaving for longest is ended
    leavers_max: Annotated[int, msgspec.Meta(ge=1)] = 4
    #: number of past workers of the same index that are asked before a normal request
    queries_max: _Count = 4
    #: number of visits to busy PEs after which a request goes back to its parent as failed
    hops_max: Annotated[int, msgspec.Meta(ge=1)] = 64
    #: greatest number of restarts of a worker whose process died; for a root, since its last new progress
    restarts_max: _Count = 2
    #: greatest number of workers lost in one seat because they got no process. One more loss: if the seat is
    #: the root's, the job fails; else the seat stays without a process, if the job may be at fault
    losses_max: _Count = 3
    #: pause of a host that could not give a job's worker a process: at first, and at most
    rest_s: _Seconds = 0.25
    rest_max_s: _Seconds = 60.0
    #: pause of a host that is perhaps not at fault; long enough for a request to find another host
    doubt_rest_s: _Seconds = 0.05
    #: run time of a root after which its job asks for more workers: trivial jobs must disturb no other PE
    growth_delay_s: _Seconds = 0.0003
    #: longest run time of a brief job: if a client's last jobs were mostly brief, its next job asks for more
    #: workers only after three times their median run time
    brief_s: _Seconds = 0.005
    #: longest time for which other PEs do not hear of a job that found an idle PE at once
    unannounced_max_s: _Seconds = 0.002
    #: growth delay while new jobs of the same client wait for a PE; also the longest time that such jobs wait
    #: for a brief job to end; 0: no wait
    turnover_max_s: _Seconds = 0.02
    #: time for which a PE stays free for a client's next job, after a job of which no other PE has heard
    turnaround_s: _Seconds = 0.003
    #: number of cores of a worker, for CPU budgets
    threads: Annotated[int, msgspec.Meta(ge=1)] = 1
    #: waiting time that counts as much as a doubled priority
    ageing_s: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)] = 60.0

    @property
    def slices(self) -> Slices | None:
        """The lengths of the turns that jobs take on PEs; None: no turns, surplus jobs wait."""
        return Slices(self.slice_s, self.first_slice_s) if self.slice_s else None

    def residents_per_pe(self, pes: int) -> int:
        """Return how many jobs a PE may keep suspended; the default lets few PEs together keep about 100."""
        if self.residents is not None:
            return self.residents
        return max(_RESIDENTS, math.ceil(_RESIDENTS_OF_ALL / pes))

    def roots_kept(self, pes: int) -> int:
        """Return how many roots may be suspended per PE: enough for all jobs that a client begins.

        These are jobs that keep their process between turns, and up to `express_of` other jobs, new or begun
        again.
        """
        return self.residents_per_pe(pes) + math.ceil(express_of(pes) / pes)

    @property
    def asks_in_bulk(self) -> bool:
        """Tell whether one request may stand for many workers, which only prefix sums support."""
        return self.bulk_requests and self.matcher is Matching.PREFIX_SUM and self.random_hops == 0
