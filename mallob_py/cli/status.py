"""`mallob-py status`: the service's live jobs and how many of its PEs are busy.

Exit code 0 while a service runs on the api-dir, 1 if none does.
"""

from __future__ import annotations

import sys

import msgspec

from mallob_py.cli.client_options import StatusOptions
from mallob_py.service.status_file import ServiceStatus, read_status
from mallob_py.text_table import format_table

_HEADER = ("id", "user", "name", "state", "priority", "volume", "demand", "elapsed [s]")


def run(options: StatusOptions) -> int:
    status = read_status(options.api_dir)
    if status is None or status.is_stale():
        last = "" if status is None else f" (its last sign of life is {status.age_s():.0f} s old)"
        print(f"mallob-py status: no service is running on {options.api_dir}{last}", file=sys.stderr)
        return 1
    print(msgspec.json.encode(status).decode() if options.json else describe(status))
    return 0


def describe(status: ServiceStatus) -> str:
    """The status as text."""
    summary = f"{status.busy} of {status.pes} PEs busy, {len(status.jobs)} jobs"
    if not status.jobs:
        return summary
    rows = [
        (job.id, job.user, job.name, job.state, job.priority, job.volume, job.demand, job.elapsed_s)
        for job in status.jobs
    ]
    return f"{summary}\n\n{format_table(_HEADER, rows)}"
