"""What a PE gives back when its host is short of memory; who asks for it measures that (`memory_watch.py`).

First suspended workers, least recently used first, as if the cache were full: whoever queries them is
denied (race 7). Then the process of the running worker, unless it is a root: it is *paused*. A paused
worker keeps its seat, as one whose process has died too often does, so that its job goes on with the other
workers. Were the seat given up, its parent would ask anew at once, and most likely this host, idle now,
would begin to use up memory again. When there is memory, a paused worker gets another process, which
begins anew; and whenever its job's volume drops below its index it leaves like any other.
"""

from __future__ import annotations

from mallob_py.protocol.local_workers import LocalWorkers
from mallob_py.protocol.outbox import Outbox
from mallob_py.protocol.worker import Worker, WorkerState


class Shortage:
    """Drops, pauses and unpauses workers of one PE."""

    def __init__(self, out: Outbox, workers: LocalWorkers) -> None:
        self._out = out
        self._workers = workers

    def past(self) -> list[int]:
        """The numbers of the suspended workers, least recently used first."""
        return [worker.number for worker in self._workers.suspended.values()]

    def drop_past(self, count: int) -> None:
        """Let go of so many suspended workers."""
        for _ in range(min(count, len(self._workers.suspended))):
            self._workers.drop_oldest()
        self._workers.update_token()

    def pausable(self) -> int | None:
        """The number of the running worker, unless it is a root."""
        return None if (worker := self._pausable()) is None else worker.number

    def _pausable(self) -> Worker | None:
        worker = self._workers.active
        if worker is None or worker.index == 0 or worker.state is not WorkerState.ACTIVE:
            return None
        return worker if worker.has_process else None

    def pause(self) -> None:
        """End the process of the running worker, if it is `pausable`."""
        if (worker := self._pausable()) is not None:
            self._workers.end_process(worker)
            worker.is_paused = True
            self._out.log("paused", job=worker.job, index=worker.index)

    def has_paused(self) -> bool:
        return self._workers.active is not None and self._workers.active.is_paused

    def unpause(self, now: float) -> None:
        """Give a paused worker another process."""
        worker = self._workers.active
        if worker is not None and worker.is_paused:
            worker.is_paused = False
            self._out.log("unpaused", job=worker.job, index=worker.index)
            self._workers.start_again(worker, now)
