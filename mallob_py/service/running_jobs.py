"""Which jobs of a client are running, on file: to know after a crash who may have caused it.

`jobs.<i>/.running` holds a pair per running job: its internal id and how many crashes in a row it
was running at. A rank that dies leaves the pairs there. Started again after that (and not after
a clean end or the death of everything, which are no job's fault), the service counts one more
for each of them. A job with CRASHES_MAX is not run again; one with a crash less, a *suspect*, is
to be run while no other suspect runs, so that the last crash hits the right one.

Written without any flush: it must outlast processes, not machines. What cannot be written is
left out; then a job may end the service more often.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

CRASHES_MAX = 3
_PAIR = struct.Struct("<qq")
_NOBODY = _PAIR.pack(0, 0)


class RunningJobs:
    """The pairs of one client. `after_crash`: what the file says counts."""

    def __init__(self, client_dir: Path, after_crash: bool, log: Callable[[str], None]) -> None:
        self._log = log
        self._crashes: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}
        self._free: list[int] = []
        self._slots = 0
        self._descriptor = -1
        path = client_dir / ".running"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if after_crash:
                left = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
                whole = left[: len(left) // _PAIR.size * _PAIR.size]
                self._crashes = {job: crashes + 1 for job, crashes in _PAIR.iter_unpack(whole) if job}
            os.ftruncate(self._descriptor, 0)
        except OSError as error:
            log(f"cannot use {path}: {error.strerror}; a job that ends the service is not found out")

    def crashes(self, job: int) -> int:
        """How many crashes in a row this job was running at."""
        return self._crashes.get(job, 0)

    def is_hopeless(self, job: int) -> bool:
        return self.crashes(job) >= CRASHES_MAX

    def is_suspect(self, job: int) -> bool:
        return self.crashes(job) == CRASHES_MAX - 1

    def begin(self, job: int) -> None:
        """From now on a crash may be this job's fault."""
        if self._descriptor < 0:
            return
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._slots
            self._slots += 1
        self._slot_of[job] = slot
        self._write(slot, _PAIR.pack(job, self.crashes(job)))

    def end(self, job: int) -> None:
        """It has its reply."""
        self._crashes.pop(job, None)
        slot = self._slot_of.pop(job, None)
        if slot is not None:
            self._free.append(slot)
            self._write(slot, _NOBODY)

    def close(self) -> None:
        """What is written stays: ranks may also end in good order because another one has crashed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, slot: int, pair: bytes) -> None:
        try:
            os.pwrite(self._descriptor, pair, slot * _PAIR.size)
        except OSError as error:
            self._log(f"cannot note which jobs run: {error.strerror}")
