"""`mallob-py status`: the service's jobs and how busy its PEs are; or its hosts, or the jobs that ended last.

Exit code 0 while a service runs on the api-dir, 1 if none does.
"""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mallob_py.cli.client_options import StatusOptions
from mallob_py.cli.screen import summary
from mallob_py.cli.status_tables import (
    ENDED_COLUMNS,
    HOST_COLUMNS,
    JOB_COLUMNS,
    in_order,
    make_table,
    of_user,
)
from mallob_py.service.telemetry.status import ServiceStatus, read_status
from mallob_py.text_table import plain


def run(options: StatusOptions) -> int:
    status = read_status(options.api_dir)
    if status is None or status.is_stale():
        last = "" if status is None else f" (its last sign of life is {status.age_s():.0f} s old)"
        print(f"mallob-py status: no service is running on {options.api_dir}{last}", file=sys.stderr)
        return 1
    status = of_user(status, options.user)
    if options.json:
        print(msgspec.json.encode(status).decode())
        return 0
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    width = console.width if console.is_terminal else None
    for line in summary(status):
        console.print(line)
    table, rest = _table(options, status, width)
    if table.row_count:
        console.print()
        # Who reads it from a pipe gets whole lines.
        console.print(table if console.is_terminal else Text(plain(table)))
    if rest:
        console.print(rest)
    return 0


def _table(options: StatusOptions, status: ServiceStatus, width: int | None) -> tuple[Table, str]:
    """What is asked for, and what to say below it."""
    if options.hosts:
        return make_table(HOST_COLUMNS, status.hosts, width), ""
    if options.ended:
        rest = "" if status.ended else "none has ended yet"
        return make_table(ENDED_COLUMNS, status.ended[::-1], width), rest
    table = make_table(JOB_COLUMNS, in_order(status.jobs, options.sort), width)
    omitted = status.job_count - len(status.jobs)
    return table, f"... and {omitted} more jobs" if omitted > 0 else ""
