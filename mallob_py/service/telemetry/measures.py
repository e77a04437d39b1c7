"""The service's numbers, each declared once: `MEASURES`. `/metrics`, the web interface and `mallob-py status
--measures` have all of them.

Each number is taken from the status that the service writes anyway. Data that is missing there must be added
to `ServiceStatus`, and filled in by `status_writer.py`.

A job's *fair share* is the number of PEs that it deserves, not rounded: shares are proportional to
priorities, no share exceeds its job's demand, and together they use all PEs as long as jobs can use them.
Volumes (`protocol.volumes`, P 2.3) are shares in whole PEs, at least one for each job while there are enough
PEs. So a job's volume may differ from its share by rounding, and if its share is below one PE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from mallob_py.service.telemetry.status import ServiceStatus

_STATES = ("held", "queued", "reading", "submitted", "waiting", "resting", "running")
#: one number, or one for each value of a label
Value: TypeAlias = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measure:
    """One of the service's numbers, or several numbers of a kind, distinguished by `label`."""

    name: str
    meaning: str
    of: Callable[[ServiceStatus], Value]
    label: str = ""
    #: whether the number only grows, from 0 at the start of the service
    is_counter: bool = False


def fair_shares(priorities: Sequence[float], demands: Sequence[int], pes: int) -> list[float]:
    """Return jobs' fair shares in PEs, in the given order. Priorities and demands must be above 0."""
    order = sorted(range(len(priorities)), key=lambda job: demands[job] / priorities[job])
    # The sums are made from the end, since differences of sums would lose small priorities beside large ones.
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
    """Return id -> fair share of the listed jobs in the balancing; of jobs with turns, as reported."""
    jobs = [job for job in status.jobs if job.demand and job.balanced_priority > 0]
    shares = fair_shares([job.balanced_priority for job in jobs], [job.demand for job in jobs], status.pes)
    return {job.id: job.share or share for job, share in zip(jobs, shares, strict=True)}


def shares_by_user(status: ServiceStatus) -> dict[str, float]:
    """Return user -> fair share: the sum over the user's jobs."""
    by_job = shares_by_job(status)
    shares = dict.fromkeys(status.users, 0.0)
    for job in status.jobs:
        shares[job.user] = shares.get(job.user, 0.0) + by_job.get(job.id, 0.0)
    return shares


MEASURES: tuple[Measure, ...] = (
    Measure("start_time_seconds", "Start of the service, in seconds since 1970.", lambda it: it.started),
    Measure("status_age_seconds", "Age of these numbers.", lambda it: it.age_s()),
    Measure("ranks", "Number of ranks.", lambda it: it.ranks),
    Measure(
        "generation",
        "Number of the generation: from 1, one more each time that ranks are lost, leave or join.",
        lambda it: it.generation,
    ),
    Measure("pes", "PEs by state.", lambda it: {"busy": it.busy, "idle": max(0, it.pes - it.busy)}, "state"),
    Measure(
        "loop_turns_per_second",
        "Turns per second of the host's busiest event loop, to one significant digit; 0 if below 20.",
        lambda it: {host.name: host.turns for host in it.hosts},
        "host",
    ),
    Measure("jobs", "Live jobs by state.", lambda it: dict.fromkeys(_STATES, 0) | dict(it.states), "state"),
    Measure(
        "user_jobs",
        "Live jobs by user.",
        lambda it: {name: user.jobs for name, user in it.users.items()},
        "user",
    ),
    Measure(
        "user_volume",
        "Workers by user.",
        lambda it: {name: user.volume for name, user in it.users.items()},
        "user",
    ),
    Measure(
        "group_jobs",
        "Live jobs by group, as USER.GROUP, for the groups that began last.",
        lambda it: {f"{group.user}.{group.name}": group.jobs for group in it.groups},
        "group",
    ),
    Measure("user_fair_share", "PEs that a user's jobs deserve, not rounded.", shares_by_user, "user"),
    Measure(
        "replies",
        "Replies by outcome.",
        lambda it: dict(sorted(it.totals.replies.items())),
        "outcome",
        is_counter=True,
    ),
    Measure("pe_seconds", "PE-seconds of jobs that have ended.", lambda it: it.totals.pe_s, is_counter=True),
    Measure(
        "cpu_seconds", "CPU seconds of jobs that have ended.", lambda it: it.totals.cpu_s, is_counter=True
    ),
)
