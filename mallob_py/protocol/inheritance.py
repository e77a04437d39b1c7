"""Workers and last words from the last generation, until their jobs are heard of (`succession.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mallob_py.protocol.config import Config, Reuse
from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.messages import PastWorker, Remember
from mallob_py.protocol.placement import Succession
from mallob_py.protocol.succession import LastWords
from mallob_py.protocol.worker import Worker
from mallob_py.protocol.worker_cache import WorkerCache

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer


class Inheritance:
    """What was taken over, and for which jobs. `halted_job`: whose worker was in the tree at the end."""

    def __init__(
        self, out: Outbox, config: Config, balancer: AnyBalancer, cache: WorkerCache, last_words: LastWords
    ) -> None:
        self._out = out
        self._config = config
        self._balancer = balancer
        self._cache = cache
        self._last_words = last_words
        #: until they are heard of
        self.jobs: set[int] = set()
        #: when jobs that were not heard of are over
        self.deadline_s = math.inf
        self.halted_job: int | None = None

    def take_over(self, former: Inheritance, succession: Succession, now: float) -> None:
        """Keep the processes, and what has not been said for certain, of a PE that was halted."""
        self._last_words.take_over(former._last_words, succession)
        cache = self._cache
        for job, worker in former._cache.workers.items():
            if job == former.halted_job:
                worker.keep_family()
                worker.is_awaited = succession.pe(worker.parent) is not None
            if job == former.halted_job or (worker.is_carried_over and job in former._cache.holds):
                cache.holds[job] = now + self._config.succession_hold_s
            self._renumber_family(worker, succession)
            worker.is_carried_over = True
            worker.path = (succession.heir(worker.client),)
            worker.volume = 0
            cache.workers[job] = worker
        self.jobs = cache.workers.keys() | self._last_words.jobs()
        if self.jobs:
            self.deadline_s = now + self._config.succession_patience_s
        cache.room = max(self._config.job_cache, len(cache.workers))

    def _renumber_family(self, worker: Worker, succession: Succession) -> None:
        """What a carried over worker knows of the tree around it, in the new generation's numbers."""
        if self._config.reuse is not Reuse.FULL:
            worker.kept, worker.is_awaited = (), False
        present = [(one.index, succession.pe(one.rank), one.epoch) for one in worker.kept]
        worker.kept = tuple(PastWorker(index, pe, epoch) for index, pe, epoch in present if pe is not None)
        worker.gone |= {index for index, pe, epoch in present if pe is None and epoch == 0}

    def meet(self) -> None:
        """Some jobs of which we have something are live: their clients are to know.

        But not of a worker that its parent will ask for; if it does not, they hear of it later.
        """
        for job in [job for job in self.jobs if self._balancer.volume(job) is not None]:
            self.jobs.remove(job)
            self._last_words.repeat(job, self._out)
            worker = self._cache.workers.get(job)
            if worker is not None and not worker.is_awaited:
                self._call_attention(worker)

    def cease_to_await(self, jobs: Iterable[int]) -> None:
        """The parents of these jobs' workers have not asked for them."""
        for job in jobs:
            worker = self._cache.workers.get(job)
            if worker is not None and worker.is_awaited:
                worker.is_awaited = False
                if job not in self.jobs:
                    self._call_attention(worker)

    def _call_attention(self, worker: Worker) -> None:
        """Have a carried over worker looked for where it was."""
        if self._config.reuse is not Reuse.NONE:
            past = PastWorker(worker.index, self._out.rank, self._balancer.epoch)
            self._out.send(worker.client, Remember(worker.job, -1, (past,), carried_over=True))

    def forget(self, job: int) -> None:
        """The job is over."""
        self.jobs.discard(job)
        self._last_words.forget(job)

    def take_unheard(self, active_job: int | None) -> list[int]:
        """Return the jobs that nobody has spoken of for so long: they are over.

        But for the one at work here: its client has asked for it, and will tell everybody in a moment.
        """
        self.deadline_s = math.inf
        unheard = sorted(self.jobs - {active_job})
        self.jobs.clear()
        self._cache.room = self._config.job_cache
        return unheard
