"""`mallob-py wait USER.NAME...`: wait for jobs that were handed in before, and print their replies.

A job that has ended already has its reply printed at once. Works without a service too: what is
in its folder waits until one runs.
Exit code: 0 for results, 2 if one of the replies is an error or there is no such job, 130 after Ctrl-C;
with `--output-format sat` and one job 10, 20 or 0 by its answer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mallob_py.cli import CommandError
from mallob_py.cli.awaiting import ReplyPrinter, say_what_goes_on
from mallob_py.cli.client_options import WaitOptions
from mallob_py.cli.progress import ProgressLine
from mallob_py.service import client
from mallob_py.service.client import PendingJobs
from mallob_py.service.store.entries import reply_name

_POLL_DELAY_S = 0.05


def run(options: WaitOptions) -> int:
    client_dir = client.folder_of(Path(options.api_dir), options.client)
    jobs = PendingJobs(client_dir)
    known = jobs.look().identities
    for identity in options.identities:
        if identity not in known and client.signature_of(_reply_path(client_dir, identity)) is None:
            raise CommandError(f"no job {identity} in {client_dir}, neither live nor ended")
    progress = ProgressLine(options.api_dir, options.client)
    printer = ReplyPrinter("wait", options.output_format, len(options.identities))
    awaited = list(options.identities)
    try:
        while awaited:
            reply = _await(client_dir, jobs, awaited[0], progress)
            progress.clear()
            printer.print(awaited[0], reply)
            del awaited[0]
    except KeyboardInterrupt:
        progress.clear()
        return say_what_goes_on("wait", awaited, options.api_dir, options.client)
    finally:
        progress.clear()
    return printer.exit_code


def _await(client_dir: Path, jobs: PendingJobs, identity: str, progress: ProgressLine) -> dict[str, Any]:
    while identity in jobs.look().identities:
        progress.tick(identity)
        time.sleep(_POLL_DELAY_S)
    path = _reply_path(client_dir, identity)
    reply = client.read_reply(path)
    if reply is None:
        raise CommandError(f"{path} is gone; somebody has removed it")
    return reply


def _reply_path(client_dir: Path, identity: str) -> Path:
    return client_dir / "out" / reply_name(identity)
