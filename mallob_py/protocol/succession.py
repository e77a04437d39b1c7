"""Succession: what a new generation's PE takes over from its predecessor.

The system's ranks have changed (`generation.py`), and the PEs of the remaining ranks begin anew, under other
numbers. State in messages and agreements is dropped: requests, tokens, epochs, job trees. The following is
kept, since it cannot be had again, or not soon:

- **Live jobs of a client** are published again, with the budgets used so far, the demand, the last checkpoint
  and the statistics. Their roots are requested on the PEs where they were.
- **Worker processes** of workers in a tree are stopped, not ended; with the workers suspended earlier, they
  are the new PE's suspended workers. When their job is heard of, they are reported to the client
  (`Remember`), which passes this on along the new tree, so that the job's new workers are found there. Such a
  process has kept all its state.
- **Workers that leave in order** (`leaving.py`) continue leaving.
- **Last words**: a result, or an error that ends the job, possibly on its way to the client. They cannot be
  asked for again, since the process is gone. They are repeated when their job is heard of.

The client of a job may have been on a lost rank. Then the job's remains wait for its new submission, under
the same number, by the heir of that rank (`generation.heir_of`), which takes over the folder and its journal.
Remains whose job is not heard of within `Config.succession_patience_s` are dropped: the job has ended, or has
no client.

Addresses (PE, stay) that applications know belong to one generation: a message to a former address comes back
to its sender, as if the receiver had left.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING

from mallob_py.protocol.config import Config, Reuse
from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.messages import PastWorker, Remember, ResultFound, WorkerFailed
from mallob_py.protocol.placement import Succession
from mallob_py.protocol.worker import Worker
from mallob_py.protocol.worker_cache import WorkerCache

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer

KEPT_MAX = 16
KEPT_BYTES_MAX = 64 << 20


class LastWords:
    """The last words of this PE's workers: messages that end a job, and that no worker can send again.

    A PE keeps last words for a client on another PE until an epoch records the job's end. If the generation
    ends before that epoch, the last words may have been lost; the PE sends them again when the new generation
    names the job. If no epoch records the end, the last words stay here for some time. When there are too
    many last words, or they are too large, the oldest are dropped: their jobs might have to run again. A
    message above the bound for all last words is not kept.
    """

    def __init__(self) -> None:
        #: job -> (client, last words)
        self._said: OrderedDict[int, tuple[int, ResultFound | WorkerFailed]] = OrderedDict()
        self._size_bytes = 0

    def jobs(self) -> Set[int]:
        return self._said.keys()

    def say(self, client: int, words: ResultFound | WorkerFailed, out: Outbox) -> None:
        """Send last words to a client, and keep them so that they can be repeated."""
        out.send(client, words)
        if client == out.rank or words.job in self._said:
            return
        if _size_bytes(words) > KEPT_BYTES_MAX:
            return
        self._said[words.job] = client, words
        self._size_bytes += _size_bytes(words)
        while len(self._said) > KEPT_MAX or self._size_bytes > KEPT_BYTES_MAX:
            self.forget(next(iter(self._said)))

    def repeat(self, job: int, out: Outbox) -> None:
        """Repeat the last words of a job that is live in a new generation."""
        if (said := self._said.get(job)) is not None:
            out.send(*said)

    def forget(self, job: int) -> None:
        """Forget the last words of a job that is over."""
        if (said := self._said.pop(job, None)) is not None:
            self._size_bytes -= _size_bytes(said[1])

    def take_over(self, former: LastWords, succession: Succession) -> None:
        for job, (client, words) in former._said.items():
            self._said[job] = succession.heir(client), words
        self._size_bytes = former._size_bytes


def _size_bytes(words: ResultFound | WorkerFailed) -> int:
    return len(words.body) if isinstance(words, ResultFound) else len(words.reason)


class Inheritance:
    """Workers and last words from the last generation, until their jobs are heard of.

    `halted_job`: the job of the worker that was in a tree when that generation ended.
    """

    def __init__(
        self, out: Outbox, config: Config, balancer: AnyBalancer, cache: WorkerCache, last_words: LastWords
    ) -> None:
        self._out = out
        self._config = config
        self._balancer = balancer
        self._cache = cache
        self._last_words = last_words
        #: jobs that no message of this generation has named yet
        self.jobs: set[int] = set()
        #: time when jobs that no message has named count as over
        self.deadline_s = math.inf
        self.halted_job: int | None = None

    def take_over(self, former: Inheritance, succession: Succession, now: float) -> None:
        """Keep the processes and the unconfirmed last words of a halted PE."""
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
        """Translate a carried-over worker's knowledge of its tree into the new generation's PE numbers."""
        if self._config.reuse is not Reuse.FULL:
            worker.kept, worker.is_awaited = (), False
        present = [(one.index, succession.pe(one.rank), one.epoch) for one in worker.kept]
        worker.kept = tuple(PastWorker(index, pe, epoch) for index, pe, epoch in present if pe is not None)
        worker.gone |= {index for index, pe, epoch in present if pe is None and epoch == 0}

    def meet(self) -> None:
        """Report workers kept here to clients whose jobs are known to be live again; repeat last words.

        A worker that its parent will ask for is left out; if the parent does not ask, the worker is reported
        later.
        """
        for job in [job for job in self.jobs if self._balancer.volume(job) is not None]:
            self.jobs.remove(job)
            self._last_words.repeat(job, self._out)
            worker = self._cache.workers.get(job)
            if worker is not None and not worker.is_awaited:
                self._call_attention(worker)

    def cease_to_await(self, jobs: Iterable[int]) -> None:
        """Report to clients the workers kept here for these jobs: no parent has asked for them."""
        for job in jobs:
            worker = self._cache.workers.get(job)
            if worker is not None and worker.is_awaited:
                worker.is_awaited = False
                if job not in self.jobs:
                    self._call_attention(worker)

    def _call_attention(self, worker: Worker) -> None:
        """Tell the client that a carried-over worker is here, so that the job's new tree takes it back."""
        if self._config.reuse is not Reuse.NONE:
            past = PastWorker(worker.index, self._out.rank, self._balancer.epoch)
            self._out.send(worker.client, Remember(worker.job, -1, (past,), carried_over=True))

    def forget(self, job: int) -> None:
        """Forget the workers and last words kept for a job that is over."""
        self.jobs.discard(job)
        self._last_words.forget(job)

    def take_unheard(self, active_job: int | None) -> list[int]:
        """Return the jobs of the last generation that count as over: no message has named them for long.

        The active worker's job is left out: its client has asked for the worker, and will publish the job
        soon.
        """
        self.deadline_s = math.inf
        unheard = sorted(self.jobs - {active_job})
        self.jobs.clear()
        self._cache.room = self._config.job_cache
        return unheard
