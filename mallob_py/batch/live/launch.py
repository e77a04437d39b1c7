"""The files in a job's folder through which scheduler and keeper communicate.

The scheduler writes `launch.json` (what to run) and `allotment.json` (which cores the job may use); the
keeper writes `begun.json` (the program is about to start) and `status.json` (how it ended), all atomically.
"""

from __future__ import annotations

import enum
import errno
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from mallob_py.runtime.processes import STOP_SIGNALS
from mallob_py.service.store.own_folder import open_file

#: the time [s] between SIGTERM and SIGKILL
GRACE_S = 5.0
#: the environment variable by which a job's processes are found if its keeper was killed
TOKEN = "MALLOB_PY_BATCH_JOB"
OUTPUT = "output"
ALLOTMENT = "allotment.json"
#: the greatest size of a keeper's report of its job's end
_RESERVED_BYTES = 4096
#: the delay [s] before an action that failed for a passing reason is repeated
AGAIN_S = 1.0
#: the errors that may pass: a full disk, quota or system table
_PASSING = frozenset(
    (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.EAGAIN,
        errno.ENOMEM,
    )
)
#: the signals for which a keeper waits
SIGNALS = (signal.SIGCHLD, signal.SIGUSR1, *STOP_SIGNALS)


class Allotment(msgspec.Struct, frozen=True):
    """The cores of its node that a job may use, and how long the job may run [s].

    The node's cores, in order, are divided into `of` equal parts. The job has `parts`: (number of the part,
    begin and end of the job's share within it; 0 to 1 is the whole part).
    """

    parts: list[tuple[int, float, float]]
    of: int
    limit_s: float

    def cores(self, all_cores: Sequence[int]) -> list[int]:
        """Return those of a node's cores that belong to the allotment. Raises ValueError."""
        each = len(all_cores) // self.of
        found = list[int]()
        for part, first, last in self.parts:
            own = all_cores[part * each : (part + 1) * each][round(first * each) : round(last * each)]
            if not own:
                raise ValueError(
                    f"{len(all_cores)} cores are too few for {self.of} slots with cores of their own"
                )
            found += own
        return found


class Launch(msgspec.Struct, frozen=True):
    """The command to run, its folder and environment, and its time limit.

    `remote`: the command that reaches another node; empty: run on this node. `takes_orders`: whether the
    program may register for orders. `allotment`: the cores that it may use; None: all cores.
    """

    command: list[str]
    directory: str
    environment: dict[str, str]
    limit_s: float
    grace_s: float = GRACE_S
    remote: list[str] = []
    takes_orders: bool = False
    allotment: Allotment | None = None
    #: the files for output and error output. `output` "": a file in the job's folder; `errors` "": as
    #: `output`
    output: str = ""
    errors: str = ""


class Begun(msgspec.Struct, frozen=True):
    """The keeper's note that the program is about to start, or has started. `keeper`: its process id."""

    keeper: int


class RunEnd(enum.Enum):
    """The ways in which a job's run ends."""

    EXITED = "exited"
    CANCELLED = "cancelled"
    OVER_TIME = "over its required time"
    NOT_STARTED = "not started"
    KEEPER_KILLED = "keeper killed"
    #: the node was not reached, and the run has not begun
    UNREACHABLE = "node not reached"
    NODE_LOST = "node lost"


class Status(msgspec.Struct, frozen=True):
    """The end of a job's run. `code`: exit code, or minus the signal that ended the job; None: unknown."""

    ending: RunEnd
    code: int | None = None
    ran_s: float = 0.0
    error: str = ""

    @property
    def is_well(self) -> bool:
        """Return true if the job ended by itself, with exit code 0."""
        return self.ending is RunEnd.EXITED and self.code == 0

    def __str__(self) -> str:
        if self.ending is not RunEnd.EXITED:
            return f"{self.ending.value}: {self.error}" if self.error else self.ending.value
        if self.code is not None and self.code < 0:
            return f"signal {-self.code}"
        return f"exit code {self.code}"


def read_allotment(path: Path) -> Allotment:
    return msgspec.json.decode(path.read_bytes(), type=Allotment)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all, even if the power fails."""
    part = _part_of(path)
    with open(open_file(part, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.write(content)  # overwrites the bytes that `reserve` has written, if any
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def reserve(path: Path) -> None:
    """Reserve room for a file, so that it can be written later even if the disk is full. Raises OSError."""
    with open(open_file(_part_of(path), os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.write(b" " * _RESERVED_BYTES)


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def is_passing(error: Exception) -> bool:
    """Tell whether the reason for a failure may pass by itself."""
    return isinstance(error, OSError) and error.errno in _PASSING


def write_in_the_end(path: Path, content: bytes) -> None:
    """Write a file atomically; wait while the disk is full. Raises OSError for errors that do not pass."""
    while True:
        try:
            write_atomically(path, content)
        except OSError as error:
            if not is_passing(error):
                raise
            time.sleep(AGAIN_S)
        else:
            return


def open_output(folder: Path, path: str) -> BinaryIO:
    """Open the file for a job's output, and empty it if the user named the file. Raises OSError."""
    if not path:
        return open(folder / OUTPUT, "ab")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    os.set_blocking(descriptor, True)  # O_NONBLOCK was only to refuse pipes without a reader
    return os.fdopen(descriptor, "ab")


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
