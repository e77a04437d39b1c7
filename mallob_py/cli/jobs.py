"""`mallob-py submit | wait | explain | interrupt`: handle the jobs of a running service, from outside.

`submit FILE...` writes job files. Each FILE is a formula or another input, for which a job is made, or a job
file (.json), which is submitted as it is, changed only by options. Without `--wait`, the jobs' names are
printed as USER.NAME. Paths of inputs in a job file may be relative to the folder of the job file: `submit`
makes them absolute, because the service runs in another folder. The service writes a proof, a core or a file
of solutions into its folder for results; `submit` moves the file to the requested place after the reply.

`wait USER.NAME...` waits for jobs that were submitted before. The reply to an ended job is printed at once.
`wait` works without a service, too: submitted jobs stay in the service's folder until a service runs. While
`submit` and `wait` wait, a line on standard error shows the job's progress if standard error is a terminal.

`explain USER.NAME|ID` explains why a job waits, has its volume, or has ended. `interrupt USER.NAME|ID...`
requests the end of jobs and waits until they have ended. NAME alone is your own job. In an identity
such as `a.b.c`, the user can be `a` or `a.b`: the service's list of live jobs decides; if the job is not
listed, the user's name ends at the first dot. ID is the job's number in `status` and in the log.

With `--group`, `wait` and `interrupt` handle all jobs of a group, at any client of the service: `wait`
prints the table of `results`. `submit` assigns several jobs to a group, and resubmits failed jobs of a group.

Exit codes of waiting commands: 0 for results, 2 for an error reply or if there is no such job, 130 after
Ctrl-C; for one job with `--output-format sat` 10, 20 or 0 by its answer. Exit codes of other commands: 0;
2 if there is no such job.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mallob_py.applications import (
    DEFAULT_APPLICATION,
    UnknownApplication,
    application_of,
    declaration_of,
    options_of,
)
from mallob_py.cli import CommandError
from mallob_py.cli.client_options import (
    JSON,
    TABLE,
    ExplainOptions,
    InterruptOptions,
    SubmitOptions,
    WaitOptions,
)
from mallob_py.cli.groups import command_for, find_group, look
from mallob_py.cli.interrupts import INTERRUPTED
from mallob_py.cli.reply_text import answer_table, json_text
from mallob_py.cli.values import age_text, far_text, is_descriptor, printable
from mallob_py.kit.declaration import exit_code_of
from mallob_py.runtime.notices import say
from mallob_py.service import JobFileError, ServiceError, client
from mallob_py.service.client import PendingJobs
from mallob_py.service.jobs.job_file import FIELD_NAMES, decode_fields, identity_of, unfit_for_file_name
from mallob_py.service.store.entries import Claimed, read_entries, reply_name
from mallob_py.service.telemetry.groups import GroupKey, GroupWatch, kind_of, rest
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus, read_live_status, read_status

if TYPE_CHECKING:
    from rich.live import Live


_POLL_DELAY_S = 0.05
_STEM_SIZE_MAX = 60
#: longest wait for the reply to an interrupted job, which usually takes milliseconds
_REPLY_TIMEOUT_S = 30.0
#: greatest number of missing dependencies that a message names
_NAMED_MAX = 5
#: period of the line that shows a job's progress
_PERIOD_S = 0.5


# --- submit --------------------------------------------------------------------------------


def run_submit(options: SubmitOptions) -> int:
    api_dir = Path(options.api_dir)
    jobs = make_jobs(options)
    _say_what_is_missing(jobs, client.folder_of(api_dir, options.client))
    submissions: list[tuple[dict[str, Any], client.Submission]] = []
    try:
        for job in jobs:
            submissions.append((job, client.submit(api_dir, job, client=options.client)))
    except (KeyboardInterrupt, ServiceError):
        if submissions and len(jobs) > 1:
            _say_what_is_handed_in(options, jobs, len(submissions))
        raise
    if not client.service_is_running(api_dir, options.client):
        say(f"mallob-py submit: no service is running on {api_dir}; jobs wait for one")
    if len(jobs) > 1 and options.again_of is None:
        _say_what_is_handed_in(options, jobs, len(jobs))
    if not options.waits:
        for job in jobs:
            print(_identity(job))
        return 0
    progress = ProgressLine(options.api_dir, options.client)
    printer = ReplyPrinter("submit", options.output_format, len(jobs))
    rows: list[tuple[dict[str, Any], str, dict[str, Any]]] = []
    awaited = [_identity(job) for job in jobs]
    try:
        for job, submission in submissions:
            identity = awaited[0]
            meanwhile = _ticking(progress, identity)
            reply: dict[str, Any] | None
            if (silence := _silence(job)) is None:
                reply = client.wait(submission, meanwhile=meanwhile)
            else:
                client_dir = client.folder_of(api_dir, options.client)
                reply = _await_settled(client_dir, submission, meanwhile)
            progress.clear()
            if reply is None:
                print(f"{identity}: {silence}", flush=True)
            else:
                _bring_results(options, reply)
                if options.output_format == TABLE:
                    rows.append((_settings_of(options, job), identity, reply))
                else:
                    printer.print(identity, reply)
            del awaited[0]
    except KeyboardInterrupt:
        progress.clear()
        return say_what_goes_on("submit", awaited, options.api_dir, options.client, _group_of(jobs))
    finally:
        progress.clear()
        if rows:
            print(answer_table(rows))
    return 2 if any("error" in reply for _, _, reply in rows) else printer.exit_code


def _say_what_is_handed_in(options: SubmitOptions, jobs: Sequence[Mapping[str, Any]], count: int) -> None:
    """Print the jobs' group, which may have a new name, and a command for this group."""
    if (key := _group_of(jobs)) is None:
        return
    user, group = key
    if count == len(jobs):
        how = command_for("results", group, user, options.api_dir)
        say(f"mallob-py submit: {count} jobs, group {group}; to see their progress: {how}")
    else:
        end = command_for("interrupt", group, user, options.api_dir)
        say(f"mallob-py submit: {count} of {len(jobs)} jobs are handed in, group {group}; to end them: {end}")


def _group_of(jobs: Sequence[Mapping[str, Any]]) -> GroupKey | None:
    """Return the common group of several jobs; None if they have none, or for a single job."""
    keys = {(str(job["user"]), str(job.get("group", ""))) for job in jobs}
    key = keys.pop()
    return None if keys or not key[1] or len(jobs) == 1 else key


def _say_what_is_missing(jobs: Sequence[Mapping[str, Any]], client_dir: Path) -> None:
    """Report dependencies that are not submitted yet, so that a user can notice a misspelt name."""
    named = [job[key] for job in jobs for key in ("dependencies", "after-ok") if key in job]
    asked = {one for names in named if isinstance(names, list) for one in names if isinstance(one, str)}
    asked = {one for one in asked if not unfit_for_file_name(one)}.difference(map(_identity, jobs))
    if missing := client.not_handed_in(client_dir, sorted(asked)):
        names = printable(", ".join(missing[:_NAMED_MAX])) + (", ..." if len(missing) > _NAMED_MAX else "")
        text = f"nobody has handed in {names} yet; dependent jobs wait until somebody does"
        say(f"mallob-py submit: {text}")


def _settings_of(options: SubmitOptions, job: Mapping[str, Any]) -> dict[str, Any]:
    return {key: job["configuration"][key] for key, _ in options.settings}


def _ticking(progress: ProgressLine, identity: str) -> Callable[[], None]:
    return lambda: progress.tick(identity)


def _silence(job: Mapping[str, Any]) -> str | None:
    """Return what it means if a job file gets no reply; None: the file gets a reply in any case."""
    if job.get("interrupt") is True:
        return "no such job is live" if job.get("quiet") is True else None
    return f"the chain of {job.get('precursor')} has ended" if job.get("done") is True else None


def _await_settled(
    client_dir: Path, submission: client.Submission, meanwhile: Callable[[], None]
) -> dict[str, Any] | None:
    """Wait until a job file that may get no reply is settled; return the reply, if any."""
    jobs = PendingJobs(client_dir)
    identity = submission.reply_path.name.removesuffix(".json")
    while True:
        look = jobs.look()
        if submission.file_name not in look.file_names and identity not in look.identities:
            return client.reply_to(submission)
        meanwhile()
        time.sleep(_POLL_DELAY_S)


# --- submit: results ------------------------------------------------------------------------------


def _result_name(options: SubmitOptions, target: str) -> str:
    """Return a new file name for the service's folder of results, where jobs must not overwrite files."""
    return f"{_unused_name(options.files[0])}-{os.path.basename(target)}"


def _bring_results(options: SubmitOptions, reply: dict[str, Any]) -> None:
    """Move result files to the requested places; a file that the answer lacks is removed from its place."""
    written_files = reply.get("result", {}).get("result-files", {})
    for key, target in options.results.items():
        written = written_files.get(key)
        try:
            if written is not None:
                unfinished = f"{target}.{os.getpid()}.part"
                shutil.copyfile(written, unfinished)
                os.replace(unfinished, target)
                with suppress(OSError):  # the folder may belong to another user
                    os.unlink(written)
                written_files[key] = os.path.abspath(target)
            elif "error" not in reply and os.path.isfile(target):
                os.unlink(target)
        except OSError as error:
            raise CommandError(f"{error.filename or target}: {error.strerror}") from None


# --- submit: job files ----------------------------------------------------------------------------


def make_jobs(options: SubmitOptions) -> list[dict[str, Any]]:
    """Return the contents of the job files. Raises CommandError."""
    if options.again_of is not None:
        (settings,) = options.combinations()
        return [_completed(fields, "", options, settings) for fields in _jobs_again(options)]
    jobs = []
    for named in options.files or ("",):
        file = "/dev/stdin" if named == "-" else named
        for number, settings in enumerate(options.combinations(), 1):
            job = _completed(_fields_of(file) if file else {}, file, options, settings)
            if options.is_sweep:
                job["name"] = f"{job['name']}-{number}"
            jobs.append(job)
    if len(jobs) > 1:
        first = options.files[0] if options.files else options.application or "job"
        group = _unused_name(options.name or first)
        for job in jobs:
            job.setdefault("group", group)
    return jobs


def _jobs_again(options: SubmitOptions) -> Iterator[dict[str, Any]]:
    """Yield the fields of a group's failed or unsolved jobs, taken from their replies.

    Raises CommandError if there is no such job.
    """
    api_dir = Path(options.api_dir)
    group = find_group(look(options.api_dir), options.again_of, options.user or client.login_name())
    kinds = ("failed",) if options.failed_of else ("failed", "unsolved")
    wanted = [job for job in group.results() if kind_of(job) in kinds]
    found = 0
    for job in wanted:
        path = _reply_path(api_dir / f"jobs.{job.client}", identity_of(job.user, job.name))
        reply = client.read_reply(path) or {}
        if reply.get("name") == job.name and reply.get("internal_id") == job.id:
            found += 1
            yield {key: value for key, value in reply.items() if key in FIELD_NAMES}
    what = "has failed" if options.failed_of else "has ended without a result"
    if not wanted:
        raise CommandError(f"no job of the group {printable(group.name)} {what}")
    if missing := len(wanted) - found:
        text = f"{missing} of {len(wanted)} jobs cannot be handed in again: refused, or replies were removed"
        if not found:
            raise CommandError(text)
        say(f"mallob-py submit: {text}")


def _fields_of(file: str) -> dict[str, Any]:
    if file.endswith(".json"):
        return _from_job_file(file)
    _check_is_there(file)
    if is_descriptor(file) or file == "/dev/stdin":
        open_file = os.path.realpath(file)
        if not os.path.isfile(open_file):
            raise CommandError(
                f"{file} is open in this shell alone; write it to a file that the service can read"
            )
        file = open_file
    job: dict[str, Any] = {"files": [os.path.abspath(file)]}
    if (application := application_of(file)) != DEFAULT_APPLICATION:
        job["application"] = application
    return job


def _completed(
    job: dict[str, Any], file: str, options: SubmitOptions, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Complete a job's fields by the options, and its configuration by `settings`; return the job."""
    given = {
        "name": options.name,
        "user": options.user,
        "application": options.application,
        "group": options.group,
        **options.terms,
    }
    job.update({field: value for field, value in given.items() if value is not None})
    results = {key: _result_name(options, target) for key, target in options.results.items()}
    application = str(job.get("application", DEFAULT_APPLICATION))
    wishes = options.configuration_with(results) | _as_declared(application, settings)
    configuration = job.get("configuration", {})
    if isinstance(configuration, dict):
        own = {key: value for key, value in configuration.items() if key not in wishes}
        _as_declared(application, own, f"{file}: configuration:")
    if wishes:
        if not isinstance(configuration, dict):
            raise CommandError(f"{file}: configuration: not an object")
        job["configuration"] = configuration | wishes
    for field, further in (("dependencies", options.after), ("after-ok", options.after_ok)):
        if further:
            if not isinstance(before := job.get(field, []), list):
                raise CommandError(f"{file}: {field}: not a list")
            job[field] = [*before, *further]
    job.setdefault("user", client.login_name())
    job.setdefault("name", _unused_name(file or options.application or "job"))
    for field in ("user", "name"):
        if problem := unfit_for_file_name(str(job[field])):
            raise CommandError(f"the {field} {str(job[field])[:60]!r} {problem}")
    return job


def _as_declared(application: str, settings: Mapping[str, Any], where: str = "--set") -> dict[str, Any]:
    """Parse texts and numbers among the settings by the application's declared options; keep other values.

    `where`: where the settings stand, for messages. Raises CommandError.
    """
    declared = options_of(application)
    values = dict(settings)
    for key, value in settings.items():
        if key in declared and isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                values[key] = declared[key].parse(str(value))
            except ValueError as error:
                raise CommandError(f"{where} {key}: {error}") from None
    return values


def _check_is_there(file: str) -> None:
    try:
        os.stat(file)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None


def _from_job_file(file: str) -> dict[str, Any]:
    try:
        job = decode_fields(Path(file).read_bytes())
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from None
    except JobFileError as error:
        raise CommandError(f"{file}: {error}") from None
    _make_paths_absolute(job, os.path.dirname(os.path.abspath(file)))
    return job


def _make_paths_absolute(job: dict[str, Any], folder: str) -> None:
    """Make a job's paths absolute; values of other types stay, because the service reports them."""

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
    """Return a file's absolute path. Raises CommandError if a relative path in a job file names no file."""
    if written != absolute:
        _check_is_there(absolute)
    return absolute


def _identity(job: Mapping[str, Any]) -> str:
    return identity_of(str(job["user"]), str(job["name"]))


def _unused_name(file: str) -> str:
    """Return an unused job name made of a file's name, without characters that split it in a shell or that
    names must not have.
    """
    stem = Path(file).name.partition(".")[0].lstrip("~")
    stem = "".join(letter if letter.isprintable() and not letter.isspace() else "_" for letter in stem)
    stem = stem.encode(errors="replace")[:_STEM_SIZE_MAX].decode(errors="ignore")
    return f"{stem or 'job'}-{time.time_ns() // 1000}"


# --- wait ----------------------------------------------------------------------------------


def run_wait(options: WaitOptions) -> int:
    if options.group is not None:
        return _wait_for_group(options.group, options)
    client_dir = client.folder_of(Path(options.api_dir), options.client)
    jobs = PendingJobs(client_dir)
    known = jobs.look().identities
    for identity in options.identities:
        if identity not in known and client.signature_of(_reply_path(client_dir, identity)) is None:
            raise CommandError(client.unknown_job(client_dir, identity))
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


def _wait_for_group(name: str, options: WaitOptions) -> int:
    from mallob_py.cli.group_tables import print_results

    group = find_group(look(options.api_dir), name, options.user)
    progress = ProgressLine(options.api_dir, options.client)

    def tell(ended: int, jobs: int) -> None:
        progress.tell(f"group {name}: {ended} of {jobs} ended")

    try:
        group = GroupWatch(Path(options.api_dir)).wait(group, tell)
    except KeyboardInterrupt:
        progress.clear()
        key = (group.user, group.name)
        return say_what_goes_on("wait", [], options.api_dir, options.client, key)
    progress.clear()
    print_results(Path(options.api_dir), group)
    return 2 if any(kind_of(job) == "failed" for job in group.results()) else 0


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


# --- replies, for submit and wait ----------------------------------------------------------


class ReplyPrinter:
    """Prints the replies to `jobs` jobs, and determines the exit code."""

    def __init__(self, command: str, output_format: str, jobs: int) -> None:
        self._command = command
        self._is_text = output_format != JSON
        self._is_single = jobs == 1
        self._code = 0

    @property
    def exit_code(self) -> int:
        """The exit code: 2 after an error reply; the application's code for one job shown as text; else 0."""
        return self._code

    def print(self, identity: str, reply: dict[str, Any]) -> None:
        """Print a reply. If nobody reads the output, the exit code of a single job is told all the same."""
        try:
            self._print(identity, reply)
        except BrokenPipeError:
            if not self._is_single:
                raise

    def _print(self, identity: str, reply: dict[str, Any]) -> None:
        error = reply.get("error")
        if error is not None:
            self._code = 2
        if not self._is_text:
            print(json_text(reply), flush=True)
            return
        if not self._is_single:
            print(f"c {printable(identity)}")
        if error is not None:
            place = f"{error['field']}: " if error.get("field") else ""
            say(f"mallob-py {self._command}: {identity}: {place}{error.get('message')}")
            return
        application = reply.get("application", DEFAULT_APPLICATION)
        lines = list(lines_of_reply(application, reply["result"]))
        if self._is_single:
            self._code = exit_code_of(declaration_of(application).exit_codes, reply["result"]["resultcode"])
        for line in lines:
            print(line)
        sys.stdout.flush()


def lines_of_reply(application: str, result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a reply's `result`. Raises CommandError if a solution has no text form."""
    from mallob_py.web.views import solution_of  # imported late, because ranks never need it

    content = None
    if (path := result.get("solution-file")) is not None:
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from None
    try:
        yield from declaration_of(application).answer_lines(result, solution_of(result, content))
    except (UnknownApplication, ValueError) as error:
        raise CommandError(str(error)) from None


def say_what_goes_on(
    command: str, identities: Sequence[str], api_dir: str, client: int, group: GroupKey | None = None
) -> int:
    """Tell a user who leaves before the replies how to wait for the jobs and how to end them.

    If `group` is given, the commands name the group instead of its jobs. Return the exit code.
    """
    if group is not None:
        user, name = group
        wait, end = (command_for(word, name, user, api_dir) for word in ("wait", "interrupt"))
        say(f"mallob-py {command}: the group {name} goes on; to wait: {wait}; to end it: {end}")
        return INTERRUPTED
    names = " ".join(identities)
    options = "" if api_dir == ".api" else f" --api-dir {api_dir}"
    options += f" --client {client}" if client else ""
    text = (
        f"{names} {'go' if len(identities) > 1 else 'goes'} on; to wait: mallob-py wait{options} {names};"
        f" to end it: mallob-py interrupt{options} {identities[0]}"
    )
    say(f"mallob-py {command}: {text}")
    return INTERRUPTED


class ProgressLine:
    """A line that shows progress. `tick` may be called at any rate; `clear` must precede other output."""

    def __init__(self, api_dir: str, client: int) -> None:
        self._api_dir = api_dir
        self._client = client
        self._is_shown = sys.stderr.isatty()
        self._started_s = time.monotonic()
        self._next_s = self._started_s + _PERIOD_S  # short jobs show no progress
        self._live: Live | None = None

    def tick(self, identity: str) -> None:
        """Show a job's progress if the line is due."""
        if self._is_due():
            status, waited_s = read_live_status(self._api_dir), time.monotonic() - self._started_s
            self._show(waiting_text(identity, status, self._client, waited_s))

    def tell(self, text: str) -> None:
        """Show a text if the line is due."""
        if self._is_due():
            self._show(text)

    def _is_due(self) -> bool:
        now = time.monotonic()
        if not self._is_shown or now < self._next_s:
            return False
        self._next_s = now + _PERIOD_S
        return True

    def clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, text: str) -> None:
        # Imported late, because short jobs show no line.
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(
                console=Console(stderr=True),
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(Text(printable(text), no_wrap=True, overflow="ellipsis"), refresh=True)


def waiting_text(identity: str, status: ServiceStatus | None, client: int, waited_s: float) -> str:
    """Return one line on a job that the command waits for."""
    if status is None:
        return f"{identity}: no service answers; waited {age_text(waited_s)}"
    job = status.job(identity, client)
    if job is None:
        return f"{identity}: handed in, {age_text(waited_s)}"
    workers = f"{job.volume} of {job.demand} workers, " if job.demand else ""
    parts = (f"{job.state_text}, {workers}{age_text(job.elapsed_s)}", far_text(job.progress, job.interim))
    return f"{identity}: {', '.join(filter(None, parts))}"


# --- explain -------------------------------------------------------------------------------


def run_explain(options: ExplainOptions) -> int:
    status = read_live_status(options.api_dir)
    for line in _explained(options, status):
        print(printable(line))
    return 0


def _explained(options: ExplainOptions, status: ServiceStatus | None) -> list[str]:
    from mallob_py.service.telemetry.explanation import explain, explain_ended, explain_unlisted

    if status is not None and (job := _live(status, options.job, options.client)) is not None:
        return explain(status, job)
    identity, client_index = options.job, options.client
    if identity.isdecimal():
        identity, client_index = _identity_of_ended(status, identity)
    client_dir = client.folder_of(Path(options.api_dir), client_index)
    if identity in PendingJobs(client_dir).look().identities:
        return explain_unlisted(identity, status)
    path = client_dir / "out" / reply_name(identity)
    if (reply := client.read_reply(path)) is None:
        raise CommandError(client.unknown_job(client_dir, identity))
    return [*explain_ended(identity, reply, time.time() - path.stat().st_mtime), f"Its reply is {path}."]


def _live(status: ServiceStatus, wanted: str, client_index: int) -> JobStatus | None:
    if wanted.isdecimal():
        return next((job for job in status.jobs if job.id == int(wanted)), None)
    return status.job(wanted, client_index)


def _identity_of_ended(status: ServiceStatus | None, number: str) -> tuple[str, int]:
    """Return the identity of a recently ended job. Raises CommandError for an unknown job."""
    for job in status.ended if status is not None else ():
        if job.id == int(number) and job.user:
            return f"{job.user}.{job.name}", job.client
    raise CommandError(f"no listed job has the id {number}; a job that ended earlier is named as USER.NAME")


# --- interrupt -----------------------------------------------------------------------------


def run_interrupt(options: InterruptOptions) -> int:
    api_dir = Path(options.api_dir)
    if options.group is not None:
        return _interrupt_group(options.group, options.user or client.login_name(), api_dir)
    if not client.service_is_running(api_dir, options.client):
        raise CommandError(f"no service is running on {api_dir}")
    client_dir = client.folder_of(api_dir, options.client)
    jobs = [_of_id(client_dir, int(job)) if job.isdecimal() else _split(api_dir, job) for job in options.jobs]
    orders = [client.interrupt(api_dir, *job, client=options.client) for job in jobs]
    code = 0
    for (user, name), order in zip(jobs, orders, strict=True):
        try:
            reply = client.wait(order, _REPLY_TIMEOUT_S)
        except TimeoutError as error:
            raise CommandError(str(error)) from None
        if "error" in reply:
            say(f"mallob-py interrupt: {reply['error'].get('message', reply['error'])}")
            code = 2
        else:
            print(f"{identity_of(user, name)} has ended; its reply is {order.reply_path}")
    return code


def _interrupt_group(name: str, user: str, api_dir: Path) -> int:
    """End all live jobs of a group, and wait until none is left."""
    group = find_group(look(str(api_dir)), name, user)
    for number in sorted({number for number, _ in group.live}):
        if not client.service_is_running(api_dir, number):
            raise CommandError(f"no service is running on {api_dir}")
    watch = GroupWatch(api_dir)
    for number, job in sorted(group.live):
        client.interrupt(api_dir, group.user, job, number, is_quiet=True)
    live, deadline_s = group.live, time.monotonic() + _REPLY_TIMEOUT_S
    while live:
        began_s = time.monotonic()
        left = watch.live().get((group.user, group.name), set()) & group.live
        if len(left) < len(live):
            deadline_s = time.monotonic() + _REPLY_TIMEOUT_S
        elif began_s > deadline_s:
            raise CommandError(f"{len(left)} jobs of the group {name} have not ended; is the service busy?")
        live = left
        if live:
            rest(began_s)
    count = len(group.live)
    print(f"{count} job{'s' * (count != 1)} of the group {printable(identity_of(group.user, name))} ended")
    return 0


def _of_id(client_dir: Path, number: int) -> tuple[str, str]:
    """Return user and name of a live job. Raises CommandError if no job has this id."""
    try:
        for entry in read_entries(client_dir / "journal"):
            if isinstance(entry, Claimed) and entry.internal_id == number:
                fields = json.loads((client_dir / "journal" / entry.entry).read_bytes())
                return str(fields["user"]), str(fields["name"])
    except (OSError, ValueError, TypeError, KeyError):
        pass  # the job has just ended, or the entry is not a job
    raise CommandError(f"no live job has the id {number} (it may have ended already)")


def _split(api_dir: Path, identity: str) -> tuple[str, str]:
    status = read_status(api_dir)
    for job in status.jobs if status is not None else ():
        if f"{job.user}.{job.name}" == identity:
            return job.user, job.name
    user, _, name = identity.partition(".")
    return user, name
