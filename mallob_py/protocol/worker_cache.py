"""The cache: suspended workers of one PE, which their jobs may want back.

A job that has grown again beyond a worker's index may soon ask for the worker: for a while the PE *holds*
itself free, and adopts no other worker. If there are too many workers, the least recently used are dropped
first. Roots of resting jobs have room of their own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from typing import TYPE_CHECKING

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.worker import Happens, Worker

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer


class WorkerCache:
    """The suspended workers of one PE, by job."""

    def __init__(self, out: Outbox, config: Config, balancer: AnyBalancer) -> None:
        self._out = out
        self._config = config
        self._balancer = balancer
        self.workers: OrderedDict[int, Worker] = OrderedDict()
        #: job with a suspended worker -> time until which the PE is held free for the job
        self.holds: dict[int, float] = {}
        #: greatest number of suspended workers; after a change of generation, room for all workers taken over
        #: until their jobs are known to live or to be over
        self.room = config.job_cache

    def put(self, worker: Worker) -> None:
        """Keep a worker that was just suspended."""
        self.workers[worker.job] = worker
        self.make_room()

    def drop(self, worker: Worker, what: Happens = Happens.ENDED) -> None:
        """Drop a suspended worker; `what`: the reason, such as the end of its process."""
        del self.workers[worker.job]
        self.holds.pop(worker.job, None)
        worker.happens(what, self._out)

    def overdue(self, now: float) -> list[int]:
        """Return the jobs that did not ask for their workers in time; stop holding the PE free for them."""
        jobs = [job for job, until_s in self.holds.items() if until_s <= now]
        for job in jobs:
            del self.holds[job]
        return jobs

    def goes_on(self, job: int | None) -> bool:
        """Tell whether a worker of the job was taken over from the last generation and not adopted since."""
        worker = None if job is None else self.workers.get(job)
        return worker is not None and worker.is_carried_over

    def make_room(self) -> None:
        """Drop workers until the others fit; roots of resting jobs have room of their own."""
        for are_roots, room in ((False, self.room), (True, self._config.roots_kept(self._out.size))):
            kept = [worker for worker in self.least_worth_first() if (worker.index == 0) is are_roots]
            for worker in kept[: max(0, len(kept) - room)]:
                self.drop(worker)

    def least_worth_first(self) -> list[Worker]:
        """Return the suspended workers: least recently used first, roots last.

        Among roots, roots of jobs that have run on another PE since come first, then roots of jobs that have
        had most of their share.
        """
        if all(worker.index > 0 for worker in self.workers.values()):
            return list(self.workers.values())
        accounts = self._balancer.rotation.accounts

        def worth(worker: Worker) -> tuple[bool, bool, float]:
            account = accounts.get(worker.job)
            if worker.index > 0 or account is None:
                return worker.index == 0, True, 0.0
            return True, account.homes[-1:] == (self._out.rank,), account.lag_s

        return sorted(self.workers.values(), key=worth)

    def renew_holds(self, now: float, is_idle: bool, inherited: Container[int]) -> None:
        """Keep this PE free for suspended workers whose job's volume has just risen above their index."""
        holds, volumes = self.holds, self._balancer.each_volume(self.workers)
        for worker, volume in zip(self.workers.values(), volumes, strict=True):
            if volume is None:
                if worker.job in inherited:
                    continue  # no epoch has named the job yet
                volume = 0
            if worker.volume <= worker.index < volume and is_idle:
                if (patience_s := self._patience_s(worker)) is not None:
                    until_s = now + patience_s
                    holds[worker.job] = max(until_s, holds.get(worker.job, until_s))
            elif holds and worker.index >= volume:
                holds.pop(worker.job, None)
            worker.volume = volume

    def _patience_s(self, worker: Worker) -> float | None:
        """Return how long to wait for a job that has grown again; None: the job's turn is on another PE."""
        if worker.index > 0 or not self._balancer.rotation.is_on:
            return self._config.reuse_patience_s
        is_here = self._balancer.rotation.places.get(worker.job) == self._out.rank
        return self._config.turn_patience_s if is_here else None
