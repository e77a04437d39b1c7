"""A worker that gets no process is lost; its job goes on, and its PE does not try for ever."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from stories import (
    active,
    answer,
    cluster_of,
    hold_kind,
    is_idle,
    needs,
    only,
    places,
    play,
    processes_of,
    rest,
    told_with_luck,
    watch,
)

from mallob_py.protocol import stimuli
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.messages import Accepted, Adopt, Blamed, ChildLeft, Query, Rejected, TreeMessage
from mallob_py.protocol.worker import WorkerState
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import RandomDelays
from mallob_py.simulation.plan import Breakdown, draw_plan
from mallob_py.simulation.processes import Failing, Step
from mallob_py.simulation.scenario import Scenario

#: two jobs: requests for job 1 contain its description; the description of job 2 must be fetched
INLINE, FETCHED = 1, 2


def failing_on(*ranks: int, what: Failing, times: int = 10**9) -> Callable[[int, int, Step], Failing | None]:
    """Return a function by which these ranks (none named: all ranks) fail the first `times` times."""
    left = times

    def fails(rank: int, job: int, step: Step) -> Failing | None:
        nonlocal left
        if step is not what.step or not left or (ranks and rank not in ranks):
            return None
        left -= 1
        return what

    return fails


def events(cluster: Cluster, event: str) -> list[tuple[int, dict[str, Any]]]:
    return [(rank, fields) for _, rank, name, fields in cluster.logs if name == event]


def with_a_child_that_waits_for_its_description(seed: int = 0) -> tuple[Cluster, int]:
    """Return a cluster, and the rank of a job's second worker, which is about to get the description."""
    cluster = cluster_of(4, seed)
    cluster.submit(FETCHED, seed % 4, max_demand=2)
    while 1 not in places(cluster, FETCHED):
        play(cluster, 1e-5)
    return cluster, places(cluster, FETCHED)[1]


# --- a lost worker's PE is free again -----------------------------------------------------------------------


def test_a_worker_whose_description_cannot_be_stored_gives_its_place_to_another() -> None:
    cluster, rank = with_a_child_that_waits_for_its_description()
    cluster.tell(rank, stimuli.DescriptionMissing(FETCHED, "no space left", Fault.HOST))
    play(cluster, 0.02)
    assert is_idle(cluster, rank)
    assert places(cluster, FETCHED)[1] != rank
    rest(cluster)
    assert active(cluster, places(cluster, FETCHED)[1]).state is WorkerState.RUNNING


@pytest.mark.parametrize("job", [INLINE, FETCHED])
@pytest.mark.parametrize("what", [one for one in Failing if one.step is not Step.GIVE])
def test_a_job_survives_a_host_that_never_gives_it_a_process(what: Failing, job: int) -> None:
    for seed in range(8):
        cluster = cluster_of(8, seed)
        broken = seed
        cluster.processes.fails = failing_on(broken, what=what)
        cluster.submit(job, broken, max_demand=6)
        play(cluster, 0.2)
        assert set(places(cluster, job)) == set(range(6)), f"seed {seed}"
        assert job not in cluster.ended
        if what.step is Step.START or job == FETCHED:
            assert broken not in places(cluster, job).values()
        cluster.processes.fails = failing_on(broken, what=what, times=0)
        cluster.settle(within_s=100.0)
        check_invariants(cluster)


@pytest.mark.parametrize("what", [Failing.FORK, Failing.ROOM, Failing.SOURCE])
def test_a_root_that_is_lost_again_and_again_ends_its_job_with_the_reason(what: Failing) -> None:
    cluster = cluster_of(2, losses_max=3)
    cluster.processes.fails = failing_on(what=what)
    cluster.submit(FETCHED)
    play(cluster, 30.0)
    ended = cluster.ended[FETCHED]
    assert ended.outcome is Outcome.FAILED
    assert ended.reason == f"no PE could start the job in 4 attempts; last error: no {what.value}"
    assert len(events(cluster, "lost")) == 4


def test_a_root_that_is_lost_less_often_costs_its_job_nothing_but_time() -> None:
    cluster = cluster_of(1, losses_max=3)
    cluster.processes.fails = failing_on(what=Failing.FORK, times=3)
    cluster.submit(INLINE)
    cluster.settle(within_s=10.0)
    assert active(cluster, 0).state is WorkerState.RUNNING
    assert len(events(cluster, "lost")) == 3


@told_with_luck
def test_a_worker_that_is_lost_before_its_parent_has_accepted_it_leaves_when_it_has(seed: int) -> None:
    cluster = cluster_of(4, seed)
    cluster.processes.fails = failing_on(1, what=Failing.FORK)
    late = hold_kind(cluster, Accepted, dest=1)
    left = watch(cluster, ChildLeft)
    cluster.submit(INLINE, 0, max_demand=3)
    play(cluster)
    needs(only(late, Accepted) and late.messages[0][2].index > 0)
    assert not is_idle(cluster, 1)
    assert not left
    late.release()
    play(cluster)
    assert [message.lost for _, _, message in left] == ["no fork"]
    assert is_idle(cluster, 1)
    rest(cluster_without_faults(cluster))


def cluster_without_faults(cluster: Cluster) -> Cluster:
    cluster.processes.fails = failing_on(what=Failing.FORK, times=0)
    cluster.settle(within_s=100.0)
    return cluster


@told_with_luck
def test_a_lost_worker_that_is_rejected_or_whose_job_ends_is_simply_gone(seed: int) -> None:
    cluster = cluster_of(4, seed)
    cluster.processes.fails = failing_on(1, what=Failing.FORK)
    late = hold_kind(cluster, Accepted, dest=1)
    cluster.submit(INLINE, 0, max_demand=3)
    play(cluster)
    needs(only(late, Accepted))
    cluster.interrupt(INLINE)
    play(cluster)
    late.release()
    rest(cluster_without_faults(cluster))
    assert all(is_idle(cluster, rank) for rank in range(4))


def test_messages_to_a_lost_worker_come_back() -> None:
    cluster = cluster_of(4)
    cluster.submit(INLINE, max_demand=2)
    rest(cluster)
    root, child = (places(cluster, INLINE)[index] for index in (0, 1))
    number = active(cluster, child).number
    late = hold_kind(cluster, ChildLeft, source=child)
    back = watch(cluster, TreeMessage)
    del cluster.processes[child, number]
    cluster.tell(child, stimuli.WorkerLost(number, "no fork"))
    number = active(cluster, root).number
    cluster.tell(root, stimuli.WorkerToChildren(number, b"news"))
    late.test = lambda *_: False
    play(cluster, 0.01)
    late.release()
    play(cluster, 0.01)
    assert [message.returned for _, _, message in back if message.target_index == 0] == [True]
    rest(cluster_without_faults(cluster))


@told_with_luck
def test_workers_below_a_lost_one_are_found_again_by_the_next(seed: int) -> None:
    cluster = cluster_of(8, seed)
    cluster.submit(INLINE, 0, max_demand=5)
    rest(cluster)
    before = places(cluster, INLINE)
    lost = before[1]
    worker = active(cluster, lost)
    needs(worker.seats.children() == (3, 4))
    queries = watch(cluster, Query)
    del cluster.processes[lost, worker.number]
    cluster.tell(lost, stimuli.WorkerLost(worker.number, "no fork"))
    play(cluster, 0.1)
    after = places(cluster, INLINE)
    assert after[1] != lost
    needs(bool(queries))
    assert {dest for _, dest, _ in queries} <= {before[3], before[4]}
    rest(cluster_without_faults(cluster))
    assert len(processes_of(cluster, INLINE)) >= 5


def test_a_suspended_worker_that_is_lost_is_forgotten() -> None:
    cluster = cluster_of(1)
    cluster.submit(INLINE, priority=1.0)
    play(cluster, 1.0)
    cluster.submit(FETCHED, priority=4.0)
    rest(cluster)
    (number,) = cluster.pes[0].workers.giving_back.past()
    del cluster.processes[0, number]
    cluster.tell(0, stimuli.WorkerLost(number, "no fork"))
    rest(cluster)
    assert not cluster.pes[0].workers.giving_back.past()


# --- hosts that get no worker for a while -------------------------------------------------------------------


def test_all_pes_of_a_rank_rest_when_one_has_got_no_process_and_are_tried_again() -> None:
    cluster = Cluster(3, 1, Config(rest_s=0.5), RandomDelays(1), capacities=[3])
    cluster.processes.fails = failing_on(what=Failing.FORK, times=1)
    cluster.submit(INLINE, 0, max_demand=3)
    play(cluster, 0.4)
    assert all(pe.workers.is_resting for pe in cluster.pes)
    assert not places(cluster, INLINE)
    assert cluster.health[0].trouble(cluster.now) == "gives workers no processes: no fork"
    rest(cluster_without_faults(cluster))
    assert set(places(cluster, INLINE)) == {0, 1, 2}
    assert cluster.health[0].trouble(cluster.now) is None


def test_a_host_that_fails_again_and_again_is_tried_less_and_less_often() -> None:
    cluster = cluster_of(2, 1, rest_s=0.25, rest_max_s=8.0)
    broken = 1
    cluster.processes.fails = failing_on(broken, what=Failing.FORK)
    cluster.submit(INLINE, 0, max_demand=2)
    play(cluster, 60.0)
    times = [at_s for at_s, rank, event, _ in cluster.logs if event == "lost" and rank == broken]
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert [round(gap) for gap in gaps[3:7]] == [2, 4, 8, 8]
    assert INLINE not in cluster.ended
    assert "times in a row" in str(cluster.health[broken].trouble(cluster.now))


@told_with_luck
def test_a_request_that_has_met_a_resting_pe_goes_on_to_another_and_its_children_are_sent_away(
    seed: int,
) -> None:
    cluster = cluster_of(8, seed)
    late = hold_kind(cluster, Adopt, dest=1)
    cluster.submit(INLINE, 0, max_demand=7)
    play(cluster, 0.01)
    needs(len(cluster.pes[1].workers.parenting.early) > 0)
    cluster.tell(1, stimuli.HostRests(cluster.now + 1.0))
    rejections = watch(cluster, Rejected)
    late.release()
    play(cluster, 0.1)
    assert not cluster.pes[1].workers.parenting.early, "nobody waits until the rest is over"
    assert any(source == 1 for source, _, _ in rejections)
    assert is_idle(cluster, 1)
    assert len(places(cluster, INLINE)) == 7
    cluster.settle(within_s=10.0)
    check_invariants(cluster)


def test_a_root_is_not_started_on_its_clients_own_pe_while_that_rests() -> None:
    cluster = cluster_of(2)
    cluster.tell(0, stimuli.HostRests(5.0))
    cluster.submit(INLINE, 0)
    play(cluster, 1.0)
    assert places(cluster, INLINE) == {0: 1}


def test_a_resting_pe_goes_on_with_a_worker_that_it_has() -> None:
    """Continuing a suspended worker needs no new process of the host."""
    cluster = cluster_of(2, 1)
    cluster.submit(INLINE, 0, max_demand=2, priority=1.0)
    rest(cluster)
    cluster.submit(FETCHED, 0, max_demand=1, priority=1.0)
    rest(cluster)
    ((_, suspended),) = [
        (worker.index, pe.rank) for pe in cluster.pes for worker in pe.workers.suspended.values()
    ]
    cluster.tell(suspended, stimuli.HostRests(cluster.now + 100.0))
    cluster.interrupt(FETCHED)
    play(cluster, 1.0)
    assert places(cluster, INLINE)[1] == suspended


# --- processes that die before they run ---------------------------------------------------------------------


def test_a_host_on_which_a_root_dies_is_blamed_when_the_job_runs_elsewhere() -> None:
    cluster = cluster_of(2)
    cluster.processes.fails = failing_on(0, what=Failing.DEATH)
    blamed = watch(cluster, Blamed)
    cluster.submit(INLINE, 1, near=0)
    play(cluster, 0.3)
    assert places(cluster, INLINE) == {0: 1} or set(places(cluster, INLINE)) == {0, 1}
    assert [(dest, message.job) for _, dest, message in blamed] == [(0, INLINE)]
    assert cluster.health[0].failures >= 1
    assert "died 3 times before it ran" in str(cluster.health[0].trouble(cluster.now))
    assert cluster.health[1].failures == 0


def test_a_job_whose_processes_die_everywhere_is_at_fault_itself_and_nobody_else_waits_for_it() -> None:
    cluster = cluster_of(3, losses_max=3)
    cluster.processes.fails = lambda rank, job, step: (
        Failing.DEATH if job == INLINE and step is Step.START else None
    )
    cluster.submit(INLINE)
    play(cluster, 2.0)
    ended = cluster.ended[INLINE]
    assert ended.outcome is Outcome.FAILED
    assert "died 3 times before it ran, last: exit status 1" in str(ended.reason)
    assert [health.failures for health in cluster.health] == [0, 0, 0]
    rest(cluster)


def test_workers_that_always_die_before_they_run_are_not_tried_for_ever() -> None:
    cluster = cluster_of(4, losses_max=2)
    cluster.processes.fails = lambda rank, job, step: (
        Failing.DEATH if step is Step.START and cluster.running(job) else None
    )
    cluster.submit(INLINE, max_demand=2)
    cluster.settle(within_s=100.0)
    check_invariants(cluster)
    assert active(cluster, places(cluster, INLINE)[1]).state is WorkerState.DEAD
    assert len(events(cluster, "lost")) == 3
    answer(cluster, places(cluster, INLINE)[0], active(cluster, places(cluster, INLINE)[0]).number)
    rest(cluster)
    assert cluster.ended[INLINE].outcome is Outcome.RESULT


def test_a_root_that_dies_again_and_again_after_it_ran_ends_its_job() -> None:
    cluster = cluster_of(2)
    cluster.submit(INLINE, max_demand=1)
    for _ in range(3):
        rest(cluster)
        rank = places(cluster, INLINE)[0]
        number = active(cluster, rank).number
        del cluster.processes[rank, number]
        cluster.tell(rank, stimuli.WorkerCrashed(number, "killed"))
    rest(cluster)
    assert cluster.ended[INLINE].reason == "the worker process died 3 times, last: killed"
    assert not events(cluster, "lost")


@pytest.mark.parametrize("index", [0, 1])
def test_deaths_for_want_of_memory_are_not_counted_and_others_still_are(index: int) -> None:
    cluster = cluster_of(2)
    cluster.submit(INLINE, max_demand=2)

    def die(is_spared: bool) -> None:
        rest(cluster)
        rank = places(cluster, INLINE)[index]
        number = active(cluster, rank).number
        del cluster.processes[rank, number]
        cluster.tell(rank, stimuli.WorkerCrashed(number, "killed", 0.0, is_spared))
        rest(cluster)

    for is_spared in (True, True, False, True, True, False, True):
        die(is_spared)
        assert INLINE not in cluster.ended
        assert len(processes_of(cluster, INLINE)) == 2
    die(is_spared=False)
    if index == 0:
        assert cluster.ended[INLINE].reason == "the worker process died 3 times, last: killed"
    else:
        assert len(processes_of(cluster, INLINE)) == 1


# --- random runs --------------------------------------------------------------------------------------------


def test_random_lives_know_breakdowns_of_all_kinds() -> None:
    drawn = {deed.what for seed in range(20) for deed in draw_plan(seed).deeds if isinstance(deed, Breakdown)}
    assert drawn == set(Failing)
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in range(30):
        scenario = Scenario(draw_plan(seed))
        scenario.run()
        for _, fields in events(scenario.cluster, "lost"):
            seen[fields["fault"], fields["index"] == 0] += 1
    assert {fault for fault, _ in seen} == {fault.value for fault in Fault}
    assert {is_root for _, is_root in seen} == {True, False}
