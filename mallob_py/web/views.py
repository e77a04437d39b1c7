"""Jobs, users and the service as HTTP tells of them: what the schemas describe, and what it is made of.

A job is seen in three ways: in the service's status, as a record of what was handed in here, or in what
the service tells of jobs that ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mallob_py.service.job_file import identity_of
from mallob_py.service.status_file import EndedJob, HostStatus, JobStatus, ServiceStatus
from mallob_py.web.shares import shares_by_user
from mallob_py.web.store import Ended, Record, Signature, now


class ServiceState(msgspec.Struct, frozen=True):
    """Whether a service runs on the api folder, and how busy it is. Ages in seconds.

    `states`: how many live jobs are in each.
    """

    running: bool
    last_sign_of_life: float | None = None
    ranks: int = 0
    pes: int = 0
    busy: int = 0
    up: float = 0.0
    states: Mapping[str, int] = {}
    hosts: list[HostStatus] = []


class UserState(msgspec.Struct, frozen=True):
    """A user with live jobs: their workers, and the PEs that they deserve, not rounded."""

    user: str
    jobs: int
    volume: int
    fair_share: float


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job. Times in seconds; `volume` is its number of workers, `fair_share` the PEs that it deserves.

    `number` is its number in the service, once it has one. `ended` is there once it has a reply.
    """

    user: str
    name: str
    key: str
    state: str
    id: str = ""
    number: int = 0
    application: str = ""
    client: int = 0
    priority: float = 1.0
    volume: int = 0
    demand: int = 0
    fair_share: float = 0.0
    age: float = 0.0
    pe_seconds: float = 0.0
    cpu_seconds: float = 0.0
    ended: Ended | None = None


class Overview(msgspec.Struct, frozen=True):
    """Live jobs (all that run, some of those that wait), their users, and what ended last, of all clients."""

    service: ServiceState
    users: list[UserState]
    jobs: list[Job]
    recent: list[Job]


def job_of_status(job: JobStatus, ids: Mapping[tuple[int, str], str], shares: Mapping[int, float]) -> Job:
    """Live, as the service tells. `ids`: submissions by client and name; `shares`: by number."""
    return Job(
        user=job.user,
        name=job.name,
        key=job.identity,
        state=job.state,
        id=ids.get((job.client, job.identity), ""),
        application=job.application,
        client=job.client,
        priority=job.priority,
        volume=job.volume,
        demand=job.demand,
        number=job.id,
        fair_share=shares.get(job.id, 0.0),
        age=job.elapsed_s,
        pe_seconds=job.pe_s,
        cpu_seconds=job.cpu_s,
    )


def queued_job(record: Record) -> Job:
    """Handed in, and not yet in the service's status."""
    age_s = max(0.0, now() - record.submitted)
    return _job_of_record(record, "queued", age_s)


def ended_job(record: Record) -> Job:
    """Handed in here, and its reply has been seen."""
    assert record.ended is not None
    total_s = record.ended.stats.get("time", {}).get("total", 0.0)
    return _job_of_record(record, "ended", total_s)


def _job_of_record(record: Record, state: str, age_s: float) -> Job:
    return Job(
        user=record.user,
        name=record.name,
        key=record.identity,
        state=state,
        id=record.id,
        application=record.application,
        client=record.client,
        age=age_s,
        ended=record.ended,
    )


def users_of(status: ServiceStatus) -> list[UserState]:
    """Those with live jobs, the largest first."""
    shares = shares_by_user(status)
    users = [
        UserState(name, user.jobs, user.volume, shares.get(name, 0.0)) for name, user in status.users.items()
    ]
    return sorted(users, key=lambda user: (-user.volume, -user.fair_share, user.user))


def job_told_of(job: EndedJob, error_text: str) -> Job:
    """An end that the service tells of; `error_text` is what may be shown of its error."""
    error = {"field": "", "message": error_text} if error_text else None
    stats = {"time": {"total": job.total_s}, "used_pe_seconds": job.pe_s, "used_cpu_seconds": job.cpu_s}
    ended = Ended(job.outcome, resultstring=job.result, error=error, stats=stats, at=job.ended, number=job.id)
    return Job(
        user=job.user,
        name=job.name,
        key=identity_of(job.user, job.name),
        state="ended",
        number=job.id,
        application=job.application,
        client=job.client,
        priority=job.priority,
        age=job.total_s,
        pe_seconds=job.pe_s,
        cpu_seconds=job.cpu_s,
        ended=ended,
    )


def end_of(job: Job) -> float:
    """When it was (since 1970); 0 if it is to come."""
    return 0.0 if job.ended is None else job.ended.at


def summary_of(reply: Mapping[str, Any], signature: Signature | None) -> Ended:
    """A reply in short; `signature` is that of its file, None if it was not kept."""
    result = reply.get("result", {})
    return Ended(
        outcome=str(result.get("outcome", "")),
        resultcode=int(result.get("resultcode", 0)),
        resultstring=str(result.get("resultstring", "")),
        solver=str(result.get("solver", "")),
        error=reply.get("error"),
        stats=reply.get("stats", {}),
        warnings=[str(warning) for warning in reply.get("warnings", ())],
        at=now() if signature is None else signature[1] / 1e9,
        number=int(reply.get("internal_id", 0)),
    )
