"""From one generation to the next: what a PE has, and its successor takes over.

The system's ranks have changed (`generation.py`), and the PEs of those that go on begin anew, under other
numbers. What lives in messages and agreements is dropped: requests, tokens, epochs, job trees. Kept is what
cannot be had again, or not at once:

- **Live jobs of a client** are published again, with the budgets used so far, the demand, the last checkpoint
  and the statistics. Their roots are asked for where they were.
- **Worker processes** of workers in a tree are stopped where they are, and with those that were suspended
  before they are the new PE's suspended workers. When the job is heard of, it tells the client of them
  (`Remember`), which passes it on along the new tree, so that the job's new workers are found there. A
  process so found has all that it had.
- **Those that leave in order** (`leaving.py`) go on doing so.
- **Last words**: a result, or an error that ends the job, which may have been on its way to the client.
  They cannot be asked for again, as the process is gone. They are said again when their job is heard of.

The client of a job may have been on a rank that is gone. Then what is kept of the job waits for it to be
submitted again, under the same number, by the heir of that rank (`generation.heir_of`), which takes over the
folder and with it the journal. What has not heard of its job within `Config.succession_patience_s` is let go:
the job has ended meanwhile, or is nobody's.

Addresses (PE, stay) that applications know of each other are of one generation: a message to an address of a
former one comes back to its sender, as if the receiver had left.
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
    """The words of this PE's workers that end a job and could not be said a second time.

    Whoever has said it to a client on another PE keeps it until everybody hears that the job is over. If the
    generation ends before that, it may have been dropped on its way, and is said again when
    the job is heard of. A job that was never published, since it was over so soon, leaves its last words here
    for some time: the oldest go when they are many or large, whose jobs would have to find them once more.
    What is larger than all may be is not kept.
    """

    def __init__(self) -> None:
        #: by job: the client, and what it is told
        self._said: OrderedDict[int, tuple[int, ResultFound | WorkerFailed]] = OrderedDict()
        self._size_bytes = 0

    def jobs(self) -> Set[int]:
        return self._said.keys()

    def say(self, client: int, words: ResultFound | WorkerFailed, out: Outbox) -> None:
        """Tell the client, now and, if need be, once more."""
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
        """The job is live in a new generation."""
        if (said := self._said.get(job)) is not None:
            out.send(*said)

    def forget(self, job: int) -> None:
        """The job is over."""
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

    `halted_job`: whose worker was in the tree at the end.
    """

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
