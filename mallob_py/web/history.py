"""The last minutes: volumes, fair shares and job trees at each second, as the page's slider wants them.

Bounded in number and in bytes, the oldest samples go first. Taken from the status that the service
writes in any case; trees are in it only while somebody looks.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from mallob_py.runtime.rank_reports import WorkerPlace
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus
from mallob_py.web.views import shares_by_job

SAMPLES_MAX = 600
_BYTES_MAX = 8 << 20
#: the largest ones; the rest is one sum
_JOBS_MAX = 50


class Sample(msgspec.Struct, frozen=True):
    """The service at `time` (since 1970). `volumes` and `shares` (in PEs) are by number of the job.

    `others` is the volume of the jobs that are not named. `workers`: on this PE, of this job, the worker of
    this index, whose parent has the index (index - 1) // 2; null if nobody was looking then.
    """

    time: float
    pes: int
    busy: int
    volumes: Mapping[int, int]
    shares: Mapping[int, float]
    others: int = 0
    workers: tuple[WorkerPlace, ...] | None = None


class JobName(msgspec.Struct, frozen=True):
    """Whose volumes these are."""

    user: str
    name: str
    client: int


class HistoryPart(msgspec.Struct, frozen=True):
    """Samples, the oldest first, and the jobs in them by number."""

    samples: list[Sample]
    jobs: Mapping[int, JobName]


class _Kept(msgspec.Struct, frozen=True):
    """A sample as it is sent: many of them are kept, and most are sent once."""

    time: float
    encoded: bytes
    jobs: frozenset[int]


class History:
    """All methods may be called from any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._kept: deque[_Kept] = deque()
        self._size_bytes = 0
        self._names: dict[int, JobName] = {}
        #: in how many samples
        self._uses: Counter[int] = Counter()

    def note(self, status: ServiceStatus) -> None:
        """Keep this moment, unless it is kept already."""
        with self._mutex:
            if self._kept and status.time <= self._kept[-1].time:
                return
            sample, names = _sample_of(status)
            self._names.update(names)
            kept = _Kept(status.time, msgspec.json.encode(sample), frozenset(names))
            self._uses.update(kept.jobs)
            self._kept.append(kept)
            self._size_bytes += len(kept.encoded)
            while len(self._kept) > SAMPLES_MAX or (self._size_bytes > _BYTES_MAX and len(self._kept) > 1):
                self._drop(self._kept.popleft())

    def since(self, time_s: float) -> bytes:
        """What is younger, as a `HistoryPart` in JSON."""
        with self._mutex:
            part = [kept for kept in self._kept if kept.time > time_s]
            names = {job: self._names[job] for kept in part for job in kept.jobs}
        samples = b",".join(kept.encoded for kept in part)
        return b'{"samples":[' + samples + b'],"jobs":' + msgspec.json.encode(names) + b"}"

    def _drop(self, kept: _Kept) -> None:
        self._size_bytes -= len(kept.encoded)
        self._uses.subtract(kept.jobs)
        for job in kept.jobs:
            if not self._uses[job]:
                del self._uses[job], self._names[job]


def _sample_of(status: ServiceStatus) -> tuple[Sample, dict[int, JobName]]:
    shares = shares_by_job(status)

    def weight(job: JobStatus) -> tuple[float, ...]:
        return (-job.volume, -shares.get(job.id, 0.0), job.id)

    concerned = sorted((job for job in status.jobs if job.volume or job.id in shares), key=weight)
    named, others = concerned[:_JOBS_MAX], concerned[_JOBS_MAX:]
    sample = Sample(
        time=round(status.time, 3),
        pes=status.pes,
        busy=status.busy,
        volumes={job.id: job.volume for job in named if job.volume},
        shares={job.id: round(shares[job.id], 3) for job in named if job.id in shares},
        others=sum(job.volume for job in others),
        workers=status.workers,
    )
    return sample, {job.id: JobName(job.user, job.name, job.client) for job in named}
