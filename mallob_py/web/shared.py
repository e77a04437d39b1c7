"""What many requests want to know at once is looked up once for all of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mallob_py.service.pending import Pending, PendingJobs
from mallob_py.service.status_file import JobStatus, ServiceStatus, read_status
from mallob_py.web.shares import shares_by_job

_STATUS_LASTS_S = 0.2


@dataclass(frozen=True, slots=True)
class SeenStatus:
    """The status, however old, its jobs by client and name, and their fair shares by number."""

    status: ServiceStatus | None
    jobs: Mapping[tuple[int, str], JobStatus]
    shares: Mapping[int, float]


class SharedStatus:
    """The service's status, read a few times a second for all who ask: it holds all live jobs."""

    def __init__(self, api_dir: Path) -> None:
        self._api_dir = api_dir
        self._mutex = threading.Lock()
        self._read_s = -math.inf
        self._seen = SeenStatus(None, {}, {})

    def now(self) -> SeenStatus:
        with self._mutex:
            if time.monotonic() >= self._read_s + _STATUS_LASTS_S:
                status = read_status(self._api_dir)
                jobs = status.jobs if status else ()
                shares = shares_by_job(status) if status else {}
                self._seen = SeenStatus(status, {(job.client, job.identity): job for job in jobs}, shares)
                self._read_s = time.monotonic()
            return self._seen


class SharedLook:
    """Looks at the jobs of a client without a reply. Who asks while others look shares the next one."""

    def __init__(self, client_dir: Path) -> None:
        self._pending = PendingJobs(client_dir)
        self._mutex = threading.Lock()
        self._begun_s = -math.inf
        self._found = Pending(frozenset(), frozenset())

    def now(self) -> Pending:
        """What there is now, or has been after this call."""
        asked_s = time.monotonic()
        with self._mutex:
            if self._begun_s <= asked_s:
                self._begun_s = time.monotonic()
                self._found = self._pending.look()
            return self._found
