"""Ranks of unequal capacity in simulated clusters: shares by capacity, event loops that are shared."""

from __future__ import annotations

from functools import partial

import pytest

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import StartWorker
from mallob_py.protocol.messages import Description, TokenReturned, VoidToken
from mallob_py.protocol.stimuli import AnyStimulus, Received
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster, Process
from mallob_py.simulation.delays import RandomDelays
from mallob_py.simulation.plan import draw_plan
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
    """Messages arrive after 1 ms, and each keeps an event loop busy for 10 ms."""

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


def _note(heard: list[tuple[float, int, type]], rank: int, stimulus: AnyStimulus, now: float) -> None:
    if isinstance(stimulus, Received):
        heard.append((now, rank, type(stimulus.message)))


def received(cluster: Cluster) -> list[tuple[float, int, type]]:
    """Let what was posted arrive; (time, PE, message) of what PEs have handled."""
    heard: list[tuple[float, int, type]] = []
    for pe in cluster.pes:
        # Deaf PEs: only when they are told counts here.
        pe.handle = partial(_note, heard, pe.rank)  # type: ignore[method-assign]
    cluster.run(until_s=cluster.now + 1.0)
    return heard


def posted(capacities: tuple[int, ...] | None, *pairs: tuple[int, int]) -> list[tuple[float, int, type]]:
    cluster = Cluster(3, delays=Busy(), capacities=capacities)
    cluster.settle()
    begin_s = cluster.now + 1.0
    cluster.run(until_s=begin_s)
    for source, dest in pairs:
        cluster.post(source, dest, TokenReturned())
    return [(round(when_s - begin_s, 6), pe, kind) for when_s, pe, kind in received(cluster)]


def test_messages_to_two_pes_of_a_rank_are_handled_one_after_the_other() -> None:
    heard = posted((1, 2), (0, 1), (0, 2))
    assert heard == [(0.001, 1, TokenReturned), (0.011, 2, TokenReturned)]


def test_messages_to_two_pes_on_ranks_of_their_own_are_handled_at_once() -> None:
    heard = posted(None, (0, 1), (0, 2))
    assert heard == [(0.001, 1, TokenReturned), (0.001, 2, TokenReturned)]


def test_a_message_within_a_rank_takes_the_local_delay() -> None:
    assert posted((1, 2), (1, 2)) == [(0.002, 2, TokenReturned)]


def test_messages_within_a_rank_keep_their_order() -> None:
    cluster = Cluster(2, capacities=(2,))
    cluster.settle()
    for number in range(20):
        cluster.post(0, 1, VoidToken(number) if number % 2 else TokenReturned())
    kinds = [kind for _, _, kind in received(cluster)]
    assert kinds == [TokenReturned, VoidToken] * 10


# --- random lives -------------------------------------------------------------------------------


def test_many_random_lives_have_ranks_of_unequal_capacity() -> None:
    placements = [Scenario(draw_plan(seed)).cluster.placement for seed in range(60)]
    unequal_ones = [each for each in placements if len(set(each.capacities)) > 1]
    assert 15 <= len(unequal_ones) < 60
    assert any(each.ranks == each.size > 1 for each in placements)
