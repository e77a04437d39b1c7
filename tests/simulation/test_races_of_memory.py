"""Races of suspended workers, of parents that remember them, and of messages between workers."""

from typing import Any

from stories import (
    active,
    answer,
    cluster_of,
    crash,
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
    suspended,
    told_with_luck,
    watch,
)

from mallob_py.protocol import messages
from mallob_py.protocol.config import Config, Reuse
from mallob_py.protocol.effects import JobEnded, Outcome
from mallob_py.protocol.stimuli import DropPast, WorkerToChildren, WorkerToParent
from mallob_py.protocol.worker import WorkerState
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import RandomDelays
from mallob_py.simulation.network import Hold


def _shrunk_by_one(seed: int, **settings: Any) -> tuple[Cluster, int, int, int]:
    """Return a cluster where worker 3 of job 1 is suspended: (cluster, its rank, its number, its parent's
    rank).
    """
    cluster = lively(16, seed, **settings)
    cluster.submit(1, seed % 16, max_demand=4)
    rest(cluster)
    demand(cluster, 1, 3)
    rest(cluster)
    ((rank, number),) = suspended(cluster, 1)
    return cluster, rank, number, places(cluster, 1)[1]


# --- race 7: a forgotten worker ---------------------------------------------------------------------


@told_with_luck
def test_race_7_a_query_for_a_worker_whose_process_has_died_is_denied_and_a_new_one_found(seed: int) -> None:
    cluster, rank, number, parent = _shrunk_by_one(seed)
    crash(cluster, rank, number)
    queries, denials = watch(cluster, messages.Query), watch(cluster, messages.Denied)
    demand(cluster, 1, 4)
    rest(cluster)
    assert [dest for _, dest, _ in queries] == [rank]
    assert [source for source, _, _ in denials] == [rank]
    assert set(places(cluster, 1)) == {0, 1, 2, 3}
    assert active(cluster, parent).seats.past.most_recent(3) is None


@told_with_luck
def test_race_7_a_query_for_a_worker_that_the_cache_had_no_room_for_is_denied(seed: int) -> None:
    cluster = lively(16, seed, job_cache=0)
    cluster.submit(1, seed % 16, max_demand=4)
    rest(cluster)
    rank = places(cluster, 1)[3]
    demand(cluster, 1, 3)
    rest(cluster)
    assert not suspended(cluster, 1)
    denials = watch(cluster, messages.Denied)
    demand(cluster, 1, 4)
    rest(cluster)
    assert [source for source, _, _ in denials] == [rank]
    assert set(places(cluster, 1)) == {0, 1, 2, 3}


@told_with_luck
def test_race_7_a_query_that_meets_a_busy_pe_is_denied(seed: int) -> None:
    cluster, rank, number, _ = _shrunk_by_one(seed)
    cluster.submit(2, rank, max_demand=1)
    rest(cluster)
    needs(places(cluster, 2)[0] == rank)
    denials = watch(cluster, messages.Denied)
    demand(cluster, 1, 4)
    rest(cluster)
    assert [source for source, _, _ in denials] == [rank]
    assert places(cluster, 1)[3] != rank
    assert (rank, number) in suspended(cluster, 1)


@told_with_luck
def test_race_7_a_query_for_a_worker_that_is_not_wanted_any_more_is_denied(seed: int) -> None:
    cluster, rank, number, _ = _shrunk_by_one(seed)
    late = hold_kind(cluster, messages.Query, dest=rank)
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late, messages.Query))
    demand(cluster, 1, 3)
    play(cluster)
    needs(only(late, messages.Query))
    denials, offers = watch(cluster, messages.Denied), watch(cluster, messages.Offer)
    late.release()
    rest(cluster)
    assert [source for source, _, _ in denials] == [rank]
    assert not offers
    assert suspended(cluster, 1) == [(rank, number)]


@told_with_luck
def test_race_7_a_pe_that_has_denied_a_query_does_not_wait_for_another_one(seed: int) -> None:
    """The PE denies because its token is matched with a void request; afterwards it is free for all jobs."""
    cluster, rank, _, _ = _shrunk_by_one(seed, reuse_patience_s=1000.0)
    late_token, late_grants = (
        hold_kind(cluster, messages.TokenReturned, dest=rank),
        hold_kind(cluster, messages.Grant),
    )
    cluster.submit(2, (seed + 5) % 16)
    play(cluster)
    cluster.interrupt(2)
    late_grants.release()
    play(cluster)
    denials = watch(cluster, messages.Denied)
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(late_token, messages.TokenReturned))
    assert [source for source, _, _ in denials] == [rank]
    late_token.release()
    play(cluster)
    assert cluster.pes[rank].workers.is_free()
    rest(cluster)


# --- race 8: memory sent to a worker that leaves ------------------------------------------------------


@told_with_luck
def test_race_8_memory_sent_to_a_worker_that_leaves_meanwhile_is_lost_without_harm(seed: int) -> None:
    cluster = lively(32, seed)
    cluster.submit(1, seed % 32, max_demand=15)
    rest(cluster)
    late = hold_kind(cluster, messages.Remember)
    demand(cluster, 1, 7)
    play(cluster)
    needs(only(late, messages.Remember) and any(message.index == 3 for _, _, message in late.messages))
    demand(cluster, 1, 2)
    play(cluster)
    needs(only(late, messages.Remember))
    late.release()
    rest(cluster)
    demand(cluster, 1, 15)
    rest(cluster)
    assert len(places(cluster, 1)) == 15


def _after_shrinking_in_steps(seed: int = 0) -> tuple[Cluster, dict[int, int]]:
    """Return a cluster where a tree of 32 workers has shrunk and grown again, and the workers' former
    ranks.
    """
    cluster = cluster_of(32, seed, reuse_patience_s=1.0)
    cluster.submit(1)
    rest(cluster)
    before = places(cluster, 1)
    for workers in (20, 9, 3, 1, 32):
        demand(cluster, 1, workers)
        rest(cluster)
    return cluster, before


def test_race_8_a_tree_that_shrinks_in_steps_and_grows_again_starts_no_new_process() -> None:
    cluster, _ = _after_shrinking_in_steps()
    assert len(processes_of(cluster, 1)) == 32
    assert not suspended(cluster, 1)


def test_race_8_a_tree_that_shrinks_in_steps_and_grows_again_has_its_workers_in_their_old_places() -> None:
    """All but a few workers return; for these few, a new request was faster than the memory of the past
    worker.
    """
    at_home = 0
    for seed in range(5):
        cluster, before = _after_shrinking_in_steps(seed)
        after = places(cluster, 1)
        at_home += sum(after[index] == rank for index, rank in before.items())
    assert at_home >= 0.95 * 5 * 32


def test_race_8_without_reuse_of_what_others_remember_only_parents_find_their_past_children() -> None:
    cluster = cluster_of(8, reuse=Reuse.BASIC)
    cluster.submit(1)
    rest(cluster)
    before = processes_of(cluster, 1)
    demand(cluster, 1, 7)
    rest(cluster)
    demand(cluster, 1, 8)
    rest(cluster)
    assert processes_of(cluster, 1) == before


def _regrown_with_somebody_else_in_seat_3(seed: int) -> tuple[Cluster, int, Hold, Hold]:
    """Return a cluster where job 1 grows again from its root, and worker 1 does not know yet who was worker
    3.

    The messages with this memory and with another PE's adoption are held: (cluster, the rank of the past
    worker 3, memory, adoption).
    """
    cluster = cluster_of(16, seed, reuse_patience_s=1000.0)
    cluster.submit(1, seed % 16, max_demand=4)
    rest(cluster)
    past = places(cluster, 1)[3]
    demand(cluster, 1, 1)
    rest(cluster)
    assert len(suspended(cluster, 1)) == 3
    memory, adoption = (
        hold_kind(cluster, messages.Accepted, index=1),
        hold_kind(cluster, messages.Adopt, index=3),
    )
    demand(cluster, 1, 4)
    play(cluster)
    needs(only(memory, messages.Accepted) and only(adoption, messages.Adopt))
    assert is_idle(cluster, past)
    return cluster, past, memory, adoption


@told_with_luck
def test_race_8_a_pe_that_waits_for_a_seat_which_somebody_else_has_taken_is_released(seed: int) -> None:
    """Otherwise the PE would wait in vain until its time limit."""
    cluster, past, memory, adoption = _regrown_with_somebody_else_in_seat_3(seed)
    releases = watch(cluster, messages.Release)
    memory.release()
    play(cluster)
    assert not releases, "the seat is still free"
    adoption.release()
    rest(cluster)
    assert [dest for _, dest, _ in releases] == [past]
    assert is_idle(cluster, past)
    assert set(places(cluster, 1)) == {0, 1, 2, 3}


@told_with_luck
def test_race_8_a_pe_whose_suspended_worker_nobody_asks_for_waits_for_a_bounded_time(seed: int) -> None:
    cluster, rank, _, _ = _shrunk_by_one(seed)
    late = hold_kind(cluster, messages.Query, dest=rank)
    demand(cluster, 1, 4)
    cluster.run(until_s=cluster.now + 0.5 * cluster.config.reuse_patience_s)
    needs(is_idle(cluster, rank) and not cluster.pes[rank].workers.is_free())
    play(cluster)
    needs(only(late, messages.Query))
    assert cluster.pes[rank].workers.is_free()
    late.release()
    rest(cluster)


@told_with_luck
def test_race_8_a_pe_that_lets_go_of_the_worker_it_waits_for_offers_itself_at_once(seed: int) -> None:
    cluster, rank, _, _ = _shrunk_by_one(seed)
    late = hold_kind(cluster, messages.Query, dest=rank)
    demand(cluster, 1, 4)
    cluster.run(until_s=cluster.now + 0.5 * cluster.config.reuse_patience_s)
    needs(is_idle(cluster, rank) and not cluster.pes[rank].workers.is_free())
    _, tokens = cluster.pes[rank].matcher.supply()
    cluster.tell(rank, DropPast(1))
    assert cluster.pes[rank].workers.is_free()
    assert cluster.pes[rank].matcher.supply() == (0, tokens + 1)
    needs(only(late, messages.Query))
    late.release()
    rest(cluster)


# --- race 10: messages to workers that have left ---------------------------------------------------------


def _say_down(cluster: Cluster, rank: int, data: bytes) -> None:
    number = active(cluster, rank).number
    cluster.tell(rank, WorkerToChildren(number, data))


def _say_up(cluster: Cluster, rank: int, data: bytes) -> None:
    number = active(cluster, rank).number
    cluster.tell(rank, WorkerToParent(number, data))


def _heard(cluster: Cluster, rank: int) -> list[tuple[int, bytes, bool]]:
    process = cluster.processes[rank, active(cluster, rank).number]
    return [(message.source_index, message.data, message.returned) for message in process.heard]


@told_with_luck
def test_race_10_a_message_to_a_child_that_has_left_comes_back_with_a_flag(seed: int) -> None:
    cluster = lively(16, seed)
    cluster.submit(1, seed % 16, max_demand=3)
    rest(cluster)
    root = places(cluster, 1)[0]
    late = hold_kind(cluster, messages.TreeMessage, dest=places(cluster, 1)[2])
    _say_down(cluster, root, b"news")
    demand(cluster, 1, 2)
    play(cluster)
    needs(only(late, messages.TreeMessage))
    late.release()
    rest(cluster)
    assert _heard(cluster, root) == [(2, b"news", True)]
    assert _heard(cluster, places(cluster, 1)[1]) == [(0, b"news", False)]


@told_with_luck
def test_race_10_a_message_whose_sender_has_left_too_is_dropped(seed: int) -> None:
    cluster = lively(16, seed)
    cluster.submit(1, seed % 16, max_demand=4)
    rest(cluster)
    late = hold_kind(cluster, messages.TreeMessage)
    _say_up(cluster, places(cluster, 1)[3], b"news")
    demand(cluster, 1, 1)
    play(cluster)
    needs(only(late, messages.TreeMessage))
    sent = watch(cluster, messages.TreeMessage)
    late.release()
    rest(cluster)
    # Sent once when released, once on its way back, and no third time.
    assert [message.returned for _, _, message in sent] == [False, True]


@told_with_luck
def test_race_10_a_message_to_the_former_worker_does_not_reach_its_successor(seed: int) -> None:
    cluster = lively(16, seed, reuse=Reuse.NONE)
    cluster.submit(1, seed % 16, max_demand=3)
    rest(cluster)
    root, child = places(cluster, 1)[0], places(cluster, 1)[2]
    late = hold_kind(cluster, messages.TreeMessage, dest=child)
    _say_down(cluster, root, b"old news")
    demand(cluster, 1, 2)
    play(cluster)
    needs(only(late, messages.TreeMessage))
    late_answers = len(late.messages)
    demand(cluster, 1, 3)
    play(cluster)
    needs(
        not is_idle(cluster, child) and active(cluster, child).job == 1 and len(late.messages) > late_answers
    )
    late.release()
    rest(cluster)
    assert (0, b"old news", False) not in _heard(cluster, child)


# --- crashes and results ---------------------------------------------------------------------------------


def test_a_crash_before_the_process_has_read_its_messages_loses_none_of_them() -> None:
    cluster = Cluster(4, 1, Config(), RandomDelays(1, process_start_s=(0.02, 0.02)))
    cluster.submit(1, max_demand=2)
    while 1 not in places(cluster, 1) or not active(cluster, places(cluster, 1)[1]).state.has_process:
        play(cluster, 0.001)
    root, child = places(cluster, 1)[0], places(cluster, 1)[1]
    worker = active(cluster, child)
    assert worker.state is WorkerState.STARTING
    _say_down(cluster, root, b"one")
    _say_down(cluster, root, b"two")
    play(cluster, 0.005)
    assert len(worker.inbox) == 2
    crash(cluster, child, worker.number)
    rest(cluster)
    assert _heard(cluster, child) == [(0, b"one", False), (0, b"two", False)]


def test_a_worker_that_keeps_dying_keeps_its_place_and_the_job_goes_on() -> None:
    cluster = cluster_of(4)
    cluster.submit(1)
    rest(cluster)
    rank = places(cluster, 1)[2]
    for _ in range(cluster.config.restarts_max + 1):
        crash(cluster, rank, active(cluster, rank).number)
        rest(cluster)
    assert active(cluster, rank).state is WorkerState.DEAD
    assert places(cluster, 1)[2] == rank
    assert not cluster.ended


def test_a_root_that_keeps_dying_ends_its_job_with_a_reason() -> None:
    cluster = cluster_of(4)
    cluster.submit(1)
    rest(cluster)
    rank = places(cluster, 1)[0]
    for _ in range(cluster.config.restarts_max + 1):
        crash(cluster, rank, active(cluster, rank).number)
        play(cluster)
    rest(cluster)
    assert cluster.ended[1].outcome is Outcome.FAILED
    assert "killed by signal 9" in (cluster.ended[1].reason or "")


@told_with_luck
def test_the_death_of_a_suspended_process_lets_its_pe_go_free(seed: int) -> None:
    cluster, rank, number, _ = _shrunk_by_one(seed)
    crash(cluster, rank, number)
    rest(cluster)
    assert is_idle(cluster, rank)
    assert 1 not in cluster.pes[rank].workers.suspended


@told_with_luck
def test_a_result_of_a_suspended_worker_counts(seed: int) -> None:
    cluster, rank, number, _ = _shrunk_by_one(seed)
    answer(cluster, rank, number, b"found while stopping")
    rest(cluster)
    ended: JobEnded = cluster.ended[1]
    assert (ended.outcome, ended.body) == (Outcome.RESULT, b"found while stopping")
    assert not processes_of(cluster, 1)


def test_messages_that_wait_for_the_process_are_delivered_once_and_none_comes_back() -> None:
    cluster = Cluster(2, delays=RandomDelays(0, message_s=(1e-5, 2e-5), process_start_s=(0.01, 0.01)))
    cluster.submit(1, max_demand=2)
    cluster.run(until_s=0.015)
    (root,) = cluster.running(1)
    cluster.tell(root[0], WorkerToChildren(root[1], b"early"))
    rest(cluster)
    child = next(process for key, process in cluster.processes.items() if key != root)
    assert [(message.data, message.returned) for message in child.heard] == [(b"early", False)]
    assert cluster.processes[root].heard == []
