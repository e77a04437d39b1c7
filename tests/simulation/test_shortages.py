"""If a host is short of memory, past workers are dropped, running workers are paused, and their jobs go
on.
"""

import pytest
from seeds import seeds
from stories import (
    active,
    answer,
    cluster_of,
    demand,
    hold_kind,
    is_idle,
    lively,
    needs,
    places,
    play,
    processes_of,
    rest,
    suspended,
    told_with_luck,
    watch,
)

from mallob_py.protocol import stimuli
from mallob_py.protocol.config import Config
from mallob_py.protocol.messages import Adopt, Denied, Offer, Query, TreeMessage
from mallob_py.protocol.worker import WorkerState
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import RandomDelays
from mallob_py.simulation.plan import Drop, Pause, Unpause, draw_plan
from mallob_py.simulation.scenario import Scenario


def drop_past(cluster: Cluster, rank: int, count: int = 1) -> None:
    cluster.tell(rank, stimuli.DropPast(count))


def pause(cluster: Cluster, rank: int) -> None:
    cluster.tell(rank, stimuli.PauseWorker())


def unpause(cluster: Cluster, rank: int) -> None:
    cluster.tell(rank, stimuli.UnpauseWorker())


def with_four_workers(seed: int = 0) -> tuple[Cluster, dict[int, int]]:
    """Return a cluster with job 1 at rest on four of eight PEs, and the rank of each worker."""
    cluster = lively(8, seed, bystanders=1)
    cluster.submit(1, seed % 8, max_demand=4)
    rest(cluster)
    return cluster, places(cluster, 1)


# --- past workers -----------------------------------------------------------------------------------------


@told_with_luck
def test_a_query_for_a_worker_that_was_dropped_is_denied_and_a_new_one_found(seed: int) -> None:
    cluster, ranks = with_four_workers(seed)
    demand(cluster, 1, 3)
    rest(cluster)
    assert [rank for rank, _ in suspended(cluster, 1)] == [ranks[3]]
    drop_past(cluster, ranks[3])
    rest(cluster)
    assert not suspended(cluster, 1)
    queries, denials = watch(cluster, Query), watch(cluster, Denied)
    demand(cluster, 1, 4)
    rest(cluster)
    assert [dest for _, dest, _ in queries] == [ranks[3]] == [source for source, _, _ in denials]
    assert set(places(cluster, 1)) == {0, 1, 2, 3}


def test_the_least_recently_used_past_worker_is_dropped_first_and_never_more_than_there_are() -> None:
    cluster = cluster_of(1, slice_s=0.0)
    for job, priority in ((1, 1.0), (2, 2.0), (3, 4.0)):
        cluster.submit(job, priority=priority)
        rest(cluster)
    past = cluster.pes[0].workers.giving_back.past()
    assert [cluster.processes[0, number].job for number in past] == [1, 2]
    drop_past(cluster, 0)
    assert [process.job for process in cluster.processes.values()] == [2, 3]
    drop_past(cluster, 0, count=5)
    assert [process.job for process in cluster.processes.values()] == [3]
    rest(cluster)


@told_with_luck
def test_a_pe_that_drops_the_worker_it_keeps_itself_free_for_is_free_for_all(seed: int) -> None:
    cluster = cluster_of(8, seed, reuse_patience_s=1000.0)
    cluster.submit(1, seed % 8, max_demand=4)
    rest(cluster)
    rank = places(cluster, 1)[3]
    demand(cluster, 1, 3)
    rest(cluster)
    late = hold_kind(cluster, Query, dest=rank)
    demand(cluster, 1, 4)
    play(cluster)
    needs(bool(late.messages) and is_idle(cluster, rank) and not cluster.pes[rank].workers.is_free())
    drop_past(cluster, rank)
    play(cluster)
    assert cluster.pes[rank].workers.is_free()
    late.release()
    rest(cluster)


# --- running workers --------------------------------------------------------------------------------------


def test_a_paused_worker_keeps_its_seat_without_a_process_and_nobody_is_asked_for_another() -> None:
    cluster, ranks = with_four_workers()
    requests = [watch(cluster, kind) for kind in (Adopt, Query, Offer)]
    pause(cluster, ranks[1])
    rest(cluster)
    assert places(cluster, 1) == ranks
    assert {rank for rank, _ in processes_of(cluster, 1)} == {ranks[index] for index in (0, 2, 3)}
    assert not any(requests)
    answer(cluster, ranks[3], active(cluster, ranks[3]).number)
    rest(cluster)
    assert set(cluster.ended) >= {1}


def test_the_root_of_a_job_is_never_paused() -> None:
    cluster, ranks = with_four_workers()
    before = processes_of(cluster, 1)
    assert cluster.pes[ranks[0]].workers.giving_back.pausable() is None
    pause(cluster, ranks[0])
    rest(cluster)
    assert processes_of(cluster, 1) == before


@pytest.mark.parametrize("job", [1, 2])
def test_a_paused_worker_gets_another_process_and_knows_its_children_when_there_is_memory(job: int) -> None:
    """Job 2's description must be fetched once more; job 1's description is still there."""
    cluster = cluster_of(8)
    cluster.submit(job, max_demand=4)
    rest(cluster)
    ranks = places(cluster, job)
    number = active(cluster, ranks[1]).number
    pause(cluster, ranks[1])
    pause(cluster, ranks[1])
    play(cluster)
    unpause(cluster, ranks[1])
    assert active(cluster, ranks[1]).state.has_process == (job == 1)
    unpause(cluster, ranks[1])
    rest(cluster)
    assert places(cluster, job) == ranks
    assert active(cluster, ranks[1]).number != number
    assert cluster.processes[ranks[1], active(cluster, ranks[1]).number].children == (3,)
    assert len(processes_of(cluster, job)) == 4


def test_a_paused_worker_leaves_when_its_job_shrinks_and_nothing_of_it_is_kept() -> None:
    cluster, ranks = with_four_workers()
    pause(cluster, ranks[3])
    demand(cluster, 1, 3)
    rest(cluster)
    assert is_idle(cluster, ranks[3])
    assert not suspended(cluster, 1)
    unpause(cluster, ranks[3])
    demand(cluster, 1, 4)
    rest(cluster)
    assert len(processes_of(cluster, 1)) == 4


def test_a_job_ends_while_its_paused_worker_is_about_to_get_another_process() -> None:
    cluster = cluster_of(8)
    cluster.submit(2, max_demand=2)
    rest(cluster)
    rank = places(cluster, 2)[1]
    pause(cluster, rank)
    play(cluster)
    unpause(cluster, rank)
    cluster.interrupt(2)
    rest(cluster)
    assert not cluster.processes


def test_a_message_to_a_paused_worker_comes_back() -> None:
    cluster, ranks = with_four_workers()
    pause(cluster, ranks[1])
    back = watch(cluster, TreeMessage)
    number = active(cluster, ranks[0]).number
    cluster.tell(ranks[0], stimuli.WorkerToChildren(number, b"news"))
    rest(cluster)
    assert [message.target_index for _, _, message in back if message.returned] == [0]


def test_messages_that_a_paused_worker_had_not_read_come_back() -> None:
    cluster = Cluster(4, 1, Config(), RandomDelays(1, process_start_s=(0.02, 0.02)))
    cluster.submit(1, max_demand=2)
    while 1 not in places(cluster, 1) or not active(cluster, places(cluster, 1)[1]).state.has_process:
        play(cluster, 0.001)
    root, child = (places(cluster, 1)[index] for index in (0, 1))
    number = active(cluster, root).number
    cluster.tell(root, stimuli.WorkerToChildren(number, b"news"))
    play(cluster, 0.005)
    assert len(active(cluster, child).inbox) == 1
    back = watch(cluster, TreeMessage)
    pause(cluster, child)
    rest(cluster)
    assert [message.target_index for _, _, message in back if message.returned] == [0]


def test_the_last_words_of_a_process_that_was_ended_are_not_heard() -> None:
    cluster, ranks = with_four_workers()
    number = active(cluster, ranks[1]).number
    pause(cluster, ranks[1])
    cluster.tell(ranks[1], stimuli.WorkerCrashed(number, "killed by signal 9"))
    cluster.tell(ranks[1], stimuli.WorkerRaised(number, "an error"))
    cluster.tell(ranks[1], stimuli.WorkerStarted(number))
    rest(cluster)
    assert 1 not in cluster.ended
    assert active(cluster, ranks[1]).state is WorkerState.PAUSED
    assert len(processes_of(cluster, 1)) == 3


# --- random runs ------------------------------------------------------------------------------------------


def test_random_lives_know_shortages_of_all_kinds() -> None:
    kinds = {type(deed) for seed in range(20) for deed in draw_plan(seed).deeds}
    assert kinds >= {Drop, Pause, Unpause}
    seen: set[str] = set()
    for seed in seeds(30):
        scenario = Scenario(draw_plan(seed))
        scenario.run()
        seen |= {event for _, _, event, _ in scenario.cluster.logs}
    assert seen >= {"paused", "unpaused"}
