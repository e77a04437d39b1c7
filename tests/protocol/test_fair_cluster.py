"""In a cluster at rest, each job has as many workers as the rule of volumes says."""

import pytest

from mallob_py.protocol.config import Config
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster

#: settings with which jobs beyond the number of PEs wait instead of taking turns
WITHOUT_TURNS = Config(slice_s=0.0)


def _workers(cluster: Cluster, jobs: int) -> list[int]:
    """Bring the cluster to rest; return how many PEs work for each job."""
    cluster.run(until_s=cluster.now + 0.1)
    cluster.settle()
    check_invariants(cluster)
    at_work = [pe.workers.active.job for pe in cluster.pes if pe.workers.active is not None]
    return [at_work.count(job) for job in range(jobs)]


@pytest.mark.parametrize("clients", [(0, 0, 0, 0), (0, 2, 4, 6), (6, 6, 1, 1)])
def test_the_example_of_the_paper_is_shared_as_in_the_paper(clients: tuple[int, ...]) -> None:
    """P 3.1: p = (1, 2, 3, 4), d = (7, 7, 7, 2), m = 7; alpha_0 = 0.8, one PE left for the third job."""
    cluster = Cluster(7)
    for job, (priority, demand) in enumerate(((1.0, 7), (2.0, 7), (3.0, 7), (4.0, 2))):
        cluster.submit(job, clients[job], priority=priority, max_demand=demand)
    assert _workers(cluster, 4) == [1, 1, 3, 2]


def test_what_a_job_cannot_use_goes_to_the_others() -> None:
    cluster = Cluster(16)
    cluster.submit(0, 3, max_demand=2)
    cluster.submit(1, 5)
    assert _workers(cluster, 2) == [2, 14]
    cluster.interrupt(1)
    assert _workers(cluster, 2) == [2, 0]


def test_a_job_of_three_times_the_priority_gets_three_times_as_many_workers() -> None:
    cluster = Cluster(16)
    cluster.submit(0, priority=0.5)
    cluster.submit(1, priority=1.5)
    assert _workers(cluster, 2) == [4, 12]


def test_jobs_beyond_the_number_of_pes_wait_in_the_order_of_their_arrival() -> None:
    cluster = Cluster(4, config=WITHOUT_TURNS)
    for job in range(8):
        cluster.submit(job, job % 4)
        cluster.run(until_s=cluster.now + 1.0)
    assert _workers(cluster, 8) == [1, 1, 1, 1, 0, 0, 0, 0]
    cluster.interrupt(2)
    assert _workers(cluster, 8) == [1, 1, 0, 1, 1, 0, 0, 0]


def test_a_more_important_job_goes_ahead_of_those_that_wait_and_of_those_that_run() -> None:
    cluster = Cluster(2, config=WITHOUT_TURNS)
    for job in range(4):
        cluster.submit(job)
        cluster.run(until_s=cluster.now + 1.0)
    cluster.submit(4, priority=2.0)
    assert _workers(cluster, 5) == [1, 0, 0, 0, 1]


def test_a_job_that_has_waited_goes_ahead_of_a_late_one_of_twice_its_priority() -> None:
    cluster = Cluster(1, config=WITHOUT_TURNS)
    cluster.submit(0)
    cluster.run(until_s=1.0)
    cluster.submit(1)
    cluster.run(until_s=65.0)
    cluster.submit(2, priority=2.0)
    assert _workers(cluster, 3) == [1, 0, 0]
    cluster.interrupt(0)
    assert _workers(cluster, 3) == [0, 1, 0]
