"""The shadow time of EASY backfilling: the earliest time at which enough nodes are free for a waiting job."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from mallob_py.batch.job import Job
from mallob_py.batch.policy import View


def ends_of(view: View) -> Iterable[tuple[float, int]]:
    """Return each running job's estimated end [s] and number of nodes, sorted by end."""
    return ((end_s, running.size) for end_s, _, running in view.ends)


def shadow_of(
    ends: Iterable[tuple[float, int]],
    now_s: float,
    free: int,
    need: int,
    starting: Iterable[tuple[Job, int]] = (),
) -> tuple[float, int]:
    """Return the time at which `need` nodes are free, and the number of nodes beyond `need` at that time.

    `free` nodes are free now. `ends`: (time [s], number of nodes that a job leaves then), by ascending time.
    `starting`: (job that starts now, its number of nodes); `ends` must not contain these jobs.
    """
    new = sorted((now_s + job.estimate_on(size), size) for job, size in starting)
    shadow_s = now_s
    for end_s, size in heapq.merge(ends, new) if new else ends:
        if free >= need and end_s > shadow_s:
            break
        free += size
        shadow_s = max(shadow_s, end_s)
    return shadow_s, free - need
