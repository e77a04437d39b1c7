"""Status files: what each client of the service says about itself once a second.

`<api-dir>/status.json` from client 0, which speaks for the service as a whole, and
`jobs.<i>/.status.json` from each further one, replaced atomically. `read_status` makes one of them.
A reader takes one that is older than `STALE_AFTER_S` (or missing) as "no service is running": a
service that was killed leaves its last one behind.

Which PE works for which job is in it only while somebody looks, who says so by `look` every few seconds:
the service asks its ranks for that, and for nobody it would be in vain.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from pathlib import Path

import msgspec

from mallob_py.runtime.roll_call import WorkerPlace
from mallob_py.service.tallies import Totals, sum_of

STATUS_FILE_NAME = "status.json"
STALE_AFTER_S = 5.0
#: below the api folder; its time says when somebody looked last
_LOOK_PATH = "web/looking"
_LOOK_LASTS_S = 5.0


class JobStatus(msgspec.Struct, frozen=True):
    """One live job. `volume` is its number of workers, `client` the one that took it in.

    `balanced_priority` is what it is balanced with, as its user's share allows; 0 before it is.
    """

    id: int
    user: str
    name: str
    state: str
    priority: float = 1.0
    volume: int = 0
    demand: int = 0
    elapsed_s: float = 0.0
    application: str = ""
    client: int = 0
    balanced_priority: float = 0.0

    @property
    def identity(self) -> str:
        return f"{self.user}.{self.name}"


class RankProcess(msgspec.Struct, frozen=True):
    """Where a client's rank runs."""

    host: str
    pid: int


class ServiceStatus(msgspec.Struct, frozen=True):
    """The service at `time` (seconds since 1970): `busy` of its `pes` run a worker."""

    time: float
    ranks: int
    pes: int
    busy: int
    jobs: tuple[JobStatus, ...] = ()
    clients: int = 1
    started: float = 0.0
    totals: Totals = Totals()
    processes: tuple[RankProcess, ...] = ()
    #: None while nobody looks
    workers: tuple[WorkerPlace, ...] | None = None

    def age_s(self, now: float | None = None) -> float:
        return max(0.0, (time.time() if now is None else now) - self.time)

    def is_stale(self, now: float | None = None) -> bool:
        return self.age_s(now) > STALE_AFTER_S

    def volumes_by_user(self) -> Counter[str]:
        """Workers of all jobs of each user that has a live job."""
        volumes: Counter[str] = Counter()
        for job in self.jobs:
            volumes[job.user] += job.volume
        return volumes

    def job(self, identity: str, client: int) -> JobStatus | None:
        """The live job of this identity at this client."""
        return next((job for job in self.jobs if job.client == client and job.identity == identity), None)


def write_status(api_dir: str | os.PathLike[str], status: ServiceStatus, client: int = 0) -> None:
    """Replace a client's status file. Raises OSError."""
    target = _path(api_dir, client)
    temporary = target.with_name(f"~{STATUS_FILE_NAME}")
    temporary.write_bytes(msgspec.json.encode(status))
    temporary.replace(target)


def remove_status(api_dir: str | os.PathLike[str], client: int = 0) -> None:
    """Say that the client has ended."""
    _path(api_dir, client).unlink(missing_ok=True)


def read_status(api_dir: str | os.PathLike[str]) -> ServiceStatus | None:
    """The last status of the service, however old; None if there is none that can be read."""
    first = _read(_path(api_dir, 0))
    if first is None or first.clients == 1:
        return first
    others = [_read(_path(api_dir, client)) for client in range(1, first.clients)]
    # A client of an earlier service may have left a file behind: it is old.
    parts = [first, *(other for other in others if other and abs(other.time - first.time) < STALE_AFTER_S)]
    return msgspec.structs.replace(
        first,
        jobs=tuple(job for part in parts for job in part.jobs),
        totals=sum_of(part.totals for part in parts),
        processes=tuple(process for part in parts for process in part.processes),
    )


def read_live_status(api_dir: str | os.PathLike[str]) -> ServiceStatus | None:
    """The status of a service that runs; None if none does."""
    status = read_status(api_dir)
    return None if status is None or status.is_stale() else status


def look(api_dir: str | os.PathLike[str]) -> None:
    """For the next few seconds, have the status say which PE works for which job. Raises OSError."""
    path = Path(api_dir) / _LOOK_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


class Onlookers:
    """Whether anybody has called `look` lately. Clocks of several hosts are not compared."""

    def __init__(self, api_dir: str | os.PathLike[str]) -> None:
        self._path = os.path.join(api_dir, _LOOK_PATH)
        self._last = self._looked()
        self._until_s = -math.inf

    def are_there(self, now: float) -> bool:
        if (looked := self._looked()) != self._last:
            self._last = looked
            self._until_s = now + _LOOK_LASTS_S
        return now < self._until_s

    def _looked(self) -> int:
        try:
            return os.stat(self._path).st_mtime_ns
        except OSError:
            return 0


def _path(api_dir: str | os.PathLike[str], client: int) -> Path:
    folder = Path(api_dir)
    return folder / STATUS_FILE_NAME if client == 0 else folder / f"jobs.{client}" / f".{STATUS_FILE_NAME}"


def _read(path: Path) -> ServiceStatus | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServiceStatus)
    except (OSError, msgspec.MsgspecError):
        return None
