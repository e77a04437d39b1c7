"""Which jobs of a client are at work, on file: to know after a crash who may have caused it.

`jobs.<i>/.running` holds a record per job that is being read or has workers: its internal id, at how many
crashes in a row it was at work, and how much that weighs. A rank that dies leaves the records there.
Started again after that (and not after a clean end, the death of everything or of a launcher, which are
no job's fault), the service counts one more for each of them. A crash at which a job was not at work
acquits it, and so does work for `ACQUITTED_AFTER_S` without one.

A rank that was killed (signal 9) is more often the operator's doing, or the kernel's when memory runs
out, than a job's: that weighs less. Who has `HOPELESS` is not run again; whom one more crash would bring
there, is *suspect* (see `Suspects`).

Written without any flush: it must outlast processes, not machines. What cannot be written is
left out; then a job may end the service more often.

Suspects are tried one at a time, after a while in which none of them is at work. A crash in that while, or
at another one's trial, has come without them and so acquits those that wait. Hence whoever kills ranks
again and again, for whatever reason, makes no job guilty: it takes crashes at all of a job's trials, and
none between them.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mallob_py.runtime.world.mpi import Crash

_WEIGHT = {Crash.OF_ITSELF: 5, Crash.KILLED: 2}
HOPELESS = 15
ACQUITTED_AFTER_S = 600.0
_RECORD = struct.Struct("<qii")
_NOBODY = _RECORD.pack(0, 0, 0)


class _Blame(NamedTuple):
    crashes: int = 0
    weight: int = 0


_NONE = _Blame()


class RunningJobs:
    """The records of one client. `crash`: what the former service ended by; None: no job is to blame."""

    def __init__(self, client_dir: Path, crash: Crash | None, log: Callable[[str], None]) -> None:
        self._log = log
        #: the jobs that were at work at crashes, with what weighs on them
        self.blamed: dict[int, _Blame] = {}
        self._slot_of: dict[int, int] = {}
        #: when the blamed ones that are at work began, in order
        self._began: deque[tuple[float, int]] = deque()
        self._free: list[int] = []
        self._slots = 0
        self._descriptor = -1
        path = client_dir / ".running"
        try:
            if os.path.lexists(path) and os.lstat(path).st_uid != os.geteuid():
                os.unlink(path)  # else another user might blame our jobs
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # nobody else's
            self._descriptor = os.open(path, flags, 0o666)
            if crash is not None:
                left = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
                whole = left[: len(left) // _RECORD.size * _RECORD.size]
                for job, crashes, weight in _RECORD.iter_unpack(whole):
                    if job:
                        self.blamed[job] = _Blame(crashes + 1, weight + _WEIGHT[crash])
            os.ftruncate(self._descriptor, 0)
        except OSError as error:
            log(f"cannot use {path}: {error.strerror}; a job that ends the service is not found out")

    def crashes(self, job: int) -> int:
        """At how many crashes in a row this job was at work."""
        return self.blamed.get(job, _NONE).crashes

    def crashes_max(self, job: int) -> int:
        """At how many in a row it will be given up, if no rank is killed any more."""
        blame = self.blamed.get(job, _NONE)
        return blame.crashes + max(0, -((blame.weight - HOPELESS) // max(_WEIGHT.values())))

    def is_hopeless(self, job: int) -> bool:
        return self.blamed.get(job, _NONE).weight >= HOPELESS

    def verdict(self, job: int) -> str:
        """Return the error text of the reply to a hopeless job."""
        return (
            f"ended the service {self.crashes(job)} times in a row (or was at work each time); not run again"
        )

    def is_suspect(self, job: int) -> bool:
        weight = self.blamed.get(job, _NONE).weight
        return HOPELESS - max(_WEIGHT.values()) <= weight < HOPELESS

    def begin(self, job: int, now: float) -> None:
        """From now on a crash may be this job's fault."""
        if self._descriptor < 0 or job in self._slot_of:
            return
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._slots
            self._slots += 1
        self._slot_of[job] = slot
        blame = self.blamed.get(job, _NONE)
        if blame is not _NONE:
            self._began.append((now, job))
        self._write(slot, _RECORD.pack(job, *blame))

    def rest(self, job: int) -> None:
        """Until it begins again a crash is not its fault; what it is blamed for already stays."""
        slot = self._slot_of.pop(job, None)
        if slot is not None:
            self._free.append(slot)
            self._write(slot, _NOBODY)

    def end(self, job: int) -> None:
        """It has its reply."""
        self.blamed.pop(job, None)
        self.rest(job)

    def acquit(self, now: float) -> None:
        """Acquit the jobs that have worked for long without a crash."""
        while self._began and self._began[0][0] <= now - ACQUITTED_AFTER_S:
            _, job = self._began.popleft()
            if self.blamed.pop(job, None) is not None and job in self._slot_of:
                self._write(self._slot_of[job], _RECORD.pack(job, *_NONE))

    def close(self) -> None:
        """Close the file and keep its content: ranks may also end in good order because another one has
        crashed.
        """
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def hand_over(self) -> None:
        """Blame no job for what follows: another rank goes on with the jobs."""
        for job in list(self._slot_of):
            self.rest(job)
        self.close()

    def _write(self, slot: int, record: bytes) -> None:
        try:
            os.pwrite(self._descriptor, record, slot * _RECORD.size)
        except OSError as error:
            self._log(f"cannot note which jobs run: {error.strerror}")
