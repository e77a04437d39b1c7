"""Races at the end of jobs and at the edges: few PEs, many jobs, budgets, late descriptions."""

import pytest
from stage import Stage
from stories import (
    active,
    answer,
    cluster_of,
    demand,
    hold_kind,
    is_idle,
    lively,
    needs,
    only,
    places,
    play,
    processes_of,
    rest,
    told_with_luck,
    tree_children,
    tree_parent,
    volume,
    watch,
)

from mallob_py.protocol import messages
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outcome
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import RandomDelays

# --- race 9: termination ----------------------------------------------------------------------------


def test_race_9_workers_without_an_answer_or_a_description_end_with_their_job() -> None:
    """Every PE hears of the end by an epoch, whatever it knows of the job, so no message follows the job
    tree.
    """
    cluster = cluster_of(16)
    late = cluster.hold(
        lambda _source, _dest, message: isinstance(message, messages.Accepted | messages.Described)
    )
    cluster.submit(2)
    play(cluster)
    assert late.messages
    cluster.interrupt(2)
    late.release()
    rest(cluster)
    assert not cluster.processes
    assert cluster.ended[2].outcome is Outcome.INTERRUPTED


@told_with_luck
def test_race_9_a_root_adopted_after_its_job_has_ended_is_sent_away(seed: int) -> None:
    cluster = lively(8, seed, 0)
    client = seed % 8
    cluster.submit(1, client, max_demand=1)
    rest(cluster)
    # The client's own PE is busy, so job 3's root runs elsewhere. The request contains its short description.
    late = hold_kind(cluster, messages.Adopt, index=0)
    cluster.submit(3, client)
    play(cluster)
    needs(only(late, messages.Adopt))
    rank = late.messages[0][1]
    cluster.interrupt(3)
    play(cluster)
    needs(only(late, messages.Adopt))
    rejections = watch(cluster, messages.Rejected)
    late.release()
    rest(cluster)
    assert [dest for _, dest, _ in rejections] == [rank]
    assert is_idle(cluster, rank)
    assert not processes_of(cluster, 3)


@told_with_luck
def test_race_9_an_adoption_after_the_end_of_the_job_is_declined(seed: int) -> None:
    cluster = lively(8, seed, 0)
    late = hold_kind(cluster, messages.Adopt, index=1)
    cluster.submit(1, seed % 8)
    play(cluster)
    needs(only(late, messages.Adopt))
    rank = late.messages[0][1]
    cluster.interrupt(1)
    play(cluster)
    needs(only(late, messages.Adopt))
    failures, offers = watch(cluster, messages.RequestFailed), watch(cluster, messages.Offer)
    late.release()
    rest(cluster)
    assert [source for source, _, message in failures if message.index == 1] == [rank]
    assert not offers
    assert all(is_idle(cluster, place) for place in range(8))


def test_race_9_a_second_interrupt_is_harmless() -> None:
    cluster = cluster_of(4)
    cluster.submit(1)
    rest(cluster)
    cluster.interrupt(1)
    cluster.interrupt(1)
    rest(cluster)
    cluster.interrupt(1)
    rest(cluster)
    assert cluster.ended[1].outcome is Outcome.INTERRUPTED


# --- race 11: descriptions ---------------------------------------------------------------------------


def test_race_11_a_job_whose_description_never_arrives_can_be_interrupted() -> None:
    cluster = Cluster(4, 0, Config(), RandomDelays(0, fetch_s=(1e6, 1e6)))
    cluster.submit(2)
    play(cluster, 1.0)
    assert not cluster.processes
    cluster.interrupt(2)
    play(cluster, 1.0)
    assert cluster.ended[2].outcome is Outcome.INTERRUPTED
    assert all(is_idle(cluster, rank) for rank in range(4))


# --- race 13: all PEs are busy, clients included -----------------------------------------------------------


def test_race_13_every_pe_can_be_a_client_at_once() -> None:
    cluster = cluster_of(8)
    for job in range(8):
        cluster.submit(job, job)
    rest(cluster)
    assert [len(places(cluster, job)) for job in range(8)] == [1] * 8
    for job in range(7):
        cluster.interrupt(job)
    rest(cluster)
    assert len(places(cluster, 7)) == 8


@told_with_luck
def test_race_13_a_root_waits_for_its_pe_while_the_worker_that_has_to_leave_has_not_heard_of_it(
    seed: int,
) -> None:
    cluster = lively(8, seed, 0)
    cluster.submit(1, seed % 8)
    rest(cluster)
    rank = places(cluster, 1)[7]
    needs(tree_parent(cluster, rank) is not None and not tree_children(cluster, rank))
    late = hold_kind(cluster, messages.Epoch, dest=rank)
    cluster.submit(2, (rank + 1) % 8, max_demand=1)
    play(cluster)
    assert not places(cluster, 2)
    late.release()
    rest(cluster)
    assert places(cluster, 2) == {0: rank}


# --- race 14: edges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_race_14_more_jobs_than_pes_all_get_their_turn(size: int) -> None:
    cluster = cluster_of(size)
    for job in range(3 * size):
        cluster.submit(job, job % size)
    rest(cluster)
    turns = 0
    while len(cluster.ended) < 3 * size:
        (job, rank) = next(
            (pe.workers.active.job, pe.rank) for pe in cluster.pes if pe.workers.active is not None
        )
        answer(cluster, rank, active(cluster, rank).number)
        rest(cluster)
        turns += 1
        assert job in cluster.ended
    assert turns == 3 * size


def test_race_14_one_pe_runs_one_job_after_the_other() -> None:
    cluster = cluster_of(1, slice_s=0.0)
    cluster.submit(1)
    cluster.submit(2)
    rest(cluster)
    assert places(cluster, 1) == {0: 0}
    answer(cluster, 0, active(cluster, 0).number)
    rest(cluster)
    assert places(cluster, 2) == {0: 0}


def test_race_14_a_demand_that_changes_all_the_time_ends_in_a_tree_of_the_last_demand() -> None:
    cluster = cluster_of(32)
    cluster.submit(1)
    rest(cluster)
    for step in range(300):
        demand(cluster, 1, 1 + (17 * step) % 31)
        play(cluster, 0.0002)
    demand(cluster, 1, 13)
    rest(cluster)
    assert len(places(cluster, 1)) == 13


def test_race_14_jobs_of_equal_priority_share_to_the_last_pe() -> None:
    cluster = cluster_of(16)
    for job in range(5):
        cluster.submit(job, job)
    rest(cluster)
    assert sorted(len(places(cluster, job)) for job in range(5)) == [3, 3, 3, 3, 4]


def test_race_14_a_job_that_ends_before_its_first_balancing_leaves_nothing() -> None:
    cluster = cluster_of(8)
    late = hold_kind(cluster, messages.Epoch)
    cluster.submit(1, 3)
    cluster.interrupt(1)
    play(cluster)
    assert cluster.ended[1].stats.balanced_s is None
    late.release()
    rest(cluster)
    assert volume(cluster, 1) is None


# --- race 15: budgets -------------------------------------------------------------------------------------


def test_race_15_the_wallclock_limit_counts_from_the_start_of_the_root_not_from_submission() -> None:
    cluster = cluster_of(1, slice_s=0.0)
    cluster.submit(1, wallclock_limit_s=5.0)
    cluster.submit(2, wallclock_limit_s=5.0)
    play(cluster, 4.0)
    assert not cluster.ended
    play(cluster, 4.0)
    assert cluster.ended[1].outcome is Outcome.WALLCLOCK_LIMIT
    play(cluster, 4.0)
    assert cluster.ended[2].outcome is Outcome.WALLCLOCK_LIMIT
    stats = cluster.ended[2].stats
    assert stats.wallclock_s == pytest.approx(5.0)
    assert stats.response_s > 9.9
    rest(cluster)


def test_race_15_the_cpu_limit_is_spent_faster_by_more_workers() -> None:
    cluster = cluster_of(4)
    cluster.submit(1, cpu_limit_s=40.0)
    play(cluster, 5.0)
    demand(cluster, 1, 2)
    play(cluster, 9.0)
    assert not cluster.ended, "about 20 + 18 seconds are used"
    play(cluster, 2.0)
    ended = cluster.ended[1]
    assert ended.outcome is Outcome.CPU_LIMIT
    assert ended.stats.pe_s == pytest.approx(40.0)
    assert ended.stats.wallclock_s == pytest.approx(15.0, abs=0.1)
    assert ended.stats.max_volume == 4
    rest(cluster)


def test_the_client_hears_that_the_root_that_was_to_save_its_job_has_left() -> None:
    """While the system ends, the client's rank must not wait for a root that has left."""
    stage = Stage()

    def do(command: str) -> list[str]:
        return stage.do(command.split())

    for command in ("pes 2", "submit 0 job 1 max_demand=1", "settle"):
        do(command)
    do("submit 0 job 2 max_demand=1 leaves=true")  # the client's own PE is taken
    do("settle")
    client = stage.client(0)
    assert do("end 1") == ["1: LeaveWorker worker 0"]
    assert client.awaits_roots
    assert do("left 1") == ["1->0: RootLeft job 2"]
    do("deliver 1->0 RootLeft")
    assert not client.awaits_roots
