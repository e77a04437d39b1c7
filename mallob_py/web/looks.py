"""Lookups shared by concurrent requests: the status, jobs without a reply, and arriving replies.

Files are watched only while a request waits for a reply. The cost of an arrival depends only on the requests
that wait for that file (`api.replies`: inotify where it works): the name of the new file wakes them.
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

#: the time between two searches for new files while a request waits
_POLL_S = 0.01
#: the longest time between two searches by a waiting request, since the removal of a file wakes no request
_WAIT_MAX_S = 2.0


class Arrivals:
    """The replies that appear in the folders of clients, for one event loop."""

    def __init__(self, out_dir: Callable[[int], Path]) -> None:
        """Watch folders; `out_dir` maps a client to the folder of its replies."""
        self._out_dir = out_dir
        #: client -> file name -> events of the requests that wait for the file
        self._waiting: dict[int, dict[str, set[asyncio.Event]]] = {}
        self._watchers: dict[int, asyncio.Task[None]] = {}
        #: whether the server ends, so that no request may wait any more
        self.is_over = False

    @contextmanager
    def expecting(self, client: int, names: frozenset[str]) -> Iterator[Expectation]:
        """Note the arrival of any file of these names while this context is open."""
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
        """Wake all waiting requests, since the server ends."""
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
    """The files that one waiting request expects."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def wait_for_news(self) -> None:
        """Wait until one of the files has appeared, for the first time or again."""
        await self._event.wait()
        self._event.clear()

    async def wait(self, timeout_s: float) -> None:
        """Wait until a file has appeared, at most until the next look is due."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.wait_for_news(), min(timeout_s, _WAIT_MAX_S))


_STATUS_LASTS_S = 0.2


@dataclass(frozen=True, slots=True)
class SeenStatus:
    """The last status, of any age; `jobs`: (client, identity) -> job; `shares`: number -> fair share."""

    status: ServiceStatus | None
    jobs: Mapping[tuple[int, str], JobStatus]
    shares: Mapping[int, float]


class SharedStatus:
    """The service's status with all live jobs, read a few times a second for all requests."""

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
    """Searches for a client's jobs without a reply. All calls during a search share the next search."""

    def __init__(self, client_dir: Path) -> None:
        self._pending = PendingJobs(client_dir)
        self._mutex = threading.Lock()
        self._begun_s = -math.inf
        self._found = Pending(frozenset(), frozenset())

    def now(self) -> Pending:
        """Return the jobs without a reply, found by a search that began after this call."""
        asked_s = time.monotonic()
        with self._mutex:
            if self._begun_s <= asked_s:
                self._begun_s = time.monotonic()
                self._found = self._pending.look()
            return self._found
