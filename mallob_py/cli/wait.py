"""`mallob-py wait USER.NAME...`: wait for jobs that were handed in before, and print their replies.

A job that has ended already has its reply printed at once. Works without a service too: what is
in its folder waits until one runs.
Exit code: 0 for results, 2 if one of the replies is an error or there is no such job.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import WaitOptions
from mallob_py.cli.progress import ProgressLine
from mallob_py.service import client
from mallob_py.service.entries import reply_name
from mallob_py.service.pending import PendingJobs

_POLL_DELAY_S = 0.05


def run(options: WaitOptions) -> int:
    client_dir = client.folder_of(Path(options.api_dir), options.client)
    jobs = PendingJobs(client_dir)
    known = jobs.look().identities
    for identity in options.identities:
        if identity not in known and not _reply_path(client_dir, identity).exists():
            raise CommandError(f"no job {identity} in {client_dir}, neither live nor ended")
    progress = ProgressLine(options.api_dir, options.client)
    errors = 0
    try:
        for identity in options.identities:
            reply = _await(client_dir, jobs, identity, progress)
            progress.clear()
            print(json.dumps(reply, indent=2), flush=True)
            errors += "error" in reply
    finally:
        progress.clear()
    return 2 if errors else 0


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
