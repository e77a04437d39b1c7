"""Access to the service from any process: submit jobs, wait for replies, list jobs without a reply.

Only the client's folder is needed, not a running service, so scripts may do the same: write a file into `in/`
under a name that starts with "~", rename it, watch `out/`. File names are unique, so an error reply reaches
the right submitter even if two users submit the same job at once. If the service is durable, `submit` returns
when the job is on the disk.

A job file moves from `in/` to `journal/`, and its reply to `out/`, always by renames (see `store.journal`).
`PendingJobs` lists the folders in this order and so misses no job: a job in neither `in/` nor `journal/` has
its reply. A job's identity stands in its file, which is read once.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import pwd
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, assert_never

from mallob_py.service import ServiceError
from mallob_py.service.jobs.job_file import group_in, identity_of
from mallob_py.service.store.entries import (
    ChainEnd,
    Claimed,
    Decided,
    Kept,
    is_job_file,
    is_unfinished,
    parse_entry,
    refusal_name,
    reply_name,
)
from mallob_py.service.store.flush_policy import flush_policy_of
from mallob_py.service.store.journal import contents, contents_of_file, ended_before
from mallob_py.service.store.lock import is_locked
from mallob_py.service.store.spare_file import SpareFile

#: default permissions of job files
PUBLIC = 0o666
_POLL_DELAY_MIN_S, _POLL_DELAY_MAX_S = 0.0005, 0.02


@dataclass(frozen=True, slots=True)
class Submission:
    """A job handed in: its reply appears at `reply_path`, or at `error_path` if the file is refused."""

    reply_path: Path
    error_path: Path
    #: name of the job file in `in/` and in the journal
    file_name: str
    #: inode and modification time of an older reply with this name
    older: tuple[int, int] | None


def submit(
    api_dir: Path,
    job: Mapping[str, Any],
    client: int = 0,
    file_name: str | None = None,
    spare: SpareFile | None = None,
    file_mode: int = PUBLIC,
) -> Submission:
    """Hand in a job, given as the fields of a job file; `user` and `name` must be strings.

    `spare`: a spare file of the folder `in`. `file_mode`: permissions of the job's file, as `os.open` takes
    them.
    """
    identity = identity_of(str(job.get("user", "")), str(job.get("name", "")))
    client_dir = folder_of(api_dir, client)
    file_name = file_name or f"{uuid.uuid4().hex}.json"
    out_dir = client_dir / "out"
    reply_path, error_path = out_dir / reply_name(identity), out_dir / refusal_name(file_name)
    submission = Submission(reply_path, error_path, file_name, signature_of(reply_path))
    in_dir = os.path.join(client_dir, "in")
    temporary = os.path.join(in_dir, f"~{file_name}")
    try:
        flush_policy = flush_policy_of(client_dir)
        content = json.dumps(job).encode("ascii")
        if file_mode != PUBLIC or spare is None or not spare.put(temporary, content):
            # A file with restricted permissions must be new: an existing file may be another user's.
            more = 0 if file_mode == PUBLIC else os.O_EXCL
            with open(temporary, "wb", opener=lambda path, how: os.open(path, how | more, file_mode)) as file:
                file.write(content)
        flush_policy.flush([temporary])
        os.rename(temporary, os.path.join(in_dir, file_name))
        flush_policy.flush([in_dir])
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise ServiceError(f"cannot write a job to {in_dir}: {error.strerror}") from error
    return submission


def user_name(uid: int) -> str:
    """Return the name of a user, or the user's number as text if there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def login_name() -> str:
    """Return the default user name of jobs."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "user"  # a container's user id may have no name


def interrupt(api_dir: Path, user: str, name: str, client: int = 0, *, is_quiet: bool = False) -> Submission:
    """Hand in an order to end a live job. The answer is the job's reply, or an error if there is no such job.

    `is_quiet`: write no error, for callers that do not wait.
    """
    request = {"user": user, "name": name, "interrupt": True}
    return submit(api_dir, request | {"quiet": True} if is_quiet else request, client)


def withdraw(api_dir: Path, submission: Submission, client: int = 0) -> bool:
    """Remove a job file from `in/`; return False if a service has already taken the file in."""
    try:
        os.unlink(api_dir / f"jobs.{client}" / "in" / submission.file_name)
    except OSError:
        return False
    return True


def wait(
    submission: Submission, timeout_s: float | None = None, meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Wait for the reply, calling `meanwhile` every few milliseconds. Raises TimeoutError."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    delay_s = _POLL_DELAY_MIN_S
    while True:
        if (reply := reply_to(submission)) is not None:
            return reply
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"no reply at {submission.reply_path} after {timeout_s:g} s")
        meanwhile()
        time.sleep(delay_s)
        delay_s = min(1.2 * delay_s, _POLL_DELAY_MAX_S)


def reply_to(submission: Submission) -> dict[str, Any] | None:
    """Return the reply to a submission, if there is one."""
    # The error is looked for first: a reply under the job's name may belong to another job of that name.
    if os.access(submission.error_path, os.F_OK) and (reply := read_reply(submission.error_path)) is not None:
        return reply
    if signature_of(submission.reply_path) in (None, submission.older):
        return None
    return read_reply(submission.reply_path)


def service_is_running(api_dir: Path, client: int = 0) -> bool:
    """Tell whether a running service takes the client's jobs. Raises OSError if this cannot be found out."""
    return is_locked(api_dir / f"jobs.{client}")


def folder_of(api_dir: Path, client: int) -> Path:
    """Return the folder of a client. Raises ServiceError if no service has ever used it."""
    client_dir = (api_dir / f"jobs.{client}").absolute()
    try:
        is_there = (client_dir / "in").is_dir()
    except OSError as error:
        raise ServiceError(f"cannot look into {client_dir}: {error.strerror}") from None
    if not is_there:
        if address := re.search(r"(?<![^/])[a-z]+:/", str(api_dir)):
            told = str(api_dir)[address.start() :]
            raise ServiceError(f"{told} is an address; a service is named by its folder, such as .api")
        raise ServiceError(
            f"no service has used {client_dir} yet; start one: mallob-py serve --api-dir {api_dir}"
        )
    return client_dir


def signature_of(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def read_reply(path: Path) -> dict[str, Any] | None:
    """Return the reply in a file; None: no such file. Raises ServiceError if it is unreadable or damaged."""
    try:
        reply = json.loads(contents(os.fspath(path)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ServiceError(f"cannot read the reply {path}: {error.strerror}") from error
    except RecursionError as error:
        raise ServiceError(f"the reply {path} is nested too deeply") from error
    except ValueError as error:
        raise ServiceError(f"the reply {path} is damaged: {error}") from error
    if not isinstance(reply, dict):
        raise ServiceError(f"the reply {path} is damaged: it is no JSON object")
    return reply


_TRIES = 10
#: greatest number of bytes that are read of a job file to find its identity
_READ_BYTES_MAX = 1 << 26
#: greatest number of files in `in/` and `journal/` that `not_handed_in` reads
_LOOKED_INTO_MAX = 5000


def not_handed_in(client_dir: Path, identities: Collection[str]) -> list[str]:
    """Return the `identities` that were never handed in here; [] if too many files would be read."""
    missing = [one for one in identities if not os.path.lexists(client_dir / "out" / reply_name(one))]
    if not missing:
        return []
    try:
        if sum(1 for folder in ("in", "journal") for _ in os.scandir(client_dir / folder)) > _LOOKED_INTO_MAX:
            return []
        ended = ended_before(client_dir)
        known = PendingJobs(client_dir).look().identities
    except OSError:
        return []
    return [one for one in missing if one not in known and not ended(one)]


def unknown_job(client_dir: Path, identity: str) -> str:
    """Return the message that a job is unknown; it names the last job whose name adds numbers, if any."""
    hint = ""
    with contextlib.suppress(OSError):
        known = [name.removesuffix(".json") for name in os.listdir(client_dir / "out")]
        known += PendingJobs(client_dir).look().identities
        if alike := [one for one in known if one.startswith(f"{identity}-")]:
            # The numbers, which `submit` adds to names, are times.
            last = max(alike, key=lambda one: [int(part) for part in one.split("-") if part.isdecimal()])
            hint = f"; the last job with a name like this is {last}"
    return f"no job {identity} in {client_dir}, neither live nor ended{hint}"


class PendingJob(NamedTuple):
    """The user, name and group ("": no group) that a job file contains."""

    user: str
    name: str
    group: str


@dataclass(frozen=True, slots=True)
class Pending:
    """The jobs without a reply: their file names, their identities, and which of them are in groups.

    `paths`: identity -> path of the job's file when it was listed; `owners`: identity -> user of the job, ""
    if jobs of two users have this identity, since names may have dots.
    """

    file_names: frozenset[str]
    identities: frozenset[str]
    grouped: frozenset[PendingJob] = frozenset()
    paths: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)


class _File(NamedTuple):
    """A job file: its name, inode and modification time, which stay when the file moves."""

    name: str
    signature: tuple[int, int]


class PendingJobs:
    """The jobs of one client without a reply. `look` lists two folders and reads only new files."""

    def __init__(self, client_dir: Path) -> None:
        self._in_dir = client_dir / "in"
        self._journal_dir = client_dir / "journal"
        #: job file -> the job in it; None: the file is no job
        self._known: dict[_File, PendingJob | None] = {}
        #: error about a file that vanished before it was read
        self._gone: FileNotFoundError | None = None

    def look(self) -> Pending:
        for _ in range(_TRIES - 1):
            try:
                return self._look()
            except FileNotFoundError:
                continue  # a file moved meanwhile; the next look reads only files that are not known yet
        return self._look()

    def _look(self) -> Pending:
        """List all files. If a file vanished, raise FileNotFoundError after all others were listed."""
        self._gone = None
        still_known: dict[_File, PendingJob | None] = {}
        paths: dict[_File, str] = {}
        leaving_names: set[str] = set()
        leaving_identities: set[str] = set()
        for name, signature in _entries(self._in_dir):
            if is_job_file(name):
                file = _File(name, signature)
                paths[file] = f"{self._in_dir}/{name}"
                still_known[file] = self._job(file, paths[file])
        # The journal is listed twice, because one listing may miss a reply that replaces a file already
        # listed.
        journal = dict([*_entries(self._journal_dir), *_entries(self._journal_dir)])
        for own_name, signature in journal.items():
            match entry := parse_entry(own_name):
                case Claimed():
                    file = _File(entry.file_name, signature)
                    paths[file] = f"{self._journal_dir}/{own_name}"
                    still_known[file] = self._job(file, paths[file])
                case Decided():
                    if (refused := entry.refused_file_name) is not None:
                        leaving_names.add(refused)
                    leaving_identities.add(entry.identity)
                case Kept() | ChainEnd() | None:
                    pass  # the job has its reply, or never gets one
                case other:
                    assert_never(other)
        if self._gone is not None:
            raise self._gone
        self._known = still_known
        jobs = [job for job in still_known.values() if job is not None]
        owners: dict[str, str] = {}
        for job in jobs:
            identity = identity_of(job.user, job.name)
            if owners.setdefault(identity, job.user) != job.user:
                owners[identity] = ""
        return Pending(
            frozenset({file.name for file in still_known} | leaving_names),
            frozenset(owners.keys() | leaving_identities),
            frozenset(job for job in jobs if job.group),
            {identity_of(job.user, job.name): paths[file] for file, job in still_known.items() if job},
            owners,
        )

    def _job(self, file: _File, path: str) -> PendingJob | None:
        if file not in self._known:
            try:
                self._known[file] = _job_in(path)
            except FileNotFoundError as error:
                self._gone = error
        return self._known.get(file)


def _job_in(path: str) -> PendingJob | None:
    """Return the job in a file; None: the file is no job. Raises FileNotFoundError."""
    try:
        fields = json.loads(contents_of_file(path, _READ_BYTES_MAX))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("interrupt") is True:
        return None
    # A file that ends a chain is no job of a group, since it gets no reply.
    group = "" if fields.get("done") is True else group_in(fields)
    return PendingJob(str(fields.get("user", "")), str(fields.get("name", "")), group)


def _entries(folder: Path) -> list[tuple[str, tuple[int, int]]]:
    """Return (name, (inode, modification time [ns])) of each file, except of unfinished files.

    A file that moves meanwhile is left out: a later listing has the file, or an earlier listing had it.
    """
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return []
    with entries:
        found = []
        for entry in entries:
            if not is_unfinished(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.name, (status.st_ino, status.st_mtime_ns)))
        return found
