import itertools
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from workloads import malleable, rigid, rigid_workloads

from mallob_py.batch.costs import Delays, PerResize
from mallob_py.batch.job import Job, Kind, Truth, Wish, Workload
from mallob_py.batch.policies.backfilling import Backfilling, Easy, Fcfs
from mallob_py.batch.policy import Action, PolicyError, Resize, Start, View, Wake
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import EventOrder, Schedule, simulate
from mallob_py.batch.speedup import Power


class Scripted:
    """A policy whose decisions the test makes."""

    name = "scripted"
    wants_all_arrivals = False

    def __init__(self, decide: Callable[[View], Iterable[Action]]) -> None:
        self.decide = decide

    def begin(self, nodes: int) -> None:
        pass


def start_all(view: View) -> list[Action]:
    return [Start(job.id, job.low) for job in view.queue]


def start_on(nodes: int) -> Callable[[View], list[Action]]:
    return lambda view: [Start(job.id, nodes) for job in view.queue]


def at(time_s: float, action: Action, otherwise: Callable[[View], list[Action]] = start_all) -> Scripted:
    """Return a policy that starts jobs at once on their fewest nodes, but at the given time returns `action`
    instead.
    """

    def decide(view: View) -> list[Action]:
        if view.now_s == time_s:
            return [action]
        return [*otherwise(view), *([Wake(time_s)] if view.now_s < time_s else [])]

    return Scripted(decide)


def check(schedule: Schedule) -> None:
    """Check that no job starts early, runs for too short a time, or has a node of another job."""
    spans = [(piece.start_s, piece.end_s, piece.nodes) for piece in schedule.pieces]
    last = zip(schedule.piece_starts_s, schedule.ends_s, schedule.allocations, strict=True)
    spans += [(begin, end, tuple(nodes)) for begin, end, nodes in last]
    by_node: dict[int, list[tuple[float, float]]] = {}
    for begin, end, nodes in spans:
        assert len(set(nodes)) == len(nodes) > 0
        for node in nodes:
            assert 0 <= node < schedule.nodes
            by_node.setdefault(node, []).append((begin, end))
    for busy in by_node.values():
        busy.sort()
        assert all(former[1] <= latter[0] for former, latter in itertools.pairwise(busy))
    for job, begin in zip(schedule.workload.jobs, schedule.starts_s, strict=True):
        assert begin >= job.submit_s


@given(rigid_workloads())
@pytest.mark.parametrize("order", EventOrder)
@pytest.mark.parametrize("make", [Fcfs, Backfilling, Easy, lambda: Easy(depth=3), lambda: Easy(extra=False)])
def test_rigid_jobs_run_for_their_time_and_share_no_node(
    make: Callable[[], Fcfs | Backfilling | Easy], order: EventOrder, workload: Workload
) -> None:
    schedule = simulate(workload, make(), order=order)
    check(schedule)
    for truth, begin, end in zip(workload.truths, schedule.starts_s, schedule.ends_s, strict=True):
        assert end - begin == truth.run_s


def test_a_job_of_doubled_nodes_needs_the_rest_of_its_time_half() -> None:
    schedule = simulate(malleable((0, 1, 2, 4, 10), nodes=4), at(6, Resize(0, 4), start_on(2)))
    assert schedule.ends_s[0] == 8
    assert [(piece.start_s, piece.end_s, len(piece.nodes)) for piece in schedule.pieces] == [(0, 6, 2)]
    check(schedule)


def test_the_true_speedup_counts_not_the_one_that_is_said() -> None:
    job = Job(0, 0.0, 2, 8.0, Kind.MALLEABLE, 1, 4, speedup=Power(0.0))
    schedule = simulate(Workload([job], [Truth(8.0, Power(0.5))], 4), Scripted(start_on(4)))
    assert schedule.ends_s[0] == pytest.approx(8 / 2**0.5)


def test_a_shrunk_job_gives_its_nodes_to_one_that_waits() -> None:
    workload = malleable((0, 1, 4, 4, 8), (2, 3, 3, 3, 4), nodes=4)

    def decide(view: View) -> list[Action]:
        if view.now_s == 2:
            return [Resize(0, 1), Start(1, 3)]
        return [Start(0, 4)] if view.queue else []

    schedule = simulate(workload, Scripted(decide))
    assert list(schedule.starts_s) == [0, 2]
    assert list(schedule.ends_s) == [2 + 6 * 4, 6]
    check(schedule)


def test_a_resize_costs_a_pause_on_the_new_nodes() -> None:
    class Pause:
        def pause_s(self, job: Job, before: int, after: int) -> float:
            return 0.5 * abs(after - before)

    workload = malleable((0, 1, 2, 4, 10), nodes=4)
    schedule = simulate(workload, at(6, Resize(0, 4), start_on(2)), costs=Pause())
    assert schedule.ends_s[0] == 6 + 1 + 2


def test_nodes_that_come_at_the_very_end_are_not_in_the_record() -> None:
    workload = malleable((0, 1, 2, 4, 10), (0, 1, 2, 2, 10), nodes=4)

    def decide(view: View) -> list[Action]:
        if view.now_s == 10 and 1 in view.running:
            return [Resize(1, 1)]
        return start_on(2)(view)

    schedule = simulate(workload, Scripted(decide), order=EventOrder.PYSS)
    assert schedule.resizes == 1
    assert [(piece.job, piece.start_s, piece.end_s, len(piece.nodes)) for piece in schedule.all_pieces()] == [
        (0, 0, 10, 2),
        (1, 0, 10, 2),
    ]


@pytest.mark.parametrize(("when_s", "taken_s"), [(4.0, 5.0), (5.0, 5.0), (5.5, 10.0)])
def test_with_iterations_a_job_is_resized_between_two_of_them(when_s: float, taken_s: float) -> None:
    workload = malleable((0, 1, 2, 4, 20), nodes=4, iterations=4)
    schedule = simulate(workload, at(when_s, Resize(0, 4), start_on(2)))
    assert [piece.end_s for piece in schedule.pieces] == [pytest.approx(taken_s)]
    assert schedule.ends_s[0] == pytest.approx(taken_s + (20 - taken_s) / 2)


def test_an_order_within_the_last_iteration_comes_too_late() -> None:
    workload = malleable((0, 1, 2, 4, 20), (18, 2, 2, 2, 1), nodes=4, iterations=4)
    schedule = simulate(workload, at(17, Resize(0, 4), start_on(2)))
    assert (schedule.resizes, len(schedule.pieces)) == (0, 0)
    assert list(schedule.ends_s) == [20, 19]


class Asked(Scripted):
    wants_resize_points = True


@pytest.mark.parametrize("order", EventOrder)
def test_who_wants_resize_points_is_asked_at_each_and_obeyed_at_once(order: EventOrder) -> None:
    asked = list[float]()

    def decide(view: View) -> list[Action]:
        asked.append(view.now_s)
        if view.now_s == 10 and view.free:
            return [Resize(0, 4)]
        return start_on(2)(view)

    schedule = simulate(malleable((0, 1, 2, 4, 20), nodes=4, iterations=4), Asked(decide), order=order)
    assert [(piece.end_s, len(piece.nodes)) for piece in schedule.pieces] == [(10, 2)]
    assert schedule.ends_s[0] == 15
    assert sorted(set(asked)) == [0, 5, 10, 12.5, 15]


def test_an_order_between_resize_points_is_taken_at_the_next_after_the_decision() -> None:
    free = dict[float, int]()

    def decide(view: View) -> list[Action]:
        free[view.now_s] = view.free
        if view.now_s == 7:
            return [Resize(0, 1)]
        return [*start_on(2)(view), *([Wake(7)] if view.now_s < 7 else [])]

    workload = malleable((0, 1, 2, 4, 20), nodes=4, iterations=4)
    simulate(workload, Asked(decide), order=EventOrder.ELASTISIM)
    assert (free[10], free[20]) == (2, 3)


def test_an_order_after_the_last_resize_point_holds_its_nodes_until_the_end() -> None:
    def decide(view: View) -> list[Action]:
        if view.now_s == 17:
            return [Resize(0, 4)]
        fitting = [Start(job.id, 2) for job in view.queue if view.free >= 2]
        return [*fitting, *([Wake(17)] if view.now_s < 17 else [])]

    workload = malleable((0, 1, 2, 4, 20), (18, 2, 2, 2, 1), nodes=4, iterations=4)
    schedule = simulate(workload, Asked(decide))
    assert (schedule.resizes, len(schedule.pieces)) == (0, 0)
    assert list(schedule.starts_s) == [0, 20]
    check(schedule)


def test_an_evolving_job_asks_and_may_be_given() -> None:
    job = Job(0, 0.0, 2, 20.0, Kind.EVOLVING, 1, 4)
    workload = Workload([job], [Truth(20.0, wishes=(Wish(0.25, 4), Wish(0.75, 1)))], 4)

    def decide(view: View) -> Sequence[Action]:
        if view.queue:
            return [Start(0, 2)]
        return [Resize(job, nodes) for job, nodes in view.wishes.items()]

    schedule = simulate(workload, Scripted(decide))
    assert [(piece.end_s, len(piece.nodes)) for piece in schedule.pieces] == [(5, 2), (10, 4)]
    assert schedule.ends_s[0] == 10 + 5 * 2


def evolving(wanted: int, *others: tuple[Job, Truth]) -> Workload:
    """Return an evolving job on two of four nodes, and `others`.

    After a quarter of its work, the job requests `wanted` nodes, after three quarters one.
    """
    own = Job(0, 0.0, 2, 20.0, Kind.EVOLVING, 1, 4)
    wishes = (Wish(0.25, wanted), Wish(0.75, 1))
    jobs, truths = zip((own, Truth(20.0, wishes=wishes)), *others, strict=True)
    return Workload(jobs, truths, 4)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_wishes_that_a_policy_leaves_are_granted_behind_it(policy: str) -> None:
    schedule = simulate(evolving(4), policy_of(policy))
    assert [(piece.end_s, len(piece.nodes)) for piece in schedule.pieces] == [(5, 2), (10, 4)]
    assert schedule.ends_s[0] == 10 + 5 * 2
    check(schedule)


@pytest.mark.parametrize("order", EventOrder)
def test_a_policy_that_begins_anew_after_a_grant_hears_of_all_that_wait(order: EventOrder) -> None:
    # After this grant, nothing happens until the machine is empty.
    jobs = [Job(0, 0.0, 2, 40.0, Kind.EVOLVING, 1, 4), Job(1, 0.0, 4, 10.0, number=1)]
    workload = Workload(jobs, [Truth(20.0, wishes=(Wish(0.25, 1),)), Truth(10.0)], 4)
    schedule = simulate(workload, policy_of("conservative"), order=order)
    assert schedule.starts_s[1] == schedule.ends_s[0] > 20.0
    check(schedule)


@pytest.mark.parametrize("order", EventOrder)
def test_a_plan_gets_all_nodes_of_a_job_that_has_grown_past_its_estimate_and_ends(order: EventOrder) -> None:
    # Job 0 has four nodes instead of two, and ends a minute before its corrected estimated end.
    others = [Job(1, 13.0, 4, 9.0, number=1), Job(2, 14.0, 4, 5.0, number=2)]
    own = Job(0, 0.0, 2, 8.0, Kind.EVOLVING, 1, 4)
    workload = Workload([own, *others], [Truth(20.0, wishes=(Wish(0.5, 4),)), Truth(9.0), Truth(5.0)], 4)
    schedule = simulate(workload, policy_of("conservative"), order=order)
    assert [schedule.starts_s[job] for job in (1, 2)] == [20.0 - 5.0, 15.0 + 9.0]
    check(schedule)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_a_wish_is_not_granted_while_it_would_delay_the_first_that_waits(policy: str) -> None:
    # At 5 s one node is free, but at 12 s, when the short job ends, the first waiting job needs it.
    short, head = Job(1, 0.0, 1, 12.0, number=1), Job(2, 1.0, 2, 10.0, number=2)
    schedule = simulate(evolving(3, (short, Truth(12.0)), (head, Truth(10.0))), policy_of(policy))
    assert [(piece.end_s, len(piece.nodes)) for piece in schedule.pieces] == [(15, 2)]
    assert schedule.starts_s[2] == 12.0
    check(schedule)


def bounding(policy: str, *others: tuple[Job, Truth], high: int = 4) -> Schedule:
    """Simulate a malleable job on two of four nodes, and `others`.

    After a quarter of its work, the job has work for four nodes, after three quarters for one.
    """
    own = Job(0, 0.0, 2, 200.0, Kind.MALLEABLE, 1, high)
    wishes = (Wish(0.0, 2), Wish(0.25, 4), Wish(0.75, 1))
    jobs, truths = zip((own, Truth(20.0, wishes=wishes)), *others, strict=True)
    schedule = simulate(Workload(jobs, truths, 4), policy_of(policy))
    check(schedule)
    return schedule


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_a_malleable_job_grows_to_what_it_has_work_for_and_keeps_it_in_an_empty_machine(policy: str) -> None:
    schedule = bounding(policy)
    assert [(piece.end_s, len(piece.nodes)) for piece in schedule.pieces] == [(5, 2)]
    assert (len(schedule.allocations[0]), schedule.ends_s[0]) == (4, 5.0 + 15.0 / 2.0)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "mebf"])
def test_a_malleable_job_gives_back_what_it_has_no_work_for_once_another_waits(policy: str) -> None:
    late = Job(1, 11.0, 3, 30.0, number=1)
    schedule = bounding(policy, (late, Truth(30.0)))
    assert len(schedule.allocations[0]) == 1
    assert schedule.starts_s[1] == 11.0


def test_a_wish_of_a_job_that_is_not_ready_is_granted_when_it_is() -> None:
    own = Job(0, 0.0, 2, 200.0, Kind.MALLEABLE, 1, 4)
    workload = Workload([own], [Truth(20.0, wishes=(Wish(0.1, 3),))], 4)
    schedule = simulate(workload, policy_of("easy"), delays=Delays(ready_s=5.0))
    assert [(piece.end_s, len(piece.nodes)) for piece in schedule.pieces] == [(5.0, 2)]
    assert len(schedule.allocations[0]) == 3


def test_real_processes_take_time_to_start_to_end_and_to_be_resized() -> None:
    delays = Delays(start_s=1.0, ready_s=3.0, grow_s=2.0, shrink_s=1.0, end_s=0.5)
    shown = dict[float, Kind]()

    def decide(view: View) -> Iterable[Action]:
        yield from start_all(view)
        for running in view.running.values():
            shown[view.now_s] = running.job.kind
        if view.now_s == 3.0:
            yield Resize(0, 4)
            yield Wake(10.0)
        if view.now_s == 10.0:
            yield Resize(0, 1)

    outcome = simulate(malleable((0, 1, 2, 4, 30), nodes=4), Scripted(decide), delays=delays)
    assert (shown[0.0], shown[3.0]) == (Kind.MOLDABLE, Kind.MALLEABLE)
    # The job has one node from 1 s to 5 s, four until 11 s, then one.
    assert [(piece.end_s, len(piece.nodes)) for piece in outcome.pieces] == [(5.0, 1), (11.0, 4)]
    assert outcome.ends_s[0] == 11.0 + (60 - 4 - 24) + 0.5
    rigid_one = simulate(rigid((0, 1, 5), (0, 1, 5), nodes=1), Fcfs(), delays=delays)
    assert (rigid_one.starts_s, rigid_one.ends_s) == ([0.0, 6.5], [6.5, 13.0])
    each = simulate(rigid((0, 1, 5), (0, 1, 5), nodes=1), Fcfs(), delays=[Delays(2.0), Delays()])
    assert each.ends_s == [7.0, 12.0]


def test_a_job_that_ends_before_an_order_has_reached_it_leaves_all_its_nodes() -> None:
    workload = malleable((0, 2, 2, 4, 10), (11, 4, 4, 4, 1), nodes=4)
    outcome = simulate(workload, at(9.0, Resize(0, 4)), delays=Delays(grow_s=2.0))
    assert (outcome.ends_s[0], outcome.starts_s[1], outcome.resizes) == (10.0, 11.0, 0)
    check(outcome)


def test_delays_are_of_one_order_of_events() -> None:
    with pytest.raises(ValueError, match="delays need the order of events `batch`"):
        simulate(rigid((0, 1, 1), nodes=1), Fcfs(), order=EventOrder.PYSS, delays=Delays(1.0))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([Start(0, 4), Start(1, 5)], "job 2 is to get 5 nodes; 4 are free"),
        ([Start(7, 1)], "job 7 is started, but is not in the queue"),
        ([Start(0, 3)], "job 1 is started on 3 nodes; it can run on 4 to 4"),
        ([Start(0, 4), Start(0, 4)], "job 1 is started, but is not in the queue"),
        ([Start(0, (0, 1, 2, 2))], "job 1 is to get nodes that are not free, or one of them twice"),
        ([Start(0, 4), Start(1, (0, 1, 2, 3, 4))], "job 2 is to get nodes that are not free"),
        ([Resize(0, 4)], "job 1 is resized, but does not run"),
        ([Start(0, 4), Resize(0, 5)], "job 1 is resized, but is rigid"),
        ([], "job 1 is left waiting"),
        ([Start(0, 4), Wake(0.0)], "wants to be woken at 0 s"),
    ],
)
def test_what_cannot_be_is_refused_with_policy_job_and_time(actions: list[Action], message: str) -> None:
    workload = rigid((0, 4, 5), (0, 5, 5), nodes=8)
    with pytest.raises(PolicyError, match=rf"^scripted.*{message}"):
        simulate(workload, Scripted(lambda view: actions if view.now_s == 0 else []))


def test_a_job_larger_than_the_machine_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="job 1 needs 9 nodes, the machine has 8"):
        simulate(rigid((0, 9, 1), nodes=8), Fcfs())


def test_a_machine_and_times_that_nothing_can_count_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match=f"{10**30} nodes are more than 10000000 "):
        simulate(rigid((0, 1, 1), nodes=10**30), Fcfs())
    for workload in (rigid((0, 1, 1e13), nodes=1), rigid((0, 1, 1), (1e200, 1, 1), nodes=1)):
        number = workload.jobs[-1].number
        with pytest.raises(ValueError, match=f"job {number} comes after 1e\\+12 s, or runs"):
            simulate(workload, Fcfs())


@pytest.mark.parametrize(
    ("delays", "pause_s", "time_s"),
    [(Delays(), 0.0, 5), (Delays(0, 0, 1e-30, 1e-30), 0.0, 5), (Delays(), 2.0, 2011)],
)
def test_decisions_that_go_round_are_refused(delays: Delays, pause_s: float, time_s: float) -> None:
    """Resizes repeat within one decision, at one time, or at times between which the job stands still."""

    def decide(view: View) -> Iterable[Action]:
        yield from start_all(view)
        if view.now_s < 5.0:
            yield Wake(5.0)
        while view.now_s >= 5.0 and (job := view.running[0]).target is None:
            yield Resize(0, 3 - job.size)
            if pause_s:
                yield Wake(view.now_s + pause_s)
                return

    workload = malleable((0, 1, 1, 2, 10), (0, 1, 1, 2, 1e6), nodes=3)
    refused = rf"^scripted: job 1 is resized 1004 times without working: decisions repeat \(at {time_s} s\)$"
    with pytest.raises(PolicyError, match=refused):
        simulate(workload, Scripted(decide), delays=delays, costs=PerResize(pause_s, pause_s))


def test_a_job_may_be_resized_at_one_time_by_each_of_many_arrivals() -> None:
    count = 1500

    def decide(view: View) -> Iterable[Action]:
        if view.running:
            yield Resize(0, 3 - view.running[0].size)
        yield from start_all(view)

    jobs = [(0, 1, 1, 2, 10), *[(0, 1, 1, 1, 10)] * count]
    schedule = simulate(malleable(*jobs, nodes=count + 2), Scripted(decide), order=EventOrder.PYSS)
    assert schedule.resizes >= count


def test_a_run_time_that_is_too_short_for_the_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="job 2 runs for 1e-09 s, too short a time at 1e\\+08 s"):
        simulate(rigid((0, 1, 1), (1e8, 1, 1e-9), nodes=2), policy_of("fcfs"))


@pytest.mark.parametrize("order", EventOrder)
def test_a_job_that_is_held_till_a_wake_begins_at_the_wake(order: EventOrder) -> None:
    def decide(view: View) -> list[Action]:
        return start_all(view) if view.now_s >= 50 else [Wake(50)]

    assert list(simulate(rigid((0, 1, 1), nodes=1), Scripted(decide), order=order).starts_s) == [50]


@pytest.mark.parametrize("order", EventOrder)
def test_a_policy_that_wakes_for_ever_is_stopped(order: EventOrder) -> None:
    with pytest.raises(PolicyError, match="left waiting"):
        simulate(rigid((0, 1, 1), nodes=1), Scripted(lambda view: [Wake(view.now_s + 1)]), order=order)
