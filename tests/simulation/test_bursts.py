"""Bursts of small jobs: PEs go from job to job of one client, and other PEs do not hear of these jobs."""

import random
from collections import Counter
from typing import Any

import pytest
from seeds import seeds

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.stimuli import WorkerAnswered, WorkerDemands
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.network import Network

_SIZE = 4
_STEP_S = 0.0005


class Burst:
    """A cluster whose jobs from number `first_small` on answer at once, and which counts messages between
    PEs.
    """

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, first_small: int = 0) -> None:
        self.logged: Counter[str] = Counter()
        self.messages = 0
        self.first_small = first_small
        self.started_s: dict[int, float] = {}
        self.cluster = Cluster(_SIZE, seed, Config(), observe=self._observe)
        post = Network.post

        def counted(network: Network, source: int, dest: int, said: Any) -> None:
            self.messages += 1
            post(network, source, dest, said)

        monkeypatch.setattr(Network, "post", counted)

    def _observe(self, now: float, place: int, event: str, fields: dict[str, Any]) -> None:
        self.logged[event] += 1
        if event == "started":
            self.started_s.setdefault(fields["job"], now)

    def play(self, seconds: float) -> None:
        """Let time pass; small jobs answer as soon as they run."""
        until_s = self.cluster.now + seconds
        while self.cluster.now < until_s:
            self.cluster.run(until_s=self.cluster.now + _STEP_S)
            for place, pe in enumerate(self.cluster.pes):
                worker = pe.workers.active
                if worker is not None and worker.job >= self.first_small and worker.has_run:
                    self.cluster.tell(place, WorkerAnswered(worker.number, b""))

    def submit(self, jobs: range, client: int = 0) -> None:
        """Submit jobs as the service does: only a limited number at a time."""
        for job in jobs:
            while len(self.cluster.pes[client].client.jobs) >= 24:
                self.play(_STEP_S)
            self.cluster.submit(job, client)


@pytest.mark.parametrize("seed", seeds(4))
def test_in_a_burst_pes_go_from_job_to_job_and_no_epoch_tells_of_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    burst = Burst(seed, monkeypatch)
    jobs = range(1, 400, 2)  # odd numbers, because these jobs have small descriptions
    burst.submit(jobs)
    burst.play(1.0)
    ended = burst.cluster.ended
    assert sorted(ended) == list(jobs)
    assert {one.outcome for one in ended.values()} == {Outcome.RESULT}
    assert burst.cluster.pes[0].balancer.epoch <= 10, "only of the last ones"
    assert burst.messages <= 3.5 * len(jobs), "messages per job"
    roots = Counter(one.stats.root for one in ended.values())
    assert min(roots[place] for place in range(_SIZE)) >= 20, "a PE has had next to nothing"


@pytest.mark.parametrize("seed", seeds(4))
def test_a_job_of_another_client_gets_a_pe_in_the_middle_of_a_burst(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    burst = Burst(seed, monkeypatch, first_small=1)
    burst.submit(range(1, 100))
    at_s = burst.cluster.now
    burst.cluster.submit(0, 2)  # a job that never ends
    burst.submit(range(100, 400))
    burst.play(1.0)
    assert burst.started_s[0] - at_s < 0.05
    assert sorted(burst.cluster.ended) == list(range(1, 400))


@pytest.mark.parametrize("seed", seeds(4))
def test_standby_jobs_are_published_where_those_before_them_do_not_end(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    burst = Burst(seed, monkeypatch, first_small=20)  # the first 20 jobs run for ever, in turns
    burst.submit(range(20))
    burst.play(0.2)
    assert set(burst.cluster.pes[3].balancer.jobs) == set(range(20))
    burst.submit(range(20, 24))
    burst.play(1.0)
    assert sorted(burst.cluster.ended) == [20, 21, 22, 23]


@pytest.mark.parametrize("seed", seeds(4))
def test_a_new_job_does_not_stand_by_beside_a_job_that_has_said_how_much_it_wants(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    burst = Burst(seed, monkeypatch, first_small=10)
    burst.submit(range(1))
    while not burst.started_s:
        burst.cluster.run(until_s=burst.cluster.now + 1e-5)
    active = ((place, pe.workers.active) for place, pe in enumerate(burst.cluster.pes))
    place, worker = next((place, one) for place, one in active if one is not None)
    burst.cluster.tell(place, WorkerDemands(worker.number, _SIZE))
    burst.play(1.0)
    at_s = burst.cluster.now
    burst.submit(range(11, 12))
    burst.play(1.0)
    assert burst.started_s[11] - at_s < Config().turnover_max_s


@pytest.mark.parametrize("seed", seeds(20))
def test_each_job_of_a_mixed_burst_ends_once_whatever_is_interrupted_and_set_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    burst = Burst(seed, monkeypatch, first_small=10)
    burst.submit(range(chance.randrange(6)))
    for job in range(10, 110):
        burst.submit(range(job, job + 1), client=chance.choice((0, 0, 0, 1)))
        if chance.random() < 0.2:
            burst.cluster.interrupt(chance.randrange(10, job + 1))
        if chance.random() < 0.1:
            burst.play(chance.expovariate(100.0))
    burst.play(3.0)
    assert set(range(10, 110)) <= set(burst.cluster.ended)
    for pe in burst.cluster.pes:
        assert not any(job >= 10 for job in pe.client.jobs)
