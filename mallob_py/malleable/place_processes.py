"""`PlaceProcesses`: one process per place, for a program that starts its processes as its own children."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mallob_py.malleable.orders import Place

#: how long a process may take to end after SIGTERM
GRACE_S = 10.0


def allotted_hosts() -> list[str]:
    """Return the host of each initial process: the lines of `NODE_FILE`, which the scheduler has written.

    Without a scheduler, returns this host `NODES` times, by default once. Raises OSError, ValueError.
    """
    if path := os.environ.get("NODE_FILE"):
        return Path(path).read_text(encoding="utf-8").split()
    return ["localhost"] * int(os.environ.get("NODES", "1"))


class PlaceProcesses:
    """Processes that `start(place)` starts. They are ended by SIGTERM, and after `grace_s` by SIGKILL.

    `hosts`: the hosts of the initial processes, by default `allotted_hosts()`. Raises any exception of
    `start`.
    """

    def __init__(
        self,
        start: Callable[[Place], subprocess.Popen[str]] | Callable[[Place], subprocess.Popen[bytes]],
        hosts: Sequence[str] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._start = start
        self._grace_s = grace_s
        self._count = 0
        self._lock = threading.Lock()
        self._processes: dict[Place, subprocess.Popen[str] | subprocess.Popen[bytes]] = {}
        self.start(allotted_hosts() if hosts is None else hosts)

    @property
    def places(self) -> list[Place]:
        """Return the places of running processes, ordered by id."""
        with self._lock:
            return list(self._processes)

    def process(self, place: Place) -> subprocess.Popen[str] | subprocess.Popen[bytes]:
        """Return the process of a place. Raises KeyError if the place does not exist any more."""
        with self._lock:
            return self._processes[place]

    def start(self, hosts: Sequence[str]) -> list[Place]:
        places = [Place(self._count + place, host) for place, host in enumerate(hosts)]
        self._count += len(places)
        for place in places:
            process = self._start(place)
            with self._lock:
                self._processes[place] = process
        return places

    def end(self, places: Sequence[Place]) -> None:
        processes = [self.process(place) for place in places]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(self._grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with self._lock:
            for place in places:
                del self._processes[place]
