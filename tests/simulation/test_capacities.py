"""Ranks of unequal capacity in simulated clusters: shares are proportional to capacity, and the PEs of a rank
share an event loop.
"""

import pytest
from stories import heard_by, post

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Send, StartWorker
from mallob_py.protocol.messages import Description, TokenReturned, VoidToken
from mallob_py.protocol.stimuli import Tick
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import RandomDelays
from mallob_py.simulation.plan import draw_plan
from mallob_py.simulation.processes import Process
from mallob_py.simulation.scenario import Scenario

CAPACITIES = (2, 1, 3)


def unequal(seed: int = 0) -> Cluster:
    return Cluster(sum(CAPACITIES), seed, capacities=CAPACITIES)


def workers_by_rank(cluster: Cluster, job: int) -> dict[int, int]:
    ranks = [cluster.placement.rank_of[pe] for pe, _ in cluster.running(job)]
    return {rank: ranks.count(rank) for rank in sorted(set(ranks))}


def volume(cluster: Cluster, job: int) -> int | None:
    return cluster.pes[0].balancer.volume(job)


class Busy(RandomDelays):
    """A network in which messages arrive after 1 ms, and each keeps an event loop busy for 10 ms."""

    handling_s = 0.01
    local_s = 0.002

    def __init__(self) -> None:
        super().__init__(message_s=(0.001, 0.001))


# --- fair by capacity -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_one_job_gets_as_many_workers_on_each_rank_as_that_has_capacity(seed: int) -> None:
    cluster = unequal(seed)
    cluster.submit(1)
    cluster.settle()
    check_invariants(cluster)
    assert workers_by_rank(cluster, 1) == dict(enumerate(CAPACITIES))


@pytest.mark.parametrize("seed", range(5))
def test_two_jobs_share_the_sum_of_all_capacities_by_priority(seed: int) -> None:
    cluster = unequal(seed)
    cluster.submit(1, priority=1.0)
    cluster.submit(2, rank=3, priority=2.0)
    cluster.settle()
    check_invariants(cluster)
    assert (volume(cluster, 1), volume(cluster, 2)) == (2, 4)


def test_more_jobs_than_ranks_run_at_a_time() -> None:
    cluster = unequal()
    for job in range(1, 6):
        cluster.submit(job)
    cluster.settle()
    check_invariants(cluster)
    assert sorted(volume(cluster, job) or 0 for job in range(1, 6)) == [1, 1, 1, 1, 2]


def test_a_worker_of_a_rank_that_shrinks_there_is_resumed_by_the_same_pe() -> None:
    cluster = Cluster(3, 0, Config(reuse_patience_s=0.05), capacities=(3,))
    cluster.submit(1)
    cluster.settle()
    before = cluster.running(1)
    cluster.submit(2)
    cluster.settle()
    check_invariants(cluster)
    cluster.interrupt(2)
    cluster.settle()
    check_invariants(cluster)
    assert cluster.running(1) == before


def test_a_rank_beyond_its_capacity_is_found_out() -> None:
    cluster = unequal()
    cluster.submit(1)
    cluster.settle()
    cluster.processes[2, 99] = Process(StartWorker(99, 1, 6, 7, Description(1)))
    cluster.processes[2, 99].is_started = True
    with pytest.raises(AssertionError, match="rank 1 of capacity 1 runs 2 workers"):
        check_invariants(cluster)


# --- one event loop per rank --------------------------------------------------------------------


def posted(capacities: tuple[int, ...] | None, *pairs: tuple[int, int]) -> list[tuple[float, int, type]]:
    cluster = Cluster(3, delays=Busy(), capacities=capacities)
    cluster.settle()
    begin_s = cluster.now + 1.0
    cluster.run(until_s=begin_s)
    for source, dest in pairs:
        post(cluster, source, dest, TokenReturned())
    heard = heard_by(cluster)
    cluster.run(until_s=cluster.now + 1.0)
    return [(round(when_s - begin_s, 6), pe, type(message)) for when_s, pe, _, message in heard]


def test_messages_to_two_pes_of_a_rank_are_handled_one_after_the_other() -> None:
    heard = posted((1, 2), (0, 1), (0, 2))
    assert heard == [(0.001, 1, TokenReturned), (0.011, 2, TokenReturned)]


def test_messages_to_two_pes_on_ranks_of_their_own_are_handled_at_once() -> None:
    heard = posted(None, (0, 1), (0, 2))
    assert heard == [(0.001, 1, TokenReturned), (0.001, 2, TokenReturned)]


def test_a_rank_is_busy_with_messages_among_its_pes_before_it_sends() -> None:
    cluster = Cluster(3, delays=Busy(), capacities=(2, 1))
    cluster.settle()
    begin_s = cluster.now + 1.0
    cluster.run(until_s=begin_s)
    heard = heard_by(cluster)
    cluster.pes[0].effects.extend(Send(dest, VoidToken(number)) for number, dest in enumerate((1, 1, 2, 1)))
    cluster.tell(0, Tick())
    cluster.run(until_s=begin_s + 1.0)
    told = [(round(when_s - begin_s, 6), pe, message) for when_s, pe, _, message in heard]
    # three times (2 + 10) ms, then 1 ms on the way
    assert told == [
        (0.0, 1, VoidToken(0)),
        (0.0, 1, VoidToken(1)),
        (0.0, 1, VoidToken(3)),
        (0.037, 2, VoidToken(2)),
    ]


# --- random runs --------------------------------------------------------------------------------


def test_many_random_lives_have_ranks_of_unequal_capacity() -> None:
    placements = [Scenario(draw_plan(seed)).cluster.placement for seed in range(60)]
    unequal_ones = [each for each in placements if len(set(each.capacities)) > 1]
    assert 15 <= len(unequal_ones) < 60
    assert any(each.ranks == each.size > 1 for each in placements)
