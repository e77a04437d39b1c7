"""`mallob-py logs USER.NAME|ID`: prints the output of a job's workers, during the job or after its end.

Only the last one or two megabytes of the output are kept. `--follow` prints further output until the job
ends. On a terminal, control characters are escaped. Exit code: 0; 2 if there is no such job.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import LogsOptions
from mallob_py.cli.values import printable
from mallob_py.runtime.notices import say
from mallob_py.service import client
from mallob_py.service.client import PendingJobs
from mallob_py.service.telemetry.history import read_history
from mallob_py.service.telemetry.printed import Printed, number_of
from mallob_py.service.telemetry.status import read_live_status

_PERIOD_S = 0.2


def run_logs(options: LogsOptions) -> int:
    api_dir = Path(options.api_dir)
    client_dir = client.folder_of(api_dir, options.client)
    pending = PendingJobs(client_dir)

    def is_live() -> bool:
        if not options.job.isdecimal():
            return options.job in pending.look().identities
        status = read_live_status(options.api_dir)
        return status is not None and any(job.id == int(options.job) for job in status.jobs)

    printed: Printed | None = None
    has_printed = False
    while True:
        goes_on = is_live()  # asked before reading, so that no output at the end is missed
        if printed is None and (number := _number_of(options, api_dir)) is not None:
            printed = Printed(api_dir, number)
        if printed is None and not goes_on:
            raise CommandError(client.unknown_job(client_dir, options.job))
        has_printed |= printed is not None and _write(printed)
        if not goes_on or not options.follow:
            break
        time.sleep(_PERIOD_S)
    if not has_printed:
        is_number = options.job.isdecimal() and not goes_on
        if is_number and all(int(options.job) != job.id for job in read_history(api_dir)):
            raise CommandError(client.unknown_job(client_dir, options.job))
        say(f"mallob-py logs: {options.job} has printed nothing")
    return 0


def _number_of(options: LogsOptions, api_dir: Path) -> int | None:
    return int(options.job) if options.job.isdecimal() else number_of(api_dir, options.client, options.job)


def _write(printed: Printed) -> bool:
    """Write the new output, with control characters escaped on a terminal; return whether there was any."""
    if sys.stdout.isatty():
        news = "\n".join(map(printable, printed.text().expandtabs().split("\n"))).encode()
    else:
        news = printed.news()
    sys.stdout.buffer.write(news)
    sys.stdout.flush()
    return bool(news)
