"""Ranks are lost, hang, leave and join while jobs run: survivors keep what they have, each job ends once."""

from typing import Any

import pytest

from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.generation import Ordered
from mallob_py.protocol.growth import PATIENCE_S
from mallob_py.protocol.messages import Message
from mallob_py.protocol.rank_messages import Listening
from mallob_py.protocol.stimuli import WorkerAnswered, WorkerSaves, WorkerToWorker
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import NetworkModel, RandomDelays
from mallob_py.simulation.setting import Setting


def _cluster(ranks: int = 8, capacity: int = 1, seed: int = 0, detect_s: float = 0.01) -> Cluster:
    delays = RandomDelays(seed, message_s=(50e-6, 60e-6))
    capacities = [capacity] * ranks
    return Cluster(ranks * capacity, seed, None, delays, None, capacities, detect_s=detect_s, patience_s=0.5)


def _submit(cluster: Cluster, job: int, rank: int, demand: int, **parameters: Any) -> None:
    """Submit a job, and wait until all of its workers are at work."""
    cluster.submit(job, rank, max_demand=demand, **parameters)
    cluster.settle()
    assert len(cluster.running(job)) == demand


def _rest(cluster: Cluster) -> None:
    cluster.settle(within_s=200.0)
    check_invariants(cluster)
    cluster.check_generations()


def _finish(cluster: Cluster, job: int) -> None:
    place, worker = cluster.running(job)[0]
    cluster.tell(place, WorkerAnswered(worker, b"result"))
    cluster.settle(within_s=200.0)
    assert cluster.ended[job].outcome is Outcome.RESULT


@pytest.mark.parametrize("lost", [1, 3, 5, 7])
@pytest.mark.parametrize("seed", range(3))
def test_survivors_go_on_with_the_processes_that_they_had(lost: int, seed: int) -> None:
    cluster = _cluster(seed=seed)
    _submit(cluster, 1, rank=0, demand=8)
    before = set(cluster.processes)
    cluster.die(lost)
    _rest(cluster)
    assert set(cluster.running(1)) == {key for key in before if key[0] != lost}
    _finish(cluster, 1)


@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_share_all_ranks_find_their_processes_again(seed: int) -> None:
    cluster = _cluster(seed=seed)
    for job in (1, 2, 3):
        _submit(cluster, job, rank=job, demand=2)
    before = {key for key, process in cluster.processes.items() if not process.is_suspended}
    spare = next(rank for rank in (7, 6, 5, 4) if rank not in [place for place, _ in before])
    cluster.die(spare)
    _rest(cluster)
    assert {key for job in (1, 2, 3) for key in cluster.running(job)} == before


@pytest.mark.parametrize("seed", range(3))
def test_the_jobs_of_a_lost_client_go_on_with_its_heir_and_with_the_same_processes(seed: int) -> None:
    cluster = _cluster(seed=seed)
    _submit(cluster, 1, rank=3, demand=5)
    _submit(cluster, 2, rank=0, demand=2)
    before = {key for key in cluster.processes if key[0] != 3}
    cluster.die(3)
    _rest(cluster)
    assert cluster.submitted[1] == 2
    assert before <= set(cluster.processes)
    _finish(cluster, 1)
    _finish(cluster, 2)


def test_two_at_once_and_the_first_rank_are_survived() -> None:
    cluster = _cluster(4, capacity=2)
    _submit(cluster, 1, rank=0, demand=8)
    before = set(cluster.processes)
    cluster.die(0)
    cluster.die(2)
    _rest(cluster)
    assert set(cluster.running(1)) == {key for key in before if key[0] in (2, 3, 6, 7)}
    _finish(cluster, 1)


def test_new_pes_know_which_jobs_are_new_and_whose_jobs_they_are() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=0, demand=2, user=5)
    cluster.run(until_s=cluster.now + 1.0)
    _submit(cluster, 2, rank=0, demand=2, user=6)
    cluster.die(3)
    _rest(cluster)
    for pe in cluster.pes[:3]:
        known = {job: (event.user, event.had_slice) for job, event in pe.balancer.jobs.items()}
        assert known == {1: (5, True), 2: (6, False)}


def test_one_that_hangs_is_left_out_and_ends_when_it_wakes_up() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=2, demand=4)
    cluster.hang(2, for_s=0.1)
    _rest(cluster)
    assert not cluster.is_there(2)
    assert len(cluster.running(1)) == 3
    _finish(cluster, 1)


def test_a_loss_that_only_a_hanging_rank_would_hear_of_is_not_looked_for_all_the_time() -> None:
    cluster = _cluster(4, detect_s=1e-5)
    cluster.hang(2, for_s=1.0)
    cluster.die(1)
    assert cluster.run(until_s=1.1) < 5000
    _rest(cluster)


@pytest.mark.parametrize("leave", [True, False])
def test_one_that_hangs_until_all_whom_it_knew_are_gone_does_not_come_back(leave: bool) -> None:
    cluster = _cluster(3)
    _submit(cluster, 1, rank=0, demand=3)
    cluster.hang(0, for_s=10.0)
    cluster.run(until_s=cluster.now + 1.0)
    (new,) = cluster.join([1], asked=1)
    for address in (1, 2):
        cluster.run(until_s=cluster.now + 1.0)
        if leave:
            cluster.leave(address, asked=new)
        else:
            cluster.die(address)
    _rest(cluster)
    assert [address for address in cluster.addresses() if cluster.is_there(address)] == [new]
    _finish(cluster, 1)


def test_who_leaves_hands_its_folder_over() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=3, demand=4)
    cluster.leave(3, asked=1)
    _rest(cluster)
    assert not cluster.is_there(3)
    assert cluster.submitted[1] == 2
    _finish(cluster, 1)


def test_who_was_to_leave_and_stays_meets_what_came_to_its_folder_meanwhile() -> None:
    cluster = _cluster(2)
    _submit(cluster, 1, rank=0, demand=2)
    cluster.leave(0, asked=0)
    cluster.hang(1, for_s=0.2)  # rank 1 does not answer in time, so it is left out
    cluster.run(until_s=cluster.now + 1e-3)
    cluster.submit(2, rank=0, max_demand=1)
    cluster.interrupt(1)
    _rest(cluster)
    assert cluster.is_there(0)
    assert cluster.ended[1].outcome is not Outcome.RESULT
    _finish(cluster, 2)


def test_a_job_grows_onto_ranks_that_join() -> None:
    cluster = _cluster(2)
    cluster.submit(1, rank=1, max_demand=8)
    cluster.settle()
    cluster.join([1, 2], asked=0)
    _rest(cluster)
    assert sorted(place for place, _ in cluster.running(1)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002, 0.003, 0.004])
def test_when_a_newcomer_dies_on_its_way_the_others_join(after_s: float) -> None:
    cluster = _cluster(3)
    first, second = cluster.join([1, 2], asked=0)
    cluster.run(until_s=cluster.now + after_s)
    cluster.die(first)
    _rest(cluster)
    assert cluster.members_awake() == [0, 1, 2, second]


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002, 0.003, 0.004])
def test_a_newcomer_that_hangs_on_its_way_is_left_out_or_joins(after_s: float) -> None:
    cluster = _cluster(3)
    first, second = cluster.join([1, 2], asked=0)
    cluster.run(until_s=cluster.now + after_s)
    cluster.hang(first, for_s=1.0)
    _rest(cluster)
    assert set(cluster.members_awake()) - {first} == {0, 1, 2, second}


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002, 0.003, 0.004])
@pytest.mark.parametrize("lost", [0, 1])
def test_founders_that_are_lost_in_mid_growth_leave_one_sound_system(lost: int, after_s: float) -> None:
    """Newcomers end with the rank that has started them, unless they are members already."""
    cluster = _cluster(3)
    cluster.submit(1, rank=2, max_demand=5)
    new = cluster.join([1, 1], asked=0)
    cluster.run(until_s=cluster.now + after_s)
    cluster.die(lost)
    _rest(cluster)
    members = cluster.members_awake()
    assert {1, 2} - {lost} <= set(members)
    if lost == 1:
        assert set(members) == {0, 2, *new}
    assert len(cluster.running(1)) == len(members)


@pytest.mark.parametrize(("seed", "after_s"), [(0, 0.00225), (4, 0.00125), (5, 0.00325)])
def test_newcomers_of_a_lost_host_and_of_another_do_not_meet_as_strangers(seed: int, after_s: float) -> None:
    """The first newcomers' order outlives their host; the second host knows only members older than the first
    newcomers.
    """
    cluster = _cluster(4, seed=seed)
    cluster.join([1, 1], asked=1)
    cluster.run(until_s=cluster.now + after_s)
    cluster.die(1)
    cluster.join([1], asked=2)
    _rest(cluster)
    assert set(cluster.members_awake()) >= {0, 2, 3}


def test_a_rank_may_start_others_while_it_waits_for_a_generation() -> None:
    cluster = _cluster(3)
    cluster.tell_rank(0, Ordered(leaves=(2,)))  # rank 0 halts at once
    new = cluster.join([1, 1], asked=0)
    _rest(cluster)
    assert cluster.members_awake() == [0, 1, *new]


def test_a_growth_waits_for_no_member_that_has_left() -> None:
    """Otherwise the newcomers would be given up after a minute, because that member has not sent its
    address.
    """
    cluster = _cluster(3)
    late = cluster.hold(lambda source, dest, message: isinstance(message, Listening) and source == 2)
    cluster.tell_rank(0, Ordered(leaves=(2,)))
    new = cluster.join([1], asked=0)
    cluster.run(until_s=cluster.now + 0.1)
    late.drop()
    begun_s = cluster.now
    _rest(cluster)
    assert cluster.members_awake() == [0, 1, *new]
    assert cluster.now - begun_s < PATIENCE_S


def test_a_second_order_to_grow_waits_for_the_first() -> None:
    cluster = _cluster(2)
    first, second = cluster.join([1], asked=0), cluster.join([1], asked=1)
    _rest(cluster)
    assert cluster.members_awake() == [0, 1, *first, *second]


def test_an_answer_that_was_on_its_way_is_said_again() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=0, demand=4)
    place, worker = cluster.running(1)[-1]
    assert place != 0
    cluster.tell(place, WorkerAnswered(worker, b"found"))
    # at once, so that rank 0 halts before the answer arrives
    cluster.tell_rank(0, Ordered(leaves=(3 if place != 3 else 2,)))
    _rest(cluster)
    assert cluster.ended[1].body == b"found"


def test_an_answer_for_a_client_that_is_lost_is_heard_by_its_heir() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=3, demand=4)
    place, worker = next(key for key in cluster.running(1) if key[0] in (0, 1))
    late = cluster.hold(lambda source, dest, message: isinstance(message, Message) and dest == 3)
    cluster.tell(place, WorkerAnswered(worker, b"found"))
    late.drop()
    cluster.die(3)
    _rest(cluster)
    assert cluster.ended[1].body == b"found"


def test_an_answer_of_a_former_worker_ends_the_root_that_its_client_has_just_been_given() -> None:
    """The new root learns of the answer neither by its own result nor by an epoch: no epoch has the job
    yet.
    """
    cluster = _cluster(4)
    _submit(cluster, 1, rank=3, demand=4)
    place, worker = next(key for key in cluster.running(1) if key[0] in (0, 1))
    cluster.die(3)
    cluster.tell_rank(0, Ordered(leaves=(2,)))
    cluster.run(until_s=cluster.now + 0.005)  # all ranks are halted, and wait for the lost rank
    cluster.tell(place, WorkerAnswered(worker, b"found"))
    _rest(cluster)
    assert cluster.ended[1].body == b"found"
    assert not cluster.processes


def test_budgets_go_on() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=0, demand=2, wallclock_limit_s=10.0, cpu_limit_s=30.0)
    cluster.run(until_s=6.0)
    cluster.die(3)
    cluster.run(until_s=9.0)
    assert 1 not in cluster.ended
    cluster.run(until_s=11.0)
    ended = cluster.ended[1]
    assert ended.outcome is Outcome.WALLCLOCK_LIMIT
    assert ended.stats.pe_s == pytest.approx(20.0, rel=0.05)


def test_the_last_checkpoint_is_kept_for_a_root_that_is_lost() -> None:
    cluster = _cluster(3)
    _submit(cluster, 1, rank=0, demand=3)
    place, worker = cluster.running(1)[0]
    cluster.tell(place, WorkerSaves(worker, b"so far"))
    cluster.settle()
    assert place == 0
    cluster.die(0)
    _rest(cluster)
    root = cluster.pes[cluster.running(1)[0][0]]
    client = cluster.pes[cluster.submitted[1]]
    checkpoint = client.client.jobs[1].checkpoint
    assert root.workers.active is not None
    assert checkpoint is not None
    assert checkpoint.data == b"so far"


def test_the_budget_of_a_job_counts_with_the_heir_of_its_client() -> None:
    cluster = _cluster(4)
    cluster.submit(1, rank=1, max_demand=1, near=0, wallclock_limit_s=10.0)
    cluster.settle()
    assert [place for place, _ in cluster.running(1)] == [0]
    cluster.die(1)
    cluster.run(until_s=5.0)
    assert cluster.submitted[1] == 0
    cluster.run(until_s=15.0)
    assert cluster.ended[1].outcome is Outcome.WALLCLOCK_LIMIT


def test_a_message_to_an_address_of_a_former_generation_comes_back() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=0, demand=3)
    place, _ = cluster.running(1)[0]
    stay = cluster.pes[place].workers.active
    assert stay is not None
    address = place, stay.stay
    lost = next(each for each in (1, 2, 3) if each not in [key[0] for key in cluster.running(1)])
    cluster.die(lost)
    _rest(cluster)
    other = cluster.running(1)[1]
    heard = cluster.processes[other].heard
    cluster.tell(other[0], WorkerToWorker(other[1], *address, b"to whom it was"))
    assert [(each.returned, each.sender, each.data) for each in heard[-1:]] == [
        (True, address, b"to whom it was")
    ]


def test_a_rank_that_is_drained_leaves_when_its_workers_have_handed_over_what_they_had() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=3, demand=4, leaves=True)
    cluster.drain(1, grace_s=100.0)
    _rest(cluster)
    assert cluster.now < 100.0
    assert not cluster.is_there(1)
    assert {place for place, _ in cluster.running(1)} == {0, 2, 3}
    assert "left" in [event for _, place, event, _ in cluster.logs if place == 1]
    _finish(cluster, 1)


def test_a_rank_that_is_drained_as_a_generation_begins_waits_for_the_worker_that_goes_on_there() -> None:
    """The worker's parent has not asked for the worker yet; when the parent has asked, the worker has work to
    hand over.
    """
    cluster = _cluster(4)
    _submit(cluster, 1, rank=3, demand=4, leaves=True)
    former = cluster.generation_of(1)
    cluster.join([1], asked=0)
    while cluster.generation_of(1) is former:
        cluster.run(until_s=cluster.now + 10e-6)
    assert cluster.pes[1].workers.suspended
    cluster.drain(1, grace_s=100.0)
    assert cluster.is_there(1)
    _rest(cluster)
    assert cluster.now < 100.0
    assert not cluster.is_there(1)
    assert "left" in [event for _, place, event, _ in cluster.logs if place == 1]


def test_a_drained_root_is_followed_by_one_that_begins_with_what_it_saved_last() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=3, demand=4, leaves=True)
    place, worker = next(iter(cluster.running(1)))
    cluster.drain(place, grace_s=100.0)
    cluster.tell(place, WorkerSaves(worker, b"all of it"))
    _rest(cluster)
    assert not cluster.is_there(place)
    assert cluster.folders.saved[1] == b"all of it"
    assert len(cluster.running(1)) == 3


def test_a_rank_that_is_drained_starts_nothing_and_lets_others_run_on_until_its_grace_is_over() -> None:
    cluster = _cluster(4)
    _submit(cluster, 1, rank=3, demand=3)
    (idle,) = set(range(4)) - {place for place, _ in cluster.running(1)}
    (busy, *_) = (place for place, _ in cluster.running(1) if place != 3)
    cluster.drain(busy, grace_s=5.0)
    cluster.drain(idle, grace_s=5.0)
    cluster.submit(2, rank=3, max_demand=4)
    cluster.run(until_s=cluster.now + 2.0)
    assert not cluster.is_there(idle), "it has nothing"
    assert busy in {place for place, _ in cluster.running(1)}
    _rest(cluster)
    assert not cluster.is_there(busy)
    for job in (1, 2):
        _finish(cluster, job)


def test_of_two_orders_to_drain_a_rank_the_earlier_deadline_holds() -> None:
    cluster = _cluster(2)
    _submit(cluster, 1, rank=1, demand=2, leaves=True)
    cluster.drain(0, grace_s=0.0)
    cluster.drain(0, grace_s=100.0)
    _rest(cluster)
    assert cluster.now < 100.0
    assert not cluster.is_there(0)
    _finish(cluster, 1)


def test_the_last_rank_takes_work_again_though_it_was_to_be_drained() -> None:
    cluster = _cluster(2)
    _submit(cluster, 1, rank=0, demand=2)
    cluster.drain(0, grace_s=5.0)
    cluster.die(1)
    _rest(cluster)
    assert cluster.is_there(0)
    assert len(cluster.running(1)) == 1
    _finish(cluster, 1)
    _submit(cluster, 2, rank=0, demand=1)
    _finish(cluster, 2)


def test_whoever_is_to_be_drained_when_it_is_the_last_rank_takes_work() -> None:
    cluster = _cluster(2)
    cluster.leave(1, asked=0)
    cluster.drain(0, grace_s=0.1)  # rank 0 has halted, so it handles the drain only when rank 1 has left
    _rest(cluster)
    assert cluster.is_there(0)
    _submit(cluster, 1, rank=0, demand=1)
    _finish(cluster, 1)


def test_who_is_drained_with_the_last_other_rank_lost_leaves_when_another_joins() -> None:
    cluster = _cluster(2)
    _submit(cluster, 1, rank=0, demand=2)
    cluster.drain(0, grace_s=0.05)
    cluster.die(1)
    cluster.join((1,), asked=0)
    _rest(cluster)
    assert cluster.members_awake() == [2]
    _finish(cluster, 1)


def test_what_was_known_of_a_tree_two_generations_ago_is_told_in_present_numbers() -> None:
    cluster = _cluster()
    _submit(cluster, 1, rank=0, demand=8)
    index_of = {place: process.index for (place, _), process in cluster.processes.items()}
    cluster.leave(3, asked=0)
    cluster.leave(1, asked=0)  # as soon as rank 3 has left
    known = 0
    for _ in range(100):
        cluster.run(until_s=cluster.now + 10e-6)
        for rank in (0, 2, 4, 5, 6, 7):
            generation = cluster.generation_of(rank)
            assert generation is not None
            if len(generation.members) == 6 and 1 in cluster.pes[rank].workers.suspended:
                for one in cluster.pes[rank].workers.suspended[1].kept:
                    assert one.index == index_of[generation.members[one.rank]]
                    known += 1
    assert known > 0
    _rest(cluster)
    _finish(cluster, 1)


def test_of_two_ranks_that_are_both_drained_one_stays_and_takes_work_again() -> None:
    cluster = _cluster(2)
    _submit(cluster, 1, rank=0, demand=2)
    cluster.drain(0, grace_s=1.0)
    cluster.drain(1, grace_s=1.0)
    _rest(cluster)
    assert cluster.is_there(0) != cluster.is_there(1)
    assert len(cluster.running(1)) == 1
    _finish(cluster, 1)


def _shared_by_four_jobs(size: int, seed: int) -> tuple[Cluster, set[tuple[int, int]]]:
    """Return a cluster whose PEs all work for four jobs, and its processes."""
    setting = Setting(pes=size, seed=seed)
    cluster = Cluster(size, seed, setting.protocol, NetworkModel(setting))
    for job in range(1, 5):
        cluster.submit(job, rank=job)
    cluster.settle()
    running = _running(cluster)
    assert len(running) == size
    return cluster, running


def _running(cluster: Cluster) -> set[tuple[int, int]]:
    return {key for job in range(1, 5) for key in cluster.running(job)}


@pytest.mark.parametrize("seed", [1, 2])
def test_in_large_trees_of_several_jobs_workers_find_their_places_by_those_that_were_around_them(
    seed: int,
) -> None:
    cluster, before = _shared_by_four_jobs(256, seed)
    cluster.die(128)
    _rest(cluster)
    after = _running(cluster)
    assert len(after) == 255
    assert len(after - before) <= 2, "volumes differ by one, and one was lost"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_change_right_after_another_costs_hardly_more_processes_than_one(seed: int) -> None:
    cluster, before = _shared_by_four_jobs(32, seed)
    for address in (16, 21):
        cluster.leave(address, asked=0)  # the second rank leaves as soon as the first has left
    _rest(cluster)
    after = _running(cluster)
    assert len(after) == 30
    assert len(after - before) <= 6


def test_who_has_lost_its_parent_finds_its_place_by_the_client() -> None:
    cluster, before = _shared_by_four_jobs(128, seed=1)
    indices = {place: pe.workers.active.index for place, pe in cluster.present() if pe.workers.active}
    (parent, *_) = (place for place, index in indices.items() if index == 1 and place > 4)
    cluster.die(parent)
    cluster.run(until_s=cluster.now + 0.1)
    assert len(_running(cluster)) == 127, "before anybody has lost patience"
    _rest(cluster)
    assert len(_running(cluster) - before) <= 2
