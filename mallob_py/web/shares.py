"""Fair shares: how many PEs jobs deserve, before anything is rounded.

In proportion to their priorities, none more than its demand, all PEs together as long as somebody can use
them. Volumes (`protocol.volumes`, P 2.3) are this in whole PEs, at least one for each job while there
are enough. So what a job has may differ from its share by rounding, and where shares are below one PE.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from mallob_py.service.status_file import ServiceStatus


def fair_shares(priorities: Sequence[float], demands: Sequence[int], pes: int) -> list[float]:
    """In PEs, in the order given. Priorities and demands above 0."""
    order = sorted(range(len(priorities)), key=lambda job: demands[job] / priorities[job])
    # From the smallest summand on: differences of sums would lose small priorities beside large ones.
    priorities_from = list(accumulate(priorities[job] for job in reversed(order)))[::-1]
    shares = [0.0] * len(priorities)
    left = pes
    for place, job in enumerate(order):
        if demands[job] * priorities_from[place] > left * priorities[job]:
            rate = left / priorities_from[place]
            for other in order[place:]:
                shares[other] = rate * priorities[other]
            break
        shares[job] = float(demands[job])
        left -= demands[job]
    return shares


def shares_by_job(status: ServiceStatus) -> dict[int, float]:
    """Of the listed jobs that are balanced, by id."""
    jobs = [job for job in status.jobs if job.demand and job.balanced_priority > 0]
    shares = fair_shares([job.balanced_priority for job in jobs], [job.demand for job in jobs], status.pes)
    return {job.id: share for job, share in zip(jobs, shares, strict=True)}


def shares_by_user(status: ServiceStatus) -> dict[str, float]:
    """Of each user's jobs together."""
    by_job = shares_by_job(status)
    shares: dict[str, float] = {}
    for job in status.jobs:
        shares[job.user] = shares.get(job.user, 0.0) + by_job.get(job.id, 0.0)
    return shares
