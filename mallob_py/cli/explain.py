"""`mallob-py explain USER.NAME` (or an id): why a job waits, has the volume it has, or how it has ended.

Reads the api folder only. Exit code 0; 2 if there is no such job.
"""

from __future__ import annotations

import time
from pathlib import Path

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import ExplainOptions
from mallob_py.cli.status_text import printable
from mallob_py.service import client
from mallob_py.service.client import PendingJobs
from mallob_py.service.store.entries import reply_name
from mallob_py.service.telemetry.explanation import explain, explain_ended
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus, read_live_status


def run(options: ExplainOptions) -> int:
    status = read_live_status(options.api_dir)
    for line in _explained(options, status):
        print(printable(line))
    return 0


def _explained(options: ExplainOptions, status: ServiceStatus | None) -> list[str]:
    if status is not None and (job := _live(status, options.job, options.client)) is not None:
        return explain(status, job)
    identity, client_index = options.job, options.client
    if identity.isdecimal():
        identity, client_index = _identity_of_ended(status, identity)
    client_dir = client.folder_of(Path(options.api_dir), client_index)
    if identity in PendingJobs(client_dir).look().identities:
        return [f"{identity} is handed in and has no reply yet.", _why_unlisted(status)]
    path = client_dir / "out" / reply_name(identity)
    if (reply := client.read_reply(path)) is None:
        raise CommandError(f"no job {identity} in {client_dir}, neither live nor ended")
    return [*explain_ended(identity, reply, time.time() - path.stat().st_mtime), f"Its reply is {path}."]


def _live(status: ServiceStatus, wanted: str, client_index: int) -> JobStatus | None:
    if wanted.isdecimal():
        return next((job for job in status.jobs if job.id == int(wanted)), None)
    return status.job(wanted, client_index)


def _identity_of_ended(status: ServiceStatus | None, number: str) -> tuple[str, int]:
    """Raises CommandError if it is not among the last ones."""
    for job in status.ended if status is not None else ():
        if job.id == int(number) and job.user:
            return f"{job.user}.{job.name}", job.client
    raise CommandError(f"no listed job has the id {number}; say USER.NAME of one that has ended a while ago")


def _why_unlisted(status: ServiceStatus | None) -> str:
    if status is None:
        return "No service is running: the next one on this folder runs it."
    if status.job_count > len(status.jobs):
        return (
            f"It waits among {status.job_count} live jobs, of which the status lists the "
            f"{len(status.jobs)} first ones."
        )
    return "The service has not listed it yet; it does so once a second."
