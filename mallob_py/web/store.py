"""The web server's own folder `<api-dir>/web/`: submissions over HTTP, and their uploads.

    web/submissions/~<id>/     an upload that is under way, or was cut off
    web/submissions/<id>/      record.json, and `input` while the service may read it
    web/token                  the secret for access, readable by its owner only, created at the first start
    web/looking                see `service.telemetry.status.look`

The job file of a submission is named `<id>.json`, so that the folders show its progress through the service
(see `service.client`). An upload must be removed as soon as its job file is neither in `in/` nor in the
journal: the reply is then decided, and no service reads the input again, not even after a crash. Records
stay, the newest `KEEP_MAX`. A lock ensures that only one web server uses the folder. All methods may be
called from any thread.

The token is sent only in the header `Authorization: Bearer TOKEN`. A browser never adds this header by
itself, so no page of another site can act in our user's name, and no cookie is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import itertools
import os
import re
import secrets
import shutil
import stat
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.service import ServiceError
from mallob_py.service.jobs.job_file import identity_of
from mallob_py.service.store import own_folder
from mallob_py.service.store.entries import http_file_name
from mallob_py.service.store.flush_policy import FlushPolicy

KEEP_MAX = 10_000
#: the outcome of a submission that has ended a chain of revisions, and has no reply
CHAIN_ENDED = "chain-ended"
#: a file's inode and time of change
Signature = tuple[int, int]
_ID = re.compile(r"[0-9a-f]{32}")
#: the file name of an upload, and its former name, which live jobs may still use
_INPUT, _FORMER_INPUT = "input", "formula"
_RECORD, _UNFINISHED_RECORD = "record.json", "~record.json"
_RECORD_BYTES_MAX = 1 << 24
_OWN_NAMES = frozenset(("submissions", "token", "user-tokens.json", "looking", ".lock"))
_NAMES = frozenset((_INPUT, _FORMER_INPUT, _RECORD, _UNFINISHED_RECORD))


class Ended(msgspec.Struct, frozen=True):
    """A summary of a reply. `at`: its time (since 1970); `number`: the job's number in the service.

    `resultcode`: null for an old result whose code was not kept.

    `result`: further values of the application, such as `value`, but no solutions and no long values.
    """

    outcome: str
    resultcode: int | None = 0
    resultstring: str = "UNKNOWN"
    solver: str = ""
    error: dict[str, str] | None = None
    stats: dict[str, Any] = {}
    warnings: list[str] = []
    at: float = 0.0
    number: int = 0
    result: dict[str, Any] = {}


class Record(msgspec.Struct, frozen=True):
    """One submission. `older` is an earlier reply file of the same name, `signature` this submission's
    reply file.

    `is_name_unique`: no other job can have this name, since the web server invented it. `ends_chain`: the job
    file only ends a chain of revisions, and gets a reply only if it is refused.
    """

    id: str
    user: str
    name: str
    application: str
    client: int
    submitted: float
    older: Signature | None
    upload_bytes: int = 0
    ended: Ended | None = None
    signature: Signature | None = None
    is_name_unique: bool = False
    ends_chain: bool = False

    @property
    def identity(self) -> str:
        return identity_of(self.user, self.name)

    @property
    def file_name(self) -> str:
        return http_file_name(self.id)


class Upload:
    """The folder of one upload until the upload is kept or discarded."""

    def __init__(self, folder: Path) -> None:
        self.id = uuid.uuid4().hex
        self._folder = folder
        self._hidden = folder / f"~{self.id}"
        self._hidden.mkdir(mode=0o700)
        self.path = self._hidden / _INPUT

    def discard(self) -> None:
        shutil.rmtree(self._hidden, ignore_errors=True)

    def keep(self, record: Record, flush_policy: FlushPolicy) -> None:
        """Move the upload to its place, with its record. Raises OSError."""
        record_path = self._hidden / _RECORD
        record_path.write_bytes(msgspec.json.encode(record))
        flush_policy.flush([self.path, record_path, self._hidden])
        self._hidden.rename(self._folder / self.id)
        flush_policy.flush([self._folder])


class Store:
    """Submissions and uploads, locked by one web server from construction to `close`."""

    def __init__(self, api_dir: Path) -> None:
        self.path = api_dir.absolute() / "web"
        self._folder = self.path / "submissions"
        #: a pattern that matches the paths of all uploads
        self.upload_pattern = re.compile(
            re.escape(f"{self._folder}/") + _ID.pattern + f"/(?:{_INPUT}|{_FORMER_INPUT})"
        )
        self._mutex = threading.Lock()
        try:
            for folder in (self.path, self._folder):
                own_folder.make(folder)
                with own_folder.opened(folder) as opened:
                    if not own_folder.is_ours(opened):
                        raise ServiceError(f"{folder} belongs to another user; name another --api-dir")
                    if folder == self.path:
                        _close_to_others(opened)
                    else:
                        _tidy(opened, folder)
            lock = self.path / ".lock"
            self._lock = open(own_folder.open_file(lock, os.O_WRONLY | os.O_CREAT), "wb")  # noqa: SIM115
        except OSError as error:
            raise ServiceError(
                f"{error.filename or self._folder} cannot be used: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ServiceError(f"{self.path} is used by another `mallob-py web`; stop that one") from None
        except OSError:
            pass  # the file system has no locks
        self._open: dict[str, Record] = {}
        #: identity of a job -> ids of its open records
        self._open_of: dict[str, set[str]] = {}
        #: the ended records, in the order of their ends
        self._ended: dict[str, Record] = {}
        self._upload_bytes = 0
        self._load()

    def close(self) -> None:
        self._lock.close()

    def upload_path(self, submission: str) -> Path:
        """Return the path of an upload while the service may read it."""
        former = self._folder / submission / _FORMER_INPUT
        return former if former.exists() else self._folder / submission / _INPUT

    def begin(self) -> Upload:
        """Create a folder for an upload. Raises OSError."""
        return Upload(self._folder)

    def add(self, record: Record) -> None:
        """Add the record of a job that the service can see."""
        with self._mutex:
            self._note(record)

    def forget(self, submission: str) -> None:
        with self._mutex:
            self._drop(submission)
        shutil.rmtree(self._folder / submission, ignore_errors=True)

    def get(self, submission: str) -> Record | None:
        with self._mutex:
            return self._open.get(submission) or self._ended.get(submission)

    def open_records(self) -> list[Record]:
        """Return the records of jobs whose reply has not been read."""
        with self._mutex:
            return list(self._open.values())

    def open_of(self, identity: str) -> list[Record]:
        """Return the open records of one name."""
        with self._mutex:
            return [self._open[one] for one in self._open_of.get(identity, ())]

    def recent(self, count: int) -> list[Record]:
        """Return the records of jobs that ended last, the latest first."""
        with self._mutex:
            return list(itertools.islice(reversed(self._ended.values()), count))

    def upload_bytes(self) -> int:
        """Return the bytes of all uploads that are kept for the service."""
        return self._upload_bytes

    def end(self, record: Record, ended: Ended, signature: Signature | None) -> None:
        """Record the reply of a job and remove the upload."""
        record = msgspec.structs.replace(record, ended=ended, signature=signature)
        with self._mutex:
            if record.id not in self._open:
                return  # two requests saw the reply at the same time
            self._drop(record.id)
            self._note(record)
            surplus = list(itertools.islice(self._ended, max(0, len(self._ended) - KEEP_MAX)))
        folder = self._folder / record.id
        with contextlib.suppress(OSError):
            (folder / _UNFINISHED_RECORD).write_bytes(msgspec.json.encode(record))
            (folder / _UNFINISHED_RECORD).replace(folder / _RECORD)
        for name in (_INPUT, _FORMER_INPUT):
            (folder / name).unlink(missing_ok=True)
        for submission in surplus:
            self.forget(submission)

    def _note(self, record: Record) -> None:
        if record.ended is not None:
            self._ended[record.id] = record
            return
        self._open[record.id] = record
        self._open_of.setdefault(record.identity, set()).add(record.id)
        self._upload_bytes += record.upload_bytes

    def _drop(self, submission: str) -> None:
        self._ended.pop(submission, None)
        if (record := self._open.pop(submission, None)) is None:
            return
        self._upload_bytes -= record.upload_bytes
        of_name = self._open_of[record.identity]
        of_name.discard(submission)
        if not of_name:
            del self._open_of[record.identity]

    def _load(self) -> None:
        records: list[Record] = []
        for name in os.listdir(self._folder):
            if not _ID.fullmatch(name):
                continue
            try:
                with own_folder.opened(self._folder / name) as folder:
                    content = own_folder.read_file(_RECORD, folder, _RECORD_BYTES_MAX)
                records.append(msgspec.json.decode(content, type=Record))
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
                continue
        records.sort(key=lambda record: record.submitted if record.ended is None else record.ended.at)
        for record in records:
            self._note(record)


def _close_to_others(folder: int) -> None:
    """Close the web server's own folder to other users, unless it contains unknown files."""
    if _OWN_NAMES.issuperset(os.listdir(folder)) and not own_folder.is_private(folder):
        os.fchmod(folder, 0o700)


def _tidy(folder: int, path: Path) -> None:
    """Remove uploads that were cut off, and close the folder of uploads to other users.

    Unknown files stay. Raises ServiceError if a folder that is open to others contains unknown files.
    """
    names = os.listdir(folder)
    if not own_folder.is_private(folder):
        strange = sorted(name for name in names if not _ID.fullmatch(name.removeprefix("~")))
        if strange:
            raise ServiceError(
                f"{path} will hold inputs of users, but it is open to others, and {strange[0]!r} in it is not"
                f" ours: chmod 700 {path}"
            )
        os.fchmod(folder, 0o700)
    for name in names:
        if name.startswith("~") and _ID.fullmatch(name.removeprefix("~")) and _is_upload(name, folder):
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def _is_upload(name: str, within: int) -> bool:
    """Return whether a folder is an upload of this store, with nothing else in it."""
    try:
        with own_folder.opened(name, within) as folder:
            names = os.listdir(folder)
            return own_folder.is_ours(folder) and all(
                each in _NAMES and own_folder.is_file(each, folder) for each in names
            )
    except OSError:
        return False


def is_submission(key: str) -> bool:
    """Return whether a key is the id of a submission; names of jobs contain a dot."""
    return _ID.fullmatch(key) is not None


def now() -> float:
    return time.time()


# --- the token ---------------------------------------------------------------------------------------

_TOKEN = re.compile(rb"[A-Za-z0-9_.~+/=-]{20,200}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token; `is_new`: it was created by this start."""

    path: Path
    secret: bytes
    is_new: bool

    def admits(self, authorization: str | None) -> bool:
        """Return whether this header has the token. A wrong token takes as long as the right one."""
        scheme, _, given = (authorization or "").partition(" ")
        is_equal = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.secret)
        return scheme.lower() == "bearer" and is_equal


def load_token(path: Path) -> Token:
    """Return the token of this file, which is created if it is missing. Raises ServiceError."""
    try:
        return Token(path, _create(path), is_new=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise ServiceError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        # A link is permitted, since operators may use links; a pipe must not block the server.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ServiceError(f"{path}: is not a regular file; name another --token-file")
            secret = file.read(1000).strip()
    except OSError as error:
        raise ServiceError(f"{path}: cannot be read: {error.strerror}") from None
    if status.st_uid not in (0, os.geteuid()):
        raise ServiceError(f"{path}: belongs to another user, who knows the token; name another --token-file")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ServiceError(f"{path}: others can read the token; remove it (a new one is made) or: chmod 600")
    if not _TOKEN.fullmatch(secret):
        raise ServiceError(
            f"{path}: holds no token of at least 20 letters and digits; remove it to get a new token"
        )
    return Token(path, secret, is_new=False)


def _create(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_urlsafe(32).encode()
    # The file must be complete from the first moment on, and never readable by others.
    temporary = path.with_name(f"~{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secret + b"\n")
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
    return secret
