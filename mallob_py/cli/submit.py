"""`mallob-py submit FILE...`: write job files for the service; with `--wait`, print the replies.

Each FILE is a formula (or another input) and becomes a job, or is a job file (.json) that is handed over
as it is but for the options given. Without `--wait` the jobs' names are printed, as USER.NAME. Paths of
inputs in job files may be relative to the folder of the job file: they are made absolute here, since the
service has a folder of its own. While it waits, a line on standard error says how the job is getting on,
if that is a terminal.

A proof, a core or a file of solutions is written by the service below its folder for results, and brought
to where it was asked for when the reply is there.

Exit codes when it waits: 0 for results, 2 for an error reply, 130 after Ctrl-C; with `--output-format sat`
and one job 10, 20 or 0 by its answer.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.cli import CommandError
from mallob_py.cli.awaiting import ReplyPrinter, say_what_goes_on
from mallob_py.cli.client_options import SubmitOptions
from mallob_py.cli.progress import ProgressLine
from mallob_py.service import client
from mallob_py.service.client import PendingJobs
from mallob_py.service.jobs.job_file import format_duration, identity_of, unfit_for_file_name

_POLL_DELAY_S = 0.05
_STEM_SIZE_MAX = 60


def run(options: SubmitOptions) -> int:
    api_dir = Path(options.api_dir)
    jobs = make_jobs(options)
    submissions = [(job, client.submit(api_dir, job, client=options.client)) for job in jobs]
    if not client.service_is_running(api_dir, options.client):
        print(f"mallob-py submit: no service is running on {api_dir}; jobs wait for one", file=sys.stderr)
    if not options.waits:
        for job in jobs:
            print(_identity(job))
        return 0
    progress = ProgressLine(options.api_dir, options.client)
    printer = ReplyPrinter("submit", options.output_format, len(jobs))
    awaited = [_identity(job) for job in jobs]
    try:
        for job, submission in submissions:
            identity = awaited[0]
            meanwhile = _ticking(progress, identity)
            if job.get("done") is True:
                client_dir = client.folder_of(api_dir, options.client)
                reply = _await_end_of_chain(client_dir, submission, meanwhile)
            else:
                reply = client.wait(submission, meanwhile=meanwhile)
            progress.clear()
            if reply is None:
                print(f"{identity}: the chain of {job.get('precursor')} has ended", flush=True)
            else:
                _bring_results(options, reply)
                printer.print(identity, reply)
            del awaited[0]
    except KeyboardInterrupt:
        progress.clear()
        return say_what_goes_on("submit", awaited, options.api_dir, options.client)
    finally:
        progress.clear()
    return printer.exit_code


def _ticking(progress: ProgressLine, identity: str) -> Callable[[], None]:
    return lambda: progress.tick(identity)


def _await_end_of_chain(
    client_dir: Path, submission: client.Submission, meanwhile: Callable[[], None]
) -> dict[str, Any] | None:
    """The only kind of job file that gets no reply, unless it is refused."""
    jobs = PendingJobs(client_dir)
    identity = submission.reply_path.name.removesuffix(".json")
    while True:
        look = jobs.look()
        if submission.file_name not in look.file_names and identity not in look.identities:
            return client.reply_to(submission)
        meanwhile()
        time.sleep(_POLL_DELAY_S)


# --- results ------------------------------------------------------------------------------


def _result_name(options: SubmitOptions, target: str) -> str:
    """Below the service's folder for results, where a job writes to new files only."""
    return f"{_unused_name(options.files[0])}-{os.path.basename(target)}"


def _bring_results(options: SubmitOptions, reply: dict[str, Any]) -> None:
    """To where they were asked for. What is there belongs to another answer, if this one has none."""
    written_files = reply.get("result", {}).get("result-files", {})
    for key, target in options.results.items():
        written = written_files.get(key)
        try:
            if written is not None:
                unfinished = f"{target}.{os.getpid()}.part"
                shutil.copyfile(written, unfinished)
                os.replace(unfinished, target)
                with suppress(OSError):  # the folder may be another user's
                    os.unlink(written)
                written_files[key] = os.path.abspath(target)
            elif "error" not in reply and os.path.isfile(target):
                os.unlink(target)
        except OSError as error:
            raise CommandError(f"{error.filename or target}: {error.strerror}") from None


# --- job files ----------------------------------------------------------------------------


def make_jobs(options: SubmitOptions) -> list[dict[str, Any]]:
    """The job files' contents. Raises CommandError."""
    if not options.files:
        return [_completed({}, "", options)]
    return [_completed(_fields_of(file), file, options) for file in options.files]


def _fields_of(file: str) -> dict[str, Any]:
    if file.endswith(".json"):
        return _from_job_file(file)
    _check_is_there(file)
    return {"files": [os.path.abspath(file)]}


def _completed(job: dict[str, Any], file: str, options: SubmitOptions) -> dict[str, Any]:
    """With what the command line says."""
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
    results = {key: _result_name(options, target) for key, target in options.results.items()}
    wishes = options.configuration_with({"portfolio": options.portfolio, "seed": options.seed, **results})
    if wishes:
        configuration = job.get("configuration", {})
        if not isinstance(configuration, dict):
            raise CommandError(f"{file}: configuration: not an object")
        job["configuration"] = configuration | wishes
    job.setdefault("user", client.login_name())
    job.setdefault("name", _unused_name(file or options.application or "job"))
    for field in ("user", "name"):
        if problem := unfit_for_file_name(str(job[field])):
            raise CommandError(f"the {field} {str(job[field])[:60]!r} {problem}")
    return job


def _check_is_there(file: str) -> None:
    try:
        os.stat(file)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None


def _from_job_file(file: str) -> dict[str, Any]:
    try:
        job = msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{file}: not a job file: {error}") from None
    _make_paths_absolute(job, os.path.dirname(os.path.abspath(file)))
    return job


def _make_paths_absolute(job: dict[str, Any], folder: str) -> None:
    """Nonsense is left to the service, which says what is wrong with it."""

    def absolute(path: Any) -> Any:
        if not isinstance(path, str) or not path or os.path.isabs(path):
            return path
        return os.path.normpath(os.path.join(folder, path))

    for field in ("file", "files"):
        if isinstance(named := job.get(field), list):
            job[field] = [_existing(path, absolute(path)) for path in named]
        elif isinstance(named, str):
            job[field] = _existing(named, absolute(named))


def _existing(written: Any, absolute: Any) -> Any:
    """Whoever wrote a relative path means a file that is here."""
    if written != absolute:
        _check_is_there(absolute)
    return absolute


def _limit(limit_s: float | None) -> str | None:
    return None if limit_s is None else format_duration(limit_s)


def _identity(job: dict[str, Any]) -> str:
    return identity_of(str(job["user"]), str(job["name"]))


def _unused_name(file: str) -> str:
    """Made of the file's name, as far as that is fit for one."""
    stem = Path(file).name.partition(".")[0].lstrip("~")
    stem = "".join(letter if letter.isprintable() else "_" for letter in stem)
    stem = stem.encode(errors="replace")[:_STEM_SIZE_MAX].decode(errors="ignore")
    return f"{stem or 'job'}-{time.time_ns() // 1000}"
