"""`mallob-py submit FILE`: write a job file for the service; with `--wait`, print the reply.

Without `--wait` it prints the path where the reply will be. FILE is a job's input, or a job
file (.json) that is handed over as it is but for the options given. Inputs are named by
absolute path, since the service has a folder of its own. While it waits, a line on standard
error says how the job is getting on, if that is a terminal.
Exit code with `--wait`: 0 for a result, 2 for an error reply.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import SubmitOptions
from mallob_py.cli.progress import ProgressLine
from mallob_py.service import client
from mallob_py.service.quantities import format_duration


def run(options: SubmitOptions) -> int:
    api_dir = Path(options.api_dir)
    submission = client.submit(api_dir, make_job(options), client=options.client)
    if not client.service_is_running(api_dir, options.client):
        print(f"mallob-py submit: no service is running on {api_dir}; the job waits for one", file=sys.stderr)
    if not options.wait:
        print(submission.reply_path)
        return 0
    progress = ProgressLine(options.api_dir, options.client)
    identity = submission.reply_path.name.removesuffix(".json")
    try:
        reply = client.wait(submission, meanwhile=lambda: progress.tick(identity))
    finally:
        progress.clear()
    print(json.dumps(reply, indent=2))
    return 2 if "error" in reply else 0


def make_job(options: SubmitOptions) -> dict[str, Any]:
    """The job file's content."""
    job = _from_job_file(options.files[0]) if _is_job_file(options) else _from_inputs(options.files)
    given = {
        "name": options.name,
        "user": options.user,
        "application": options.application,
        "priority": options.priority,
        "wallclock-limit": _limit(options.wallclock_limit_s),
        "cpu-limit": _limit(options.cpu_limit_s),
        "max-demand": options.max_demand,
    }
    job.update({field: value for field, value in given.items() if value is not None})
    job.setdefault("user", client.login_name())
    job.setdefault("name", _unused_name(options))
    return job


def _is_job_file(options: SubmitOptions) -> bool:
    return len(options.files) == 1 and options.files[0].endswith(".json")


def _from_inputs(files: tuple[str, ...]) -> dict[str, Any]:
    missing = [file for file in files if not os.path.exists(file)]
    if missing:
        raise CommandError(f"{missing[0]}: no such file")
    return {"files": [os.path.abspath(file) for file in files]} if files else {}


def _from_job_file(file: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from None
    except msgspec.MsgspecError as error:
        raise CommandError(f"{file}: not a job file: {error}") from None


def _limit(limit_s: float | None) -> str | None:
    return None if limit_s is None else format_duration(limit_s)


def _unused_name(options: SubmitOptions) -> str:
    stem = Path(options.files[0]).name.partition(".")[0] if options.files else options.application or "job"
    return f"{stem or 'job'}-{time.time_ns() // 1000}"
