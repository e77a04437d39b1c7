"""`mallob-py interrupt USER.NAME`: ask the service to end a job, and see that it does.

An identity such as `a.b.c` can be user `a` or user `a.b`; the service's list of live jobs
decides, and where it does not know the job, the user ends at the first dot.
"""

from __future__ import annotations

from pathlib import Path

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import InterruptOptions
from mallob_py.service import client
from mallob_py.service.status_file import read_status

# The reply to a job that is being ended takes milliseconds, unless the service is in trouble.
_REPLY_TIMEOUT_S = 30.0


def run(options: InterruptOptions) -> int:
    api_dir = Path(options.api_dir)
    if not client.service_is_running(api_dir, options.client):
        raise CommandError(f"no service is running on {api_dir}")
    user, name = _split(api_dir, options.identity)
    submission = client.interrupt(api_dir, user, name, client=options.client)
    try:
        reply = client.wait(submission, _REPLY_TIMEOUT_S)
    except TimeoutError as error:
        raise CommandError(str(error)) from None
    if "error" in reply:
        raise CommandError(str(reply["error"].get("message", reply["error"])))
    print(f"{options.identity} has ended; its reply is {submission.reply_path}")
    return 0


def _split(api_dir: Path, identity: str) -> tuple[str, str]:
    status = read_status(api_dir)
    for job in status.jobs if status is not None else ():
        if f"{job.user}.{job.name}" == identity:
            return job.user, job.name
    user, _, name = identity.partition(".")
    return user, name
