"""`mallob-py interrupt USER.NAME|ID`: ask the service to end a job, and see that it does.

An identity such as `a.b.c` can be user `a` or user `a.b`; the service's list of live jobs
decides, and where it does not know the job, the user ends at the first dot. An id is that of
`status` and of the log; which job has it stands in the journal.
"""

from __future__ import annotations

import json
from pathlib import Path

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import InterruptOptions
from mallob_py.service import client
from mallob_py.service.jobs.job_file import identity_of
from mallob_py.service.store.entries import Claimed, read_entries
from mallob_py.service.telemetry.status import read_status

# The reply to a job that is being ended takes milliseconds, unless the service is in trouble.
_REPLY_TIMEOUT_S = 30.0


def run(options: InterruptOptions) -> int:
    api_dir = Path(options.api_dir)
    if not client.service_is_running(api_dir, options.client):
        raise CommandError(f"no service is running on {api_dir}")
    client_dir = client.folder_of(api_dir, options.client)
    if options.job.isdecimal():
        user, name = _of_id(client_dir, int(options.job))
    else:
        user, name = _split(api_dir, options.job)
    submission = client.interrupt(api_dir, user, name, client=options.client)
    try:
        reply = client.wait(submission, _REPLY_TIMEOUT_S)
    except TimeoutError as error:
        raise CommandError(str(error)) from None
    if "error" in reply:
        raise CommandError(str(reply["error"].get("message", reply["error"])))
    print(f"{identity_of(user, name)} has ended; its reply is {submission.reply_path}")
    return 0


def _of_id(client_dir: Path, number: int) -> tuple[str, str]:
    """User and name of a live job. Raises CommandError if there is none with this id."""
    try:
        for entry in read_entries(client_dir / "journal"):
            if isinstance(entry, Claimed) and entry.internal_id == number:
                fields = json.loads((client_dir / "journal" / entry.entry).read_bytes())
                return str(fields["user"]), str(fields["name"])
    except (OSError, ValueError, TypeError, KeyError):
        pass  # it has just ended, or is no job
    raise CommandError(f"no live job has the id {number} (it may have ended already)")


def _split(api_dir: Path, identity: str) -> tuple[str, str]:
    status = read_status(api_dir)
    for job in status.jobs if status is not None else ():
        if f"{job.user}.{job.name}" == identity:
            return job.user, job.name
    user, _, name = identity.partition(".")
    return user, name
