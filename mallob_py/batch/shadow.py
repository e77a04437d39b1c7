"""The shadow time of EASY backfilling: the earliest at which a waiting job finds enough nodes free."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from mallob_py.batch.job import Job
from mallob_py.batch.policy import View


def ends_of(view: View) -> Iterable[tuple[float, int]]:
    """When each running job ends by the estimates [s], the soonest first, and on how many nodes it runs."""
    return ((end_s, running.size) for end_s, _, running in view.ends)


def shadow_of(
    ends: Iterable[tuple[float, int]],
    now_s: float,
    free: int,
    need: int,
    starting: Iterable[tuple[Job, int]] = (),
) -> tuple[float, int]:
    """When `need` nodes will be free, of which `free` are now, and how many more than that.

    Jobs end at these times [s], which ascend, and leave so many nodes; those that start now on so many nodes
    are not among them yet.
    """
    new = sorted((now_s + job.estimate_on(size), size) for job, size in starting)
    shadow_s = now_s
    for end_s, size in heapq.merge(ends, new) if new else ends:
        if free >= need and end_s > shadow_s:
            break
        free += size
        shadow_s = max(shadow_s, end_s)
    return shadow_s, free - need
