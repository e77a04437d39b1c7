"""A random life of a cluster, all of it from one seed: sizes, settings, users and mishaps."""

from __future__ import annotations

import random
from functools import partial

from mallob_py.protocol.config import Config, Reuse
from mallob_py.protocol.pe import PE
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Action, Cluster
from mallob_py.simulation.delays import DelayRanges, RandomDelays

_SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 32, 64)
_LARGE_SIZES = (128, 256)
#: every so many seeds one large cluster
_LARGE_EVERY = 50


def _capacities(seed: int, size: int) -> list[int] | None:
    """In every other life PEs share ranks, of unequal capacity mostly.

    From a stream of its own: the rest of a life does not depend on it.
    """
    choose = random.Random(f"capacities {seed}")
    largest = choose.choice((0, 0, 2, 4, size))
    capacities: list[int] = []
    while largest and sum(capacities) < size:
        capacities.append(min(choose.randint(1, largest), size - sum(capacities)))
    return capacities or None


class Scenario:
    """One random run: jobs arrive, change their demand, answer, crash, are interrupted or time out."""

    def __init__(self, seed: int) -> None:
        self._random = choose = random.Random(f"scenario {seed}")
        sizes = _LARGE_SIZES if seed % _LARGE_EVERY == _LARGE_EVERY - 1 else _SIZES
        size = choose.choice(sizes)
        longest_s = choose.choice((0.1e-3, 1e-3, 20e-3))
        self.cluster = Cluster(
            size,
            seed,
            Config(
                reuse=choose.choice(list(Reuse)),
                job_cache=choose.choice((0, 1, 4)),
                balancing_delay_s=choose.choice((0.0, 0.001, 0.01)),
                matching_delay_s=choose.choice((0.0, 0.0003, 0.005)),
                reuse_patience_s=choose.choice((0.0005, 0.005, 0.05)),
            ),
            RandomDelays(
                seed,
                DelayRanges(
                    message_s=(1e-5, longest_s), process_start_s=(0.0, longest_s), fetch_s=(0.0, longest_s)
                ),
            ),
            capacities=_capacities(seed, size),
        )
        self._span_s = choose.choice((0.01, 0.1, 1.0))
        self._clients = [choose.randrange(size) for _ in range(choose.choice((1, 1, 2, 4)))]
        for job in range(1, choose.choice((1, 3, 10, 40)) + 1):
            self.cluster.at(choose.uniform(0, self._span_s), partial(self._submit, job))

    def run(self) -> None:
        """Play everything that was planned, checking at each rest; then end all jobs and check again."""
        cluster = self.cluster
        cluster.run(until_s=3 * self._span_s, on_quiescent=check_invariants)
        cluster.settle(within_s=60.0)
        check_invariants(cluster)
        for pe in cluster.pes:
            for job in list(pe.client.jobs):
                cluster.interrupt(job)
        cluster.settle(within_s=60.0)
        check_invariants(cluster)
        assert not cluster.processes, "processes outlive all jobs"

    def _submit(self, job: int) -> None:
        choose = self._random
        self.cluster.submit(
            job,
            choose.choice(self._clients),
            priority=choose.choice((0.01, 0.5, 1.0, 1.0, 3.0)),
            max_demand=choose.choice((0, 0, 1, 2, 5)),
            wallclock_limit_s=choose.choice((0.0, 0.0, self._span_s / 3)),
            cpu_limit_s=choose.choice((0.0, 0.0, self._span_s)),
        )
        for _ in range(choose.choice((0, 1, 3))):
            deed = choose.choice((self._demand, self._crash, self._chat, self._chat))
            self._soon(partial(deed, job))
        self._soon(partial(choose.choice((self._answer, self._answer, self._fail, self._interrupt)), job))

    def _soon(self, deed: Action) -> None:
        self.cluster.at(self.cluster.now + self._random.uniform(0, self._span_s), deed)

    def _any_worker(self, job: int) -> tuple[int, int] | None:
        running = self.cluster.running(job)
        return self._random.choice(running) if running else None

    def _answer(self, job: int) -> None:
        if (key := self._any_worker(job)) is not None:
            now = self.cluster.now
            self.cluster.call(key[0], lambda pe: pe.worker_found_result(key[1], b"result", now))

    def _fail(self, job: int) -> None:
        if (key := self._any_worker(job)) is not None:
            now = self.cluster.now
            self.cluster.call(key[0], lambda pe: pe.worker_failed(key[1], "an error", now))

    def _interrupt(self, job: int) -> None:
        self.cluster.interrupt(job)

    def _crash(self, job: int) -> None:
        """A process dies, running or stopped."""
        keys = sorted(key for key, process in self.cluster.processes.items() if process.job == job)
        if keys:
            rank, worker = self._random.choice(keys)
            now = self.cluster.now
            del self.cluster.processes[rank, worker]
            self.cluster.call(rank, lambda pe: pe.worker_crashed(worker, "killed by signal 9", now))

    def _demand(self, job: int) -> None:
        if running := self.cluster.running(job):
            rank, worker = running[0]
            demand, now = self._random.randint(1, self.cluster.size), self.cluster.now
            self.cluster.call(rank, lambda pe: pe.worker_demands(worker, demand, now))

    def _chat(self, job: int) -> None:
        if (key := self._any_worker(job)) is None:
            return
        rank, worker = key

        def say(pe: PE) -> None:
            pe.worker_sends_to_children(worker, b"down", self.cluster.now)
            pe.worker_sends_to_parent(worker, b"up", self.cluster.now)

        self.cluster.call(rank, say)
