"""Flush policies: files must survive a loss of power (`serve --durable`), or only the death of processes.

The kernel keeps what a killed process has written, and brings it to the disk within about half a minute.
Flushing a file costs some milliseconds, mostly the disk's, and flushing many files at once costs little more;
so files are flushed together, by some threads.

A durable service leaves a mark in its folder, so that clients flush the files that they hand in.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from mallob_py.service.store import own_folder

_THREADS = 16
_MARK = ".durable"
#: errors of opening a file that has gone, a file that we may not read, or something that is no file
_NOTHING_TO_FLUSH = frozenset(
    (
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.ENXIO,
        errno.ENODEV,
        errno.ELOOP,
        errno.ENOTDIR,
        errno.ENAMETOOLONG,
    )
)


class FlushPolicy(Protocol):
    """The way in which written files are made safe."""

    #: whether `flush` takes time, so that it pays to flush files together; if not, `flush` does nothing
    is_slow: bool

    def flush(self, paths: Iterable[str | Path]) -> None:
        """Make the contents of these files and the names in these folders safe. Raises OSError."""


class Buffered:
    """The policy that leaves flushing to the kernel."""

    is_slow = False

    def flush(self, paths: Iterable[str | Path]) -> None:
        pass


class Durable:
    """The policy that flushes files and waits for the disk."""

    is_slow = True

    def __init__(self) -> None:
        # Imported only here, since it loads many modules that nothing else needs.
        from concurrent.futures import ThreadPoolExecutor

        self._threads = ThreadPoolExecutor(_THREADS, "mallob-py-flush")

    def flush(self, paths: Iterable[str | Path]) -> None:
        wanted = list(paths)
        if len(wanted) == 1:
            _flush(wanted[0])
            return
        for _ in self._threads.map(_flush, wanted):
            pass


def leave_mark(client_dir: Path, flush_policy: FlushPolicy) -> None:
    """Mark the folder with its service's policy, for clients. Raises OSError, also if the mark is a link."""
    if flush_policy.is_slow:
        os.close(own_folder.open_file(client_dir / _MARK, os.O_WRONLY | os.O_CREAT, 0o644))
    else:
        (client_dir / _MARK).unlink(missing_ok=True)


def flush_policy_of(client_dir: Path) -> FlushPolicy:
    """Return the flush policy of the service of this folder."""
    return Durable() if os.path.exists(os.path.join(client_dir, _MARK)) else Buffered()


def _flush(path: str | Path) -> None:
    try:
        # The file is opened non-blocking, because anybody may put a pipe into `in/`.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOTHING_TO_FLUSH:
            return
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system cannot flush folders
            raise
    finally:
        os.close(descriptor)
