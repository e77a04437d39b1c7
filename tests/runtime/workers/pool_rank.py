"""A pool of worker processes under test, with its events so far and waits for events."""

import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from faults.processes import lives
from waiting import DEADLINE_S

from mallob_py.kit.payload import encode_description
from mallob_py.protocol import stimuli
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.workers.links import ForkServer
from mallob_py.runtime.workers.pool import WorkerPool
from mallob_py.runtime.workers.tasks import Key, ReadTask, WorkerEvent

HERE = Path(__file__).parent
CLASSES = [
    *("Answer", "Finish", "Park", "Spin", "Raise", "Die", "Echo", "Sum", "Litter", "Talk", "Count"),
    *("Work", "Draw", "Far", "FarAtOnce", "Leave", "Save", "Prepared", "Print"),
]
APPS = ",".join(f"{name.upper()}=worker_apps:{name}" for name in CLASSES)
KEY = (7, 7)

E = TypeVar("E")


class Rank:
    """A pool and its events so far."""

    def __init__(self, pool: WorkerPool, server: ForkServer) -> None:
        self.pool = pool
        self.server = server
        self.seen: list[WorkerEvent] = []

    def turn(self) -> None:
        select.select([self.pool], [], [], 0.1)
        self.seen += self.pool.poll()

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"did not come true; events: {list(map(type, self.seen))}"
            self.turn()

    def hear(self, kind: type[E], count: int = 1) -> list[E]:
        self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.seen if isinstance(event, kind)]

    def start(self, application: str, key: Key = KEY, **configuration: Any) -> None:
        description = wire.Inline(bytes(encode_description(application, configuration, {})))
        self.pool.start(key, 0, 1, (), description)

    def run(self, application: str, **configuration: Any) -> None:
        self.start(application, **configuration)
        self.hear(stimuli.WorkerStarted)

    def idle_pids(self) -> list[int]:
        return [link.pid for link in self.pool.processes.idle]

    def busy_pids(self) -> list[int]:
        links, idle = self.pool.processes.links.values(), self.pool.processes.idle
        return [link.pid for link in links if link not in idle and link not in self.pool.kept]

    def reading_pids(self) -> list[int]:
        """Return the processes that must read an input; a busy one may be new, or inspect applications."""
        tasks = self.pool._at_work.values()
        return [task.link.pid for task in tasks if isinstance(task, ReadTask) and task.link]

    def kept_pids(self) -> list[int]:
        return [link.pid for link in self.pool.kept]

    def pid(self, key: Key = KEY) -> int:
        pid = self.pool.pid_of(key)
        assert pid is not None
        return pid


def is_gone(pid: int) -> bool:
    return not lives(pid)


def result_of(event: stimuli.WorkerAnswered) -> tuple[int, list[int]]:
    body = wire.decode_result(event.body)
    return body.code, np.frombuffer(body.solution, dtype="<i4").tolist()


Make = Callable[..., Rank]
