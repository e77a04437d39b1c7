"""Things that many requests want to know at once are looked up once for all: status, jobs without reply,
arrivals.

While nobody waits for a reply, nothing is watched. An arrival costs what looks for that file, no matter how
many others wait (`api.replies`: inotify where it works): who waits is woken by the name of the file that
appears.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from mallob_py.api.replies import NewFiles
from mallob_py.service.client import Pending, PendingJobs
from mallob_py.service.telemetry.measures import shares_by_job
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus, StatusWatch

#: between looks, while somebody waits
_POLL_S = 0.01
#: at the latest so often somebody who waits looks, too: what has gone without a trace makes no news
_WAIT_MAX_S = 2.0


class Arrivals:
    """The replies that appear in the folders of clients; for one event loop."""

    def __init__(self, out_dir: Callable[[int], Path]) -> None:
        """`out_dir`: from a client to the folder of its replies."""
        self._out_dir = out_dir
        #: by client and file name
        self._waiting: dict[int, dict[str, set[asyncio.Event]]] = {}
        self._watchers: dict[int, asyncio.Task[None]] = {}
        #: nobody is to wait any more
        self.is_over = False

    @contextmanager
    def expecting(self, client: int, names: frozenset[str]) -> Iterator[Expectation]:
        """From now on, the arrival of a file of one of these names is not missed."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(client, {})
        for name in names:
            waiting.setdefault(name, set()).add(event)
        if client not in self._watchers:
            self._watchers[client] = asyncio.create_task(self._watch(client))
        try:
            yield Expectation(event)
        finally:
            for name in names:
                waiting[name].discard(event)
                if not waiting[name]:
                    del waiting[name]

    def close(self) -> None:
        """Wake all who wait: the server ends."""
        self.is_over = True
        for waiting in self._waiting.values():
            for events in waiting.values():
                for event in events:
                    event.set()

    async def _watch(self, client: int) -> None:
        waiting = self._waiting[client]
        files = NewFiles(self._out_dir(client))
        try:
            while waiting:
                for name in await run_in_threadpool(files.look):
                    for event in waiting.get(name, ()):
                        event.set()
                await asyncio.sleep(_POLL_S)
        finally:
            files.close()
            del self._watchers[client]


class Expectation:
    """The expectation of one request that waits."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def wait_for_news(self) -> None:
        """Until one of the files has appeared, or appeared once more."""
        await self._event.wait()
        self._event.clear()

    async def wait(self, timeout_s: float) -> None:
        """Until there is news, or it is time to look all the same."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.wait_for_news(), min(timeout_s, _WAIT_MAX_S))


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
        self._watch = StatusWatch(api_dir)
        self._mutex = threading.Lock()
        self._read_s = -math.inf
        self._seen = SeenStatus(None, {}, {})

    def now(self) -> SeenStatus:
        with self._mutex:
            if time.monotonic() >= self._read_s + _STATUS_LASTS_S:
                status = self._watch.read()
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
        """Return what there is now, or has been after this call."""
        asked_s = time.monotonic()
        with self._mutex:
            if self._begun_s <= asked_s:
                self._begun_s = time.monotonic()
                self._found = self._pending.look()
            return self._found
