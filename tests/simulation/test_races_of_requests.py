"""Races of requests that meet idle PEs, as scripted tests: PEs that are matched but busy, requests that are
granted but cancelled.

Races have the numbers of the list of races that a simple protocol gets wrong. Where the design makes a race
impossible, the test says why, and checks random clusters.
"""

from typing import Any

import pytest
from stories import (
    active,
    cluster_of,
    crash,
    demand,
    hold_kind,
    is_idle,
    kinds_held,
    lively,
    needs,
    only,
    places,
    play,
    rest,
    suspended,
    told_with_luck,
    tree_children,
    tree_parent,
    volume,
    watch,
)

from mallob_py.protocol import messages
from mallob_py.protocol.config import Config, Matching, Reuse
from mallob_py.protocol.local_workers import LocalWorkers
from mallob_py.protocol.random_walk import NO_LIMIT
from mallob_py.protocol.stimuli import Received
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.plan import draw_plan
from mallob_py.simulation.scenario import Scenario

# --- race 5: matched as idle, but busy --------------------------------------------------------------


def _pe_takes_its_own_job_while_its_token_is_granted(seed: int) -> tuple[Any, int, Any]:
    """Return a cluster where a PE runs its own job 2 while the grant for its token is late; no other PE is
    idle.
    """
    cluster = lively(8, seed, 0)
    rank = 1 + seed % 7
    late = hold_kind(cluster, messages.Grant, dest=rank)
    cluster.submit(1, max_demand=7)
    play(cluster)
    needs(
        any(message.tokens for message in kinds_held(late, messages.Grant))
        and not tree_children(cluster, rank)
    )
    cluster.submit(2, rank, max_demand=1)
    needs(places(cluster, 2) == {0: rank})
    return cluster, rank, late


@told_with_luck
def test_race_5_a_request_whose_idle_pe_has_found_work_takes_part_again(seed: int) -> None:
    cluster, rank, late = _pe_takes_its_own_job_while_its_token_is_granted(seed)
    voids = watch(cluster, messages.VoidToken)
    late.release()
    rest(cluster)
    needs(bool(voids))
    assert [source for source, _, _ in voids] == [rank]
    assert places(cluster, 2)[0] == rank, "nobody has thrown it out"


def test_race_5_whoever_is_asked_to_adopt_is_never_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its token is granted, a PE takes no other work: its own jobs send requests, and it denies
    queries.
    """
    adoptions: list[bool] = []
    receive = LocalWorkers.receive_adopt

    def spy(workers: LocalWorkers, request: Any, now: float) -> None:
        adoptions.append(workers.active is None)
        receive(workers, request, now)

    monkeypatch.setattr(LocalWorkers, "receive_adopt", spy)
    for seed in range(2000, 2040):
        Scenario(draw_plan(seed)).run()
    assert len(adoptions) > 100
    assert all(adoptions)


# --- race 6: cancelled requests ---------------------------------------------------------------------


@told_with_luck
def test_race_6_the_tokens_of_a_cancelled_bulk_request_take_part_again(seed: int) -> None:
    cluster = lively(16, seed)
    cluster.submit(1, max_demand=15)
    rest(cluster)
    demand(cluster, 1, 1)
    rest(cluster)
    root = places(cluster, 1)[0]
    # No suspended worker is left to be reused.
    for rank, number in suspended(cluster, 1):
        crash(cluster, rank, number)
    active(cluster, root).seats.past.take_all()
    needs(tree_parent(cluster, root) is not None)
    late = hold_kind(cluster, messages.Grant, dest=root)
    demand(cluster, 1, 15)
    play(cluster)
    needs(sum(message.requests for message in kinds_held(late, messages.Grant)) == 14)
    # The grant is on its way; the request is withdrawn before it arrives.
    for subtree in (1, 2):
        cluster.pes[root].matcher.withdraw(1, subtree)
    voids, returned = watch(cluster, messages.VoidRequest), watch(cluster, messages.TokenReturned)
    adoptions = watch(cluster, messages.Adopt)
    late.release()
    play(cluster)
    assert voids
    needs(bool(returned))
    assert not adoptions
    idle = sum(is_idle(cluster, rank) for rank in range(16))
    assert [pe.matcher.supply() for pe in cluster.pes if pe.matcher.is_root()] == [(0, idle)]
    for seat in (1, 2):
        cluster.tell(root, Received(root, messages.RequestFailed(1, seat, 0)))
    rest(cluster)
    assert len(places(cluster, 1)) == 15


@told_with_luck
def test_race_6_a_job_that_ends_while_its_request_is_granted_gives_all_tokens_back(seed: int) -> None:
    cluster = lively(8, seed, 0)
    late = hold_kind(cluster, messages.Grant)
    cluster.submit(1)
    needs(places(cluster, 1) == {0: 0})
    play(cluster)
    needs(sum(message.requests for message in kinds_held(late, messages.Grant)) > 0)
    cluster.interrupt(1)
    late.release()
    rest(cluster)
    assert all(is_idle(cluster, rank) for rank in range(8))


# --- races that random clusters found ---------------------------------------------------------------


@pytest.mark.parametrize("matcher", Matching)
def test_walks_within_one_rank_let_time_go_by(matcher: Matching) -> None:
    """With two PEs on one rank and three jobs, the third job's request walks while the other jobs start."""
    cluster = Cluster(2, 0, Config(matcher=matcher, random_hops=NO_LIMIT), capacities=(2,))
    for job in (1, 2, 3):
        cluster.submit(job)
    cluster.run(until_s=0.05, events_max=2000)
    rest(cluster)
    assert sorted(volume(cluster, job) or 0 for job in (1, 2, 3)) == [0, 1, 1]
    cluster.interrupt(1)
    rest(cluster)
    assert [volume(cluster, job) for job in (2, 3)] == [1, 1]


@told_with_luck
def test_a_root_adopted_by_its_client_from_a_refreshed_request_asks_for_its_children_itself(
    seed: int,
) -> None:
    cluster = cluster_of(2, seed, reuse=Reuse.NONE)
    cluster.submit(1)
    play(cluster, 1.0)
    cluster.submit(2, 1, priority=9.0, max_demand=1)
    cluster.submit(3, 1, priority=9.0, max_demand=1)
    rest(cluster)
    assert volume(cluster, 1) == 0
    here, there = (active(cluster, rank).job for rank in (0, 1))
    late = hold_kind(cluster, messages.Supply, source=0)
    cluster.interrupt(there)
    play(cluster)
    assert volume(cluster, 1) == 1
    assert cluster.pes[0].matcher.is_asking(1, 0)
    cluster.interrupt(here)
    play(cluster)
    assert places(cluster, 1)[0] == 0
    late.release()
    rest(cluster)
    assert places(cluster, 1) == {0: 0, 1: 1}


@told_with_luck
def test_a_request_without_a_taker_does_not_look_for_one_for_ever_when_its_worker_is_there(seed: int) -> None:
    """Another request for the same worker has been fulfilled; all PEs are busy."""
    cluster, rank, late_grant = _pe_takes_its_own_job_while_its_token_is_granted(seed)
    late_void = hold_kind(cluster, messages.VoidToken)
    late_grant.release()
    play(cluster)
    needs(only(late_void, messages.VoidToken))
    demand(cluster, 1, 1)
    play(cluster)
    demand(cluster, 1, 7)
    play(cluster)
    needs(len(places(cluster, 1)) == 7 and not is_idle(cluster, rank))
    needs(only(late_void, messages.VoidToken))
    late_void.release()
    rest(cluster)


@told_with_luck
def test_a_request_without_a_taker_goes_back_to_its_parent_in_the_next_epoch(seed: int) -> None:
    """The request is passed on only while its parent certainly exists; all PEs are busy meanwhile."""
    cluster, rank, late_grant = _pe_takes_its_own_job_while_its_token_is_granted(seed)
    late_news = hold_kind(cluster, messages.Events, source=rank)
    idle = [place for place in range(8) if is_idle(cluster, place)]
    needs(len(idle) == 1 and not tree_children(cluster, idle[0]))
    more_late_news = hold_kind(cluster, messages.Events, source=idle[0])
    cluster.submit(3, idle[0], max_demand=1)
    needs(places(cluster, 3) == {0: idle[0]})
    late_grant.release()
    play(cluster)
    carriers = [pe.rank for pe in cluster.pes if pe.matcher.carried()]
    needs(len(carriers) == 1 and not volume(cluster, 2) and not volume(cluster, 3))
    (missing,) = set(range(7)) - set(places(cluster, 1))
    needs(places(cluster, 1)[(missing - 1) // 2] != carriers[0])
    failures = watch(cluster, messages.RequestFailed)
    late_news.release()
    more_late_news.release()
    rest(cluster)
    assert (carriers[0], missing) in [(source, message.index) for source, _, message in failures]
    assert (volume(cluster, 1), volume(cluster, 2), volume(cluster, 3)) == (6, 1, 1)
