"""The folder of a live scheduler: the state on disk from which a restarted scheduler continues.

    DIR/                    of mode 0700
      lock                  held while a scheduler runs here
      scheduler.sock        where the scheduler takes commands and jobs
      clock.json            a reading of the scheduler's clock
      nodes.json            the scheduler's nodes
      jobs/NUMBER/          a job that waits or runs
        script job.json     the job as submitted
        run.json            written before the job starts: when, on which slots, where it takes orders
        launch.json         for the job's keeper, which writes begun.json and status.json and holds `lock`
        allotment.json      the cores that the job may use
        cancelled           exists if the job is to end
        output nodes        what the job prints; its hosts
        orders.sock         where the job takes orders, if it does
      ended/NUMBER/         an ended job

Each JSON file is written as a whole, before the scheduler acts by it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from mallob_py.batch.live.launch import TOKEN, Begun, Status, sync_folder, write_atomically
from mallob_py.batch.live.nodes import Node
from mallob_py.batch.live.script import Wishes
from mallob_py.service.store import own_folder

_T = TypeVar("_T")
#: the longest wait [s] for the folder's lock: a killed scheduler's keeper may hold it while starting
_LOCK_S = 2.0
#: the longest time [s] for killing the left processes of a job: the kernel may hold a killed process for ever
_KILL_S = 5.0
#: the names of jobs' folders, and of unfinished jobs' folders
_NUMBER, _PART = re.compile("[1-9][0-9]{0,17}"), re.compile(r"\.[1-9][0-9]{0,17}")
_TAKEN = re.compile(r"\.?[1-9][0-9]{0,17}")
#: the files that an unfinished job's folder may contain
_PART_FILES = ("script", "job.json", ".job.json.part")


class FolderError(Exception):
    """A folder cannot be used. The error's text is one line."""


class Submitted(msgspec.Struct, frozen=True):
    """A submitted job; `submit_s` is a time of the scheduler's clock."""

    number: int
    submit_s: float
    wishes: Wishes
    directory: str
    environment: dict[str, str]
    #: the jobs that must end before this job starts
    after: list[int] = []
    #: the jobs that must end, with exit code 0, before this job starts
    after_ok: list[int] = []

    @property
    def comes_after(self) -> set[int]:
        """Return the jobs that must end before this job starts."""
        return {*self.after, *self.after_ok}


class Run(msgspec.Struct, frozen=True):
    """The run of a starting or running job. `address`: where the job accepts orders; "": it accepts none.

    `factor`: a guest's share of the cores of its slots; 1: the job is no guest. `extra_s`: time [s] added to
    the job's limit for its guests.
    """

    start_s: float
    slots: list[int]
    address: str = ""
    factor: float = 1.0
    extra_s: float = 0.0


class Clock(msgspec.Struct, frozen=True):
    """A reading of the scheduler's clock: it showed `now_s` when the host had been up for `up_s`. `boot`: the
    id of the host's boot.
    """

    boot: str
    up_s: float
    now_s: float


class JobFolder:
    """The folder of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.name)
        self.script = path / "script"
        self.output = path / "output"
        self.orders = path / "orders.sock"

    def submitted(self) -> Submitted:
        return _decode(self.path / "job.json", Submitted)

    def run(self) -> Run | None:
        return _read(self.path / "run.json", Run)

    def begun(self) -> Begun | None:
        return _read(self.path / "begun.json", Begun)

    def status(self) -> Status | None:
        return _read(self.path / "status.json", Status)

    def write(self, name: str, record: msgspec.Struct) -> None:
        write_atomically(self.path / f"{name}.json", msgspec.json.encode(record))

    @property
    def is_cancelled(self) -> bool:
        return (self.path / "cancelled").exists()

    def cancel(self) -> None:
        write_atomically(self.path / "cancelled", b"")

    def forget_run(self) -> None:
        """Remove the files of a run that has not begun, so that the job waits again."""
        # "begun" without "status" would mean that the keeper was killed.
        for name in ("begun", "launch", "run", "status"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path / f"{name}.json")

    def lock(self) -> int | None:
        """Take the job's lock; return a descriptor that holds it. None: a keeper holds it."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _is_locked(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    @property
    def has_keeper(self) -> bool:
        if (descriptor := self.lock()) is None:
            return True
        os.close(descriptor)
        return False

    @property
    def token(self) -> str:
        """The value of the variable that marks the job's processes; unique to this folder."""
        return str(self.path)

    def kill_leftovers(self) -> None:
        """Kill the processes of a job whose keeper was killed; they are found by their environment.

        Raises OSError, and FolderError if a process does not end.
        """
        needle = f"{TOKEN}={self.token}".encode()
        until_s = time.monotonic() + _KILL_S
        while left := [pid for pid in _processes_with(needle) if _kill(pid, needle)]:
            if time.monotonic() > until_s:
                raise FolderError(f"process {left[0]} does not end, though it was killed: see ps")
            for pid in left:
                _await_end(pid)


class Folder:
    """The folder of a scheduler. Only the scheduler may call `open`; other processes may read the folder
    without it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.socket = self.path / "scheduler.sock"
        self._jobs = self.path / "jobs"
        self._ended = self.path / "ended"

    def open(self) -> None:
        """Make and lock the folder: only one scheduler at a time may use it. Raises FolderError, OSError."""
        own_folder.make(self.path)
        with own_folder.opened(self.path) as folder:
            if not own_folder.is_ours(folder):
                raise FolderError(f"{self.path} belongs to somebody else")
            if not own_folder.is_private(folder):
                raise FolderError(f"{self.path} is open to others: chmod 700 {self.path}")
        self._lock = own_folder.open_file(self.path / "lock", os.O_RDWR | os.O_CREAT)
        until_s = time.monotonic() + _LOCK_S
        while not _is_locked(self._lock):
            if time.monotonic() > until_s:
                raise FolderError(f"a scheduler runs in {self.path} already")
            time.sleep(_LOCK_S / 20)
        for part in (self._jobs, self._ended):
            own_folder.make(part)
            with own_folder.opened(part) as folder:
                if not own_folder.is_ours(folder):
                    raise FolderError(f"{part} belongs to somebody else")
        with own_folder.opened(self._jobs) as folder:
            for name in os.listdir(folder):
                if _PART.fullmatch(name) and _is_part(name, folder):
                    shutil.rmtree(name, dir_fd=folder)

    def clock(self) -> Clock | None:
        return _read(self.path / "clock.json", Clock)

    def write_clock(self, clock: Clock) -> None:
        write_atomically(self.path / "clock.json", msgspec.json.encode(clock))

    def nodes(self) -> list[Node] | None:
        return _read(self.path / "nodes.json", list[Node])

    def write_nodes(self, nodes: Iterable[Node]) -> None:
        write_atomically(self.path / "nodes.json", msgspec.json.encode(list(nodes)))

    def next_number(self) -> int:
        """Return the number for the next job: greater than that of any job with a folder here."""
        taken = [0]
        for part in (self._jobs, self._ended):
            taken += (int(name.removeprefix(".")) for name in os.listdir(part) if _TAKEN.fullmatch(name))
        return 1 + max(taken)

    def add(self, submitted: Submitted, script: str, encoding: str = "utf-8") -> JobFolder:
        """Add a submitted job's folder, as a whole or not at all. Raises OSError."""
        part = self._jobs / f".{submitted.number}"
        part.mkdir(mode=0o700)
        final = self._jobs / str(submitted.number)
        try:
            (part / "script").write_text(script, encoding=encoding)
            (part / "script").chmod(0o700)
            write_atomically(part / "job.json", msgspec.json.encode(submitted))
            part.rename(final)
            try:
                sync_folder(self._jobs)
            except BaseException:
                final.rename(part)  # a refused job must not run
                raise
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)  # the next job gets this number
            raise
        return JobFolder(final)

    def jobs(self) -> list[JobFolder]:
        """Return the jobs that wait or run, in the order of their submission."""
        return list(_folders(self._jobs))[::-1]

    def outcome(self, number: int) -> Status | None:
        """Return how a job ended; None: unknown."""
        with contextlib.suppress(OSError, FolderError):
            if _is_job_of(self._ended, number):
                return JobFolder(self._ended / str(number)).status()
        return None

    def ended(self, last: int) -> list[JobFolder]:
        """Return the ended jobs, but at most the `last` newest, in the order of submission."""
        return list(islice(_folders(self._ended), last))[::-1]

    def ended_among(self, numbers: Iterable[int]) -> tuple[list[JobFolder], list[int]]:
        """Return the ended jobs among `numbers`, and the numbers of jobs that have no folder."""
        found, unknown = list[JobFolder](), list[int]()
        for number in numbers:
            if _is_job_of(self._ended, number):
                found.append(JobFolder(self._ended / str(number)))
            elif not _is_job_of(self._jobs, number):
                unknown.append(number)
        return found, unknown

    def end(self, job: JobFolder, status: Status) -> JobFolder:
        """Write a job's status and move its folder to the ended jobs; return its new folder."""
        if job.status() != status:
            job.write("status", status)
        target = self._ended / job.path.name
        job.path.rename(target)
        return JobFolder(target)


def _is_locked(descriptor: int) -> bool:
    """Try to lock a file; return whether this descriptor now holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _folders(path: Path) -> Iterator[JobFolder]:
    """Yield the jobs' folders below `path`, the last submitted first; skip other entries."""
    with contextlib.suppress(FileNotFoundError), own_folder.opened(path) as folder:
        for number in sorted(
            (int(name) for name in os.listdir(folder) if _NUMBER.fullmatch(name)), reverse=True
        ):
            if _is_job(str(number), folder):
                yield JobFolder(path / str(number))


def _is_job_of(path: Path, number: int) -> bool:
    with contextlib.suppress(FileNotFoundError), own_folder.opened(path) as folder:
        return _is_job(str(number), folder)
    return False


def _is_job(name: str, within: int) -> bool:
    try:
        with own_folder.opened(name, within) as folder:
            return own_folder.is_ours(folder) and own_folder.is_file("job.json", folder)
    except (NotADirectoryError, FileNotFoundError):
        return False


def _is_part(name: str, within: int) -> bool:
    """Tell whether an entry is the folder of an unfinished job and contains only this job's files."""
    try:
        with own_folder.opened(name, within) as folder:
            if not own_folder.is_ours(folder):
                return False
            names = os.listdir(folder)
            return bool(names) and all(
                each in _PART_FILES and own_folder.is_file(each, folder) for each in names
            )
    except (NotADirectoryError, FileNotFoundError):
        return False


def _decode(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(own_folder.read_file(path), type=kind)
    except msgspec.DecodeError as error:
        raise FolderError(f"{path} is damaged: {error}") from None


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return _decode(path, kind)
    except FileNotFoundError:
        return None


# --- processes of jobs whose keeper has ended -----------------------------------------------


def _processes_with(variable: bytes) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _has(int(name), variable)]


def _has(pid: int, variable: bytes) -> bool:
    """Tell whether a process has this environment variable. Raises OSError if it cannot be read now."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return variable in environ.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # the process has ended, or is another user's


def _kill(pid: int, variable: bytes) -> bool:
    """Kill a process if `variable` (NAME=value) is in its environment; else return False. Raises OSError."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not _has(pid, variable):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _await_end(pid: int) -> None:
    """Wait at most a second until a killed process has ended; a zombie has no environment."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], 1.0)
        finally:
            os.close(descriptor)
