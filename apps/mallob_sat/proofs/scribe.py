"""A process that brings what a solver writes to the disk, and notices if it does not get there.

CaDiCaL does not look whether its writes succeed: on a full disk it would go on and leave a proof
with holes. So it writes into a pipe, and a child process of ours copies that to the file, checking
every write. It ends with the pipe, hence also when the solver is killed.

Guarantee: `deliver` gives the file its name only if every byte is on the disk.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fcntl import fcntl
from typing import NoReturn

from mallob_py.kit import UnfinishedFile

_F_SETPIPE_SZ = 1031
_CHUNK_BYTES = 1 << 20
#: after so little, wait a bit: CaDiCaL writes line by line, and being woken for each costs more than it
_LITTLE_BYTES = 1 << 15
_NAP_S = 0.005


@contextmanager
def writing_to(file: UnfinishedFile) -> Iterator[Scribe]:
    """A scribe for a file, which is closed in the end, delivered or not."""
    try:
        with Scribe(file) as scribe:
            yield scribe
    finally:
        file.close()


class Scribe:
    """Copies to a file all that is written to `fileno()`, in this process or in C code."""

    def __init__(self, file: UnfinishedFile) -> None:
        self._file = file
        ours, theirs = os.pipe()
        with suppress(OSError):  # the solver should seldom wait; less is granted where pipes are scarce
            fcntl(theirs, _F_SETPIPE_SZ, _CHUNK_BYTES)
        self._pid = os.fork()
        if self._pid == 0:
            _copy_and_exit(ours, file.fd)
        os.close(ours)
        self._pipe = os.fdopen(theirs, "w", encoding="ascii")

    def __enter__(self) -> Scribe:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:  # not delivered
            os.kill(self._pid, signal.SIGKILL)  # ours and not waited for, hence no stranger
            self._wait()

    def fileno(self) -> int:
        return self._pipe.fileno()

    def write(self, lines: Iterable[str]) -> None:
        """What does not come from the solver."""
        with suppress(BrokenPipeError):  # `deliver` knows the reason
            self._pipe.writelines(lines)
            self._pipe.flush()

    def deliver(self) -> None:
        """Wait until all is on the disk; other holders of the pipe must have closed it.

        Raises ResultFileError.
        """
        code = self._wait()
        if code != 0:
            code = code if code > 0 else errno.EIO
            raise self._file.failure(OSError(code, os.strerror(code)))
        self._file.deliver()

    def _wait(self) -> int:
        with suppress(BrokenPipeError):
            self._pipe.close()
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _copy_and_exit(source_fd: int, target_fd: int) -> NoReturn:
    """In the child, which must never return into the code of the worker. Exits with an error number."""
    code = errno.EIO
    try:
        # The worker's socket and the pipe's other end must close when the worker ends.
        lower, upper = sorted((source_fd, target_fd))
        os.closerange(0, lower)
        os.closerange(lower + 1, upper)
        os.closerange(upper + 1, os.sysconf("SC_OPEN_MAX"))
        while chunk := os.read(source_fd, _CHUNK_BYTES):
            left = memoryview(chunk)
            while left:
                left = left[os.write(target_fd, left) :]
            if len(chunk) < _LITTLE_BYTES:
                time.sleep(_NAP_S)
        os.fsync(target_fd)
        code = 0
    except OSError as error:
        code = error.errno or errno.EIO
    finally:
        os._exit(code)
