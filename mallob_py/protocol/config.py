"""The settings of the protocol, the same on every PE."""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated

import msgspec

from mallob_py.protocol.rotation import Slices

_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
_Count = Annotated[int, msgspec.Meta(ge=0)]

#: suspended roots: of each PE, and of all PEs if that is more
_RESIDENTS, _RESIDENTS_OF_ALL = 16, 96


def window_of(pes: int) -> int:
    """Return the number of jobs of a client that are to be at work: on PEs, next to them, being read."""
    return 2 * pes + 16


def again_of(pes: int) -> int:
    """Return the number of jobs that have been given up before and may be at work at a time."""
    return pes + 8


def express_of(pes: int) -> int:
    """Return the number of jobs of a client that may be at work beside its residents."""
    return window_of(pes) + again_of(pes)


class Reuse(Enum):
    """The way in which suspended workers are found again (P 3.3, compare P Table 2)."""

    NONE = "none"
    #: a parent remembers its own past children
    BASIC = "basic"
    #: past workers are remembered along the tree, and idle PEs wait for those who want them
    FULL = "full"


class Matching(Enum):
    """The way in which requests and idle PEs find each other."""

    #: `matching.py`, P 3.2
    PREFIX_SUM = "prefix-sum"
    #: `routing_tree.py`, P 4.1
    ROUTING_TREE = "routing-tree"


class Balancing(Enum):
    """The PEs that compute the volumes (P 3.1, 4.1); they are the same either way."""

    #: every PE, all of them: one all-reduction per epoch, work that grows with the number of jobs
    LOCAL = "local"
    #: all PEs together: several reductions per epoch, of constant length
    DISTRIBUTED = "distributed"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delays trade latency for messages; see `balancing.py` and the matchers.

    The bounds are checked where a setting is read from a file.
    """

    balancing: Balancing = Balancing.LOCAL
    reuse: Reuse = Reuse.FULL
    #: least time between two sends of events by one PE
    balancing_delay_s: _Seconds = 0.001
    #: least time between two sends of matching contributions by one PE
    matching_delay_s: _Seconds = 0.0003
    matcher: Matching = Matching.PREFIX_SUM
    #: a request first visits so many random PEs, one by one (`random_walk.py`); -1: without limit
    random_hops: Annotated[int, msgspec.Meta(ge=-1)] = 0
    #: prefix sums only: one request for a whole subtree of workers, not one for each worker
    bulk_requests: bool = True
    #: how long an idle PE keeps itself free for a suspended worker whose job grows again
    reuse_patience_s: _Seconds = 0.005
    #: with more jobs than PEs, how long a job has its place until others are next; 0: as long as it lives
    slice_s: _Seconds = 0.5
    #: the same for the first turn of a job, which the next ones double
    first_slice_s: _Seconds = 0.05
    #: how long a PE keeps itself free for a root whose turn it is there
    turn_patience_s: _Seconds = 0.25
    #: how long a PE keeps itself free for the worker that it had when the last generation ended
    succession_hold_s: _Seconds = 0.25
    #: how long what a PE has kept of a job from the last generation waits to hear of the job
    succession_patience_s: _Seconds = 60.0
    #: suspended workers kept per PE (C in P 3.3)
    job_cache: _Count = 4
    #: the same of roots, whose jobs rest until it is their turn; None: see `residents_per_pe`
    residents: _Count | None = None
    #: how long a worker that leaves in order may take to hand over what it has
    leave_grace_s: _Seconds = 1.0
    #: workers that do so at the same time, per PE; after that the first of them is ended
    leavers_max: Annotated[int, msgspec.Meta(ge=1)] = 4
    #: past workers of the same index that are asked before a normal request
    queries_max: _Count = 4
    #: how often a request may come to a PE that has become busy, before its parent is told
    hops_max: Annotated[int, msgspec.Meta(ge=1)] = 64
    #: restarts of one worker whose process died; of a root, without having saved more than before
    restarts_max: _Count = 2
    #: how often a place in a job tree may lose its worker for want of a process: after that its job is given
    #: up, if the place is the root's; else it goes without a process if that may be the job's fault
    losses_max: _Count = 3
    #: how long a host without processes for anybody rests: first, and at most after failures in a row
    rest_s: _Seconds = 0.25
    rest_max_s: _Seconds = 60.0
    #: the same for a host that may not be at fault: until a request has found another one
    doubt_rest_s: _Seconds = 0.05
    #: a job asks for more than its root when that has run for so long: trivial jobs disturb nobody
    growth_delay_s: _Seconds = 0.0003
    #: if the last jobs of a client, as a rule, have not run for longer, the next one may be over as soon, and
    #: asks for more than its root when it has run for three times as long
    brief_s: _Seconds = 0.005
    #: how long a job that found an idle PE at once may stay unknown to the others
    unannounced_max_s: _Seconds = 0.002
    #: the same while new jobs of its client wait for a PE, and how long these wait without an end of such a
    #: job; 0: they never wait so
    turnover_max_s: _Seconds = 0.02
    #: how long the PE of a job of which no other PE has heard is kept free for the next job of that client
    turnaround_s: _Seconds = 0.003
    #: cores of one worker, for CPU budgets
    threads: Annotated[int, msgspec.Meta(ge=1)] = 1
    #: a job that waits for a PE gains as much as twice the priority in this time
    ageing_s: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)] = 60.0

    @property
    def slices(self) -> Slices | None:
        """The length of turns; None: jobs beyond the number of PEs wait."""
        return Slices(self.slice_s, self.first_slice_s) if self.slice_s else None

    def residents_per_pe(self, pes: int) -> int:
        """Return the number of jobs that each PE keeps suspended: if that is not set, so many that few PEs
        have room for a hundred small jobs that were handed in at once.
        """
        if self.residents is not None:
            return self.residents
        return max(_RESIDENTS, math.ceil(_RESIDENTS_OF_ALL / pes))

    def roots_kept(self, pes: int) -> int:
        """Return the number of suspended roots that a PE keeps, which is enough for all that a client begins.

        Those are its residents, and up to `express_of` others that have just begun or begin again.
        """
        return self.residents_per_pe(pes) + math.ceil(express_of(pes) / pes)

    @property
    def asks_in_bulk(self) -> bool:
        """Whether one request may stand for many workers: only prefix sums can number them."""
        return self.bulk_requests and self.matcher is Matching.PREFIX_SUM and self.random_hops == 0
