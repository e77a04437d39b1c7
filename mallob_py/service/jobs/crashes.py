"""Records of the jobs at work, which tell after a restart which jobs may have caused a crash.

`jobs.<i>/.running` holds a record per job that is being read or has workers: its internal id, the number of
crashes in a row at which it was at work, and their weight. The records outlast a lost rank. The service,
restarted after a crash (not after a clean end, the death of all ranks or of a launcher, which no job causes),
adds one crash to each record. A job is acquitted by a crash at which it was not at work, and by
`ACQUITTED_AFTER_S` of work without a crash.

A rank killed by signal 9 weighs less, since the operator, or the kernel for lack of memory, is more often the
cause than a job. A job with weight `HOPELESS` is not run again; a job that one more crash would make hopeless
is a *suspect* (see `Suspects`).

Records are not flushed: they must outlast processes, not machines. If records cannot be written, a job may
end the service more often.

Suspects are tried one at a time, after some time in which none of them is at work. A crash in that time, or
at another suspect's trial, acquits the suspects that wait. So somebody who kills ranks again and again makes
no job guilty: guilt needs crashes at all of a job's trials, and none between.
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
    """The records of one client. `crash`: how the former service ended; None: no job caused its end."""

    def __init__(self, client_dir: Path, crash: Crash | None, log: Callable[[str], None]) -> None:
        self._log = log
        #: job that was at work at crashes -> number of these crashes, and their weight
        self.blamed: dict[int, _Blame] = {}
        self._slot_of: dict[int, int] = {}
        #: (time, job) for each job in `blamed` that began, in order of time
        self._began: deque[tuple[float, int]] = deque()
        self._free: list[int] = []
        self._slots = 0
        self._descriptor = -1
        path = client_dir / ".running"
        try:
            if os.path.lexists(path) and os.lstat(path).st_uid != os.geteuid():
                os.unlink(path)  # another user's file could hold false records
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # ours, or new
            self._descriptor = os.open(path, flags, 0o666)
            if crash is not None:
                left = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
                whole = left[: len(left) // _RECORD.size * _RECORD.size]
                for job, crashes, weight in _RECORD.iter_unpack(whole):
                    if job:
                        self.blamed[job] = _Blame(crashes + 1, weight + _WEIGHT[crash])
            os.ftruncate(self._descriptor, 0)
        except OSError as error:
            log(f"cannot use {path}: {error.strerror}; a job that crashes the service cannot be identified")

    def crashes(self, job: int) -> int:
        """Return the number of crashes in a row at which a job was at work."""
        return self.blamed.get(job, _NONE).crashes

    def crashes_max(self, job: int) -> int:
        """Return after how many crashes in a row a job is not run again, if no rank gets signal 9."""
        blame = self.blamed.get(job, _NONE)
        return blame.crashes + max(0, -((blame.weight - HOPELESS) // max(_WEIGHT.values())))

    def is_hopeless(self, job: int) -> bool:
        return self.blamed.get(job, _NONE).weight >= HOPELESS

    def verdict(self, job: int) -> str:
        """Return the error text of the reply to a job that is not run again after crashes."""
        return (
            f"the service crashed {self.crashes(job)} times in a row while it worked on this job, perhaps"
            " because of the job; it is not run again"
        )

    def is_suspect(self, job: int) -> bool:
        weight = self.blamed.get(job, _NONE).weight
        return HOPELESS - max(_WEIGHT.values()) <= weight < HOPELESS

    def begin(self, job: int, now: float) -> None:
        """Record that a job may cause a crash from now on."""
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
        """Count no crashes against a job until it begins again; former crashes still count."""
        slot = self._slot_of.pop(job, None)
        if slot is not None:
            self._free.append(slot)
            self._write(slot, _NOBODY)

    def end(self, job: int) -> None:
        """Forget a job that has its reply."""
        self.blamed.pop(job, None)
        self.rest(job)

    def acquit(self, now: float) -> None:
        """Acquit the jobs that have worked for long without a crash."""
        while self._began and self._began[0][0] <= now - ACQUITTED_AFTER_S:
            _, job = self._began.popleft()
            if self.blamed.pop(job, None) is not None and job in self._slot_of:
                self._write(self._slot_of[job], _RECORD.pack(job, *_NONE))

    def close(self) -> None:
        """Close the file, but keep it: ranks also end in good order after another rank's crash."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def hand_over(self) -> None:
        """Count later crashes against no job, since another rank goes on with the jobs."""
        for job in list(self._slot_of):
            self.rest(job)
        self.close()

    def _write(self, slot: int, record: bytes) -> None:
        try:
            os.pwrite(self._descriptor, record, slot * _RECORD.size)
        except OSError as error:
            self._log(f"cannot note which jobs run: {error.strerror}")
