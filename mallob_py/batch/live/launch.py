"""The files in a job's folder by which its keeper is told, and tells.

`launch.json` says what to run, `begun.json` that it is about to run, `allotment.json` which cores it may use,
`status.json` how it has ended. Each is written as a whole or not at all.
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

#: between SIGTERM and SIGKILL
GRACE_S = 5.0
#: the variable by which processes of a job are known if its keeper was killed
TOKEN = "MALLOB_PY_BATCH_JOB"
OUTPUT = "output"
ALLOTMENT = "allotment.json"
#: what a keeper says of its job's end has less
_RESERVED_BYTES = 4096
#: until what has failed for a reason that passes is tried again
AGAIN_S = 1.0
#: a disk, a quota, or a table of the system is full
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
#: for which a keeper waits
SIGNALS = (signal.SIGCHLD, signal.SIGUSR1, *STOP_SIGNALS)


class Allotment(msgspec.Struct, frozen=True):
    """Which cores of its node a job may use, and for how long it may run [s].

    The cores are divided into `of` parts, in their order. The job has these `parts`, each from where to where
    (0 to 1: all of it).
    """

    parts: list[tuple[int, float, float]]
    of: int
    limit_s: float

    def cores(self, all_cores: Sequence[int]) -> list[int]:
        """Return the cores of the allotment among these. Raises ValueError."""
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
    """The command to run, in which folder, with which environment, and how long at most.

    `remote`: the command that starts what follows it on another node; empty: the node is this one.
    `takes_orders`: it may say that it does. `allotment`: None if it may use all cores.
    """

    command: list[str]
    directory: str
    environment: dict[str, str]
    limit_s: float
    grace_s: float = GRACE_S
    remote: list[str] = []
    takes_orders: bool = False
    allotment: Allotment | None = None
    #: paths of files for what the program prints, if not in the job's folder; all its output if there is one
    output: str = ""
    errors: str = ""


class Begun(msgspec.Struct, frozen=True):
    """The program is about to start, or has."""

    keeper: int


class RunEnd(enum.Enum):
    """The ways in which the run of a job has ended."""

    EXITED = "exited"
    CANCELLED = "cancelled"
    OVER_TIME = "over its required time"
    NOT_STARTED = "not started"
    KEEPER_KILLED = "keeper killed"
    #: it has not begun
    UNREACHABLE = "node not reached"
    NODE_LOST = "node lost"


class Status(msgspec.Struct, frozen=True):
    """`code`: the exit code, or less than 0 the signal that has ended it; None: none is known."""

    ending: RunEnd
    code: int | None = None
    ran_s: float = 0.0
    error: str = ""

    @property
    def is_well(self) -> bool:
        """Whether it has ended by itself, with exit code 0."""
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
    """It is there as a whole or not at all, also after a loss of power."""
    part = _part_of(path)
    with open(open_file(part, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.write(content)  # into the room that it has, if it was reserved
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def reserve(path: Path) -> None:
    """Have room for a file that is written atomically later, whatever fills the disk until then. Raises
    OSError.
    """
    with open(open_file(_part_of(path), os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.write(b" " * _RESERVED_BYTES)


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def is_passing(error: Exception) -> bool:
    """Whether what failed may succeed in a while, with nothing changed about the job."""
    return isinstance(error, OSError) and error.errno in _PASSING


def write_in_the_end(path: Path, content: bytes) -> None:
    """Write a file atomically, however long a disk is full. Raises OSError for what does not pass."""
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
    """Open the file for what a job prints, which is made empty if the user has named it. Raises OSError."""
    if not path:
        return open(folder / OUTPUT, "ab")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    os.set_blocking(descriptor, True)  # a pipe without a reader was refused
    return os.fdopen(descriptor, "ab")


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
