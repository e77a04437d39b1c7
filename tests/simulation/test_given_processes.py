"""A job whose next turn is at another PE of the same host continues there with its former process."""

import random
from collections import Counter
from typing import Any

import pytest
from seeds import seeds

from mallob_py.protocol.config import Config
from mallob_py.protocol.messages import AnyMessage, ProcessDenied, ProcessWanted
from mallob_py.protocol.stimuli import WorkerAnswered
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.network import Network
from mallob_py.simulation.processes import GIVEN_WITHIN_S, Failing, Step


class Watched:
    """A cluster of four PEs with endless jobs, and counts of its PEs' log events."""

    def __init__(self, jobs: int, seed: int = 0, leaves: bool = False, **setting: Any) -> None:
        self.logged: Counter[str] = Counter()
        self.begun: Counter[int] = Counter()
        self.cluster = Cluster(4, seed, Config(), observe=self._observe, **setting)
        for job in range(jobs):
            self.cluster.submit(job, job % 4, leaves=leaves, max_demand=1)
            self.play(0.1)

    def _observe(self, now: float, place: int, event: str, fields: dict[str, Any]) -> None:
        self.logged[event] += 1
        if event == "started":
            self.begun[fields["job"]] += 1

    def play(self, seconds: float) -> None:
        self.cluster.run(until_s=self.cluster.now + seconds)

    def moves(self) -> Counter[int]:
        """Return job -> how often its processes have moved."""
        return Counter({one.job: one.moves for one in self.cluster.processes.values() if one.moves})

    def processes(self) -> Counter[int]:
        return Counter(one.job for one in self.cluster.processes.values())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    """Return a counter of the messages that clusters send, by kind."""
    counts: Counter[type] = Counter()
    post = Network.post

    def counted(network: Network, source: int, dest: int, said: Any) -> None:
        message: AnyMessage = said.message
        counts[type(message)] += 1
        post(network, source, dest, said)

    monkeypatch.setattr(Network, "post", counted)
    return counts


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("seed", seeds(4))
def test_on_one_host_a_job_keeps_its_process_wherever_its_turns_are(seed: int, leaves: bool) -> None:
    watched = Watched(5, seed, leaves)
    watched.play(60.0)
    moves = watched.moves()
    assert sum(moves.values()) == watched.logged["given"] >= 20
    assert watched.processes() == dict.fromkeys(range(5), 1), "a job that has moved has left a process behind"
    for job in range(5):
        assert watched.begun[job] - moves[job] == 1, "a job has begun anew"


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("seed", seeds(8))
def test_a_job_keeps_its_process_also_where_its_turns_are_taken_back_at_once(seed: int, leaves: bool) -> None:
    watched = Watched(6, seed, leaves)
    chance = random.Random(seed)
    for job in range(6, 206):
        watched.cluster.submit(job, 0, max_demand=1)
        watched.play(chance.expovariate(40.0))
        for place, pe in enumerate(watched.cluster.pes):
            if (worker := pe.workers.active) is not None and worker.job >= 6 and worker.has_run:
                watched.cluster.tell(place, WorkerAnswered(worker.number, b""))
    watched.play(1.0)
    moves = watched.moves()
    assert [watched.begun[job] - moves[job] for job in range(6)] == [1] * 6, "a job has begun anew"


def test_between_hosts_a_job_begins_anew() -> None:
    watched = Watched(5, hosts=4)
    watched.play(60.0)
    assert watched.logged["given"] == 0
    assert sum(watched.begun.values()) >= 10


def test_with_as_many_pes_as_jobs_nobody_asks_for_a_process(asked: Counter[type]) -> None:
    watched = Watched(4)
    watched.play(20.0)
    watched.cluster.interrupt(0)
    watched.cluster.submit(9, max_demand=1)
    watched.play(20.0)
    assert asked[ProcessWanted] == asked[ProcessDenied] == 0
    Watched(5).play(20.0)
    assert asked[ProcessWanted] > 0


def test_a_process_that_is_lost_on_its_way_is_replaced_by_a_new_one() -> None:
    watched = Watched(5)
    watched.cluster.processes.fails = lambda place, job, step: Failing.WAY if step is Step.GIVE else None
    watched.play(30.0)
    assert watched.logged["given"] > 0
    assert not watched.moves()
    watched.cluster.processes.fails = lambda place, job, step: None
    for job in range(2, 5):
        watched.cluster.interrupt(job)
    watched.play(2 * GIVEN_WITHIN_S)
    for job in range(2):
        assert watched.cluster.running(job), "a worker waits for a process that does not come"


def test_an_answer_counts_that_was_found_before_the_process_was_to_move() -> None:
    watched = Watched(5)
    watched.play(20.0)
    resting = [key for key, one in watched.cluster.processes.items() if one.is_suspended]
    assert resting
    place, number = resting[0]
    job = watched.cluster.processes[resting[0]].job
    watched.cluster.tell(place, WorkerAnswered(number, b"found"))
    watched.play(5.0)
    assert watched.cluster.ended[job].body == b"found"
    assert job not in watched.processes()


def test_a_rank_that_dies_takes_no_job_with_it() -> None:
    """Neither a job given away by the rank is lost, nor a job on its way to the rank."""
    for seed in range(6):
        watched = Watched(5, seed, detect_s=0.01, patience_s=0.05)
        watched.play(10.0 + seed / 7)
        watched.cluster.die(1 + seed % 3)
        watched.play(30.0)
        clients = {job for job in range(5) if job % 4 == 1 + seed % 3}
        assert watched.processes().keys() >= set(range(5)) - clients
        assert watched.moves()
