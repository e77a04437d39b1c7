"""`fair` compared with a slow reference that recomputes everything at each decision."""

import math
from collections.abc import Iterator
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_agreement import malleable_workloads
from test_simulator import check
from workloads import malleable, rigid, rigid_workloads

from mallob_py.batch.costs import PerResize
from mallob_py.batch.job import Job, Kind, Truth, Workload
from mallob_py.batch.policies.backfilling import Backfilling, Easy, Fcfs
from mallob_py.batch.policies.fair import Fair, bounded_volumes
from mallob_py.batch.policy import Action, Resize, Start, View
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import EventOrder, simulate
from mallob_py.batch.speedup import Amdahl, Power
from mallob_py.batch.workload.changes import make_malleable

OVERTAKE = {"easy": Easy, "any": Backfilling, "none": Fcfs}


def clipped(alpha: Fraction, priority: Fraction, least: int, most: int) -> Fraction:
    return max(Fraction(least), min(Fraction(most), alpha * priority))


def exact_shares(priorities: list[float], bounds: list[tuple[int, int]], nodes: int) -> list[Fraction]:
    """Return max(least, min(most, alpha p)) for each job, with alpha such that all nodes are used if
    possible.
    """
    exact = [Fraction(priority) for priority in priorities]
    events = sorted(bound / p for p, pair in zip(exact, bounds, strict=True) for bound in pair)
    low = Fraction(0)
    for high in events:
        used = [sum(map(clipped, [at] * len(exact), exact, *zip(*bounds, strict=True))) for at in (low, high)]
        if used[1] >= nodes:
            part = (nodes - used[0]) / (used[1] - used[0]) if used[1] > used[0] else Fraction(0)
            low += part * (high - low)
            break
        low = high
    return [clipped(low, p, *pair) for p, pair in zip(exact, bounds, strict=True)]


@given(
    st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, 3.0, 7.1]), st.integers(1, 9), st.integers(0, 20)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 60),
)
def test_volumes_are_exact_shares_within_bounds_but_for_less_than_one_node(
    jobs: list[tuple[float, int, int]], more: int
) -> None:
    priorities = [one[0] for one in jobs]
    bounds = [(least, least + wider) for _, least, wider in jobs]
    nodes = sum(least for least, _ in bounds) + more
    found = bounded_volumes(
        np.array(priorities),
        np.array([least for least, _ in bounds]),
        np.array([most for _, most in bounds]),
        nodes,
        np.arange(len(jobs)),
    ).tolist()
    assert sum(found) == min(nodes, sum(most for _, most in bounds))
    for volume, share, (least, most) in zip(
        found, exact_shares(priorities, bounds, nodes), bounds, strict=True
    ):
        assert least <= volume <= most
        assert math.floor(share) <= volume <= math.floor(share) + 1


class SlowFair:
    """`fair` by its definition: jobs are considered one by one, and everything is recomputed for each job."""

    name = "slow"
    wants_all_arrivals = True

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Iterator[Action]:
        malleable = [one for one in view.running.values() if one.job.kind is Kind.MALLEABLE]
        starting = self._starting(view)
        jobs = [one.job for one in malleable] + starting
        if not jobs:
            return
        volumes = dict(
            zip(
                (job.id for job in jobs),
                bounded_volumes(
                    np.ones(len(jobs)),
                    np.array([job.low for job in jobs]),
                    np.array([job.high for job in jobs]),
                    view.free + sum(one.size for one in malleable),
                    np.array([job.id for job in jobs]),
                ).tolist(),
                strict=True,
            )
        )
        for one in malleable:
            if volumes[one.job.id] < one.size:
                yield Resize(one.job.id, volumes[one.job.id])
        for job in starting:
            yield Start(job.id, volumes[job.id])
        for one in malleable:
            if volumes[one.job.id] > one.size:
                yield Resize(one.job.id, volumes[one.job.id])

    def _starting(self, view: View) -> list[Job]:
        """Return the jobs that EASY starts if all running malleable jobs have their smallest numbers of
        nodes.
        """
        now, waiting, starting = view.now_s, list(view.queue), list[Job]()
        ends = [(end_s, one.job.low) for end_s, _, one in view.ends]
        free = view.nodes - sum(size for _, size in ends)

        def start(job: Job) -> None:
            nonlocal free
            free -= job.low
            ends.append((now + job.estimate_on(job.low), job.low))
            starting.append(job)

        while waiting and waiting[0].low <= free:
            start(waiting.pop(0))
        for job in waiting[1:]:
            freed = {at: free + sum(n for e, n in ends if e <= at) for at, _ in ends}
            shadow_s = min(max(at, now) for at in freed if freed[at] >= waiting[0].low)
            extra = free + sum(n for e, n in ends if e <= shadow_s) - waiting[0].low
            if job.low <= free and (now + job.estimate_on(job.low) <= shadow_s or job.low <= extra):
                start(job)
        return starting


@st.composite
def mixed_workloads(draw: st.DrawFn) -> Workload:
    """Draw rigid and malleable jobs on 8 nodes, without resize points, with many simultaneous events."""
    jobs, truths = list[Job](), list[Truth]()
    for number, submit_s in enumerate(sorted(draw(st.lists(st.integers(0, 60), min_size=1, max_size=20)))):
        low, pref, high = sorted(draw(st.tuples(*[st.integers(1, 8)] * 3)))
        kind = draw(st.sampled_from((Kind.RIGID, Kind.MALLEABLE)))
        run_s = draw(st.integers(1, 30))
        estimate_s = run_s + draw(st.integers(0, 20))
        owner = draw(st.sampled_from("ab"))
        jobs.append(
            Job(
                number,
                submit_s,
                pref,
                estimate_s,
                kind,
                low,
                high,
                number=number + 1,
                queue=owner,
                user=owner,
            )
        )
        truths.append(Truth(float(run_s)))
    return Workload(jobs, truths, 8)


def a_waiting_job_that_overtakes_once_another_one_has_grown() -> Workload:
    """Return a workload whose head waits for a malleable job; this job grows, so it is expected to end
    earlier.
    """
    rows = [
        *[(0, 1, 1, 1)] * 3,
        (18, 1, 12, 12),
        *[(20, nodes, run_s, run_s) for nodes, run_s in ((4, 29), (4, 3), (4, 1), (1, 1))],
        *[(20, nodes, run_s, run_s) for nodes, run_s in ((1, 18), (3, 20), (1, 1), (1, 1))],
        *[(29, nodes, run_s, run_s) for nodes, run_s in ((1, 2), (4, 1), (6, 1))],
        (29, 1, 3, 3),
        *[(29, 1, 3, run_s) for run_s in (2, 1)],
        *[(53, 1, 1, 1)] * 2,
    ]
    jobs = [
        Job(place, submit_s, nodes, estimate_s, Kind.RIGID, nodes, nodes, number=place + 1)
        for place, (submit_s, nodes, estimate_s, _) in enumerate(rows)
    ]
    jobs[15] = msgspec.structs.replace(jobs[15], kind=Kind.MALLEABLE, nodes_max=2)
    return Workload(jobs, [Truth(float(run_s)) for *_, run_s in rows], 8)


@example(a_waiting_job_that_overtakes_once_another_one_has_grown(), EventOrder.BATCH)
@given(mixed_workloads(), st.sampled_from(EventOrder))
def test_it_is_what_its_definition_says(workload: Workload, order: EventOrder) -> None:
    fast, slow = (simulate(workload, policy, order=order) for policy in (Fair(), SlowFair()))
    assert fast.starts_s == slow.starts_s
    assert fast.ends_s == slow.ends_s
    check(fast)


@given(rigid_workloads(), st.sampled_from(EventOrder))
@pytest.mark.parametrize("overtake", OVERTAKE)
def test_without_malleable_jobs_it_is_easy_backfilling_or_fcfs(
    overtake: str, workload: Workload, order: EventOrder
) -> None:
    expected = simulate(workload, OVERTAKE[overtake](), order=order).starts_s
    assert simulate(workload, Fair(overtake=overtake), order=order).starts_s == expected


@given(
    mixed_workloads() | malleable_workloads(),
    st.sampled_from(EventOrder),
    st.sampled_from(("job", "nodes", "user", "queue")),
    st.sampled_from(("arrival", "priority")),
    st.sampled_from(tuple(OVERTAKE)),
    st.sampled_from((0.0, 7.0)),
    st.booleans(),
    st.sampled_from((None, PerResize(3.0, 2.0))),
)
def test_whatever_is_set_all_jobs_end_and_share_no_node(
    workload: Workload,
    order: EventOrder,
    by: str,
    first: str,
    overtake: str,
    cooldown_s: float,
    looks: bool,
    costs: PerResize | None,
) -> None:
    policy = Fair(by, "", first, overtake, cooldown_s, looks)
    schedule = simulate(workload, policy, order=order, costs=costs)
    check(schedule)
    for piece in schedule.all_pieces():
        assert workload.jobs[piece.job].low <= len(piece.nodes) <= workload.jobs[piece.job].high


def a_job_that_overtakes_only_while_another_one_is_large() -> Workload:
    """Return a workload whose third job shrinks for an overtaking job, ends later, and moves the shadow
    time.
    """
    jobs = [
        Job(0, 0.0, 6, 28.0),
        Job(1, 0.0, 6, 20.0, Kind.MALLEABLE, 2, 8, Power(0.3)),
        Job(2, 0.0, 5, 4.0, Kind.MALLEABLE, 1, 6),
        Job(3, 0.0, 7, 14.0),
        Job(4, 0.0, 4, 6.0),
        Job(5, 0.0, 1, 2.0, Kind.MALLEABLE, 1, 7),
        Job(6, 0.0, 3, 38.0, Kind.MALLEABLE, 1, 6),
    ]
    third = Truth(2.0, Amdahl(0.2), iterations=3)
    return Workload(
        [msgspec.structs.replace(job, number=job.id + 1) for job in jobs],
        [third if job.id == 2 else Truth(15.0 if job.id == 1 else job.estimate_s) for job in jobs],
        8,
    )


@pytest.mark.parametrize("order", EventOrder)
@pytest.mark.parametrize("policy", ["fair", "curve:gain=speed"])
def test_the_job_for_which_another_one_has_shrunk_starts(policy: str, order: EventOrder) -> None:
    check(simulate(a_job_that_overtakes_only_while_another_one_is_large(), policy_of(policy), order=order))


def test_a_job_that_comes_has_its_share_at_once_and_gives_it_back() -> None:
    schedule = simulate(malleable((0, 1, 4, 8, 100), (10, 1, 2, 8, 20), nodes=8), Fair())
    assert schedule.starts_s == [0, 10]
    sizes = [(piece.job, len(piece.nodes)) for piece in schedule.all_pieces()]
    assert sizes == [(0, 8), (0, 4), (0, 8), (1, 4)]


def test_the_least_number_of_nodes_is_kept_and_the_others_share_the_rest() -> None:
    schedule = simulate(malleable((0, 1, 4, 8, 100), (1, 1, 4, 8, 100), (2, 4, 4, 8, 100), nodes=8), Fair())
    sizes = [len(piece.nodes) for piece in schedule.all_pieces() if piece.start_s == 2]
    assert sorted(sizes) == [2, 2, 4]


def test_users_share_evenly_and_so_do_the_jobs_of_each() -> None:
    workload = malleable((0, 1, 8, 8, 9), (0, 1, 8, 8, 9), (0, 1, 8, 8, 9), nodes=8)
    jobs = [
        Job(job.id, 0.0, 8, 9.0, Kind.MALLEABLE, 1, 8, user=user)
        for job, user in zip(workload.jobs, "aab", strict=True)
    ]
    workload = Workload(jobs, workload.truths, 8)
    for policy, sizes in (
        (Fair(by="user"), [2, 2, 4]),
        (Fair(by="user", priorities="b:0.34/c:9"), [3, 3, 2]),
        (Fair(), [3, 3, 2]),
    ):
        schedule = simulate(workload, policy)
        begun = {piece.job: len(piece.nodes) for piece in schedule.all_pieces() if piece.start_s == 0}
        assert sorted(begun.values()) == sorted(sizes)
        assert policy.name == "fair"


def test_by_priority_a_later_job_of_a_better_queue_starts_first() -> None:
    workload = rigid((0, 8, 10), (1, 8, 10), (2, 8, 10), nodes=8)
    jobs = [
        Job(job.id, job.submit_s, 8, 10.0, queue=queue)
        for job, queue in zip(workload.jobs, ("long", "long", "debug"), strict=True)
    ]
    workload = Workload(jobs, workload.truths, 8)
    assert simulate(workload, Fair(by="queue", priorities="debug:4")).starts_s == [0, 10, 20]
    policy = Fair(by="queue", priorities="debug:4", order="priority")
    assert simulate(workload, policy).starts_s == [0, 20, 10]


def test_a_cool_down_puts_resizes_off_but_does_not_forget_them() -> None:
    jobs = ((0, 1, 2, 8, 200), (10, 1, 2, 4, 8), (20, 4, 4, 4, 8))
    assert simulate(malleable(*jobs, nodes=8), Fair()).starts_s == [0, 10, 20]
    # Job 0, resized at 10 s, keeps its four nodes until 40 s; job 1 has the others until 14 s.
    schedule = simulate(malleable(*jobs, nodes=8), Fair(cooldown_s=30))
    assert [(piece.end_s, len(piece.nodes)) for piece in schedule.pieces] == [(10, 8), (40, 4)]


def test_where_resizes_take_time_nobody_grows_in_vain() -> None:
    # Job 1 leaves two nodes at 5 s, which would shorten job 0 by less than the pause of 30 s.
    workload, costs = malleable((0, 1, 2, 4, 20), (0, 2, 2, 2, 5), nodes=4), PerResize(30.0, 1.0)
    assert simulate(workload, Fair(), costs=costs).resizes == 0
    assert simulate(workload, Fair(costs=False), costs=costs).resizes == 1


def test_where_resizes_take_time_nobody_shrinks_unless_a_job_needs_it() -> None:
    # Of 12 nodes, user b has 8 until the job of one node ends at 5 s, and 6 from then on.
    workload = malleable((0, 1, 6, 12, 50), (0, 1, 1, 1, 5), (0, 1, 6, 12, 50), nodes=12)
    jobs = [msgspec.structs.replace(job, user=user) for job, user in zip(workload.jobs, "aab", strict=True)]
    workload = Workload(jobs, workload.truths, 12)

    def sizes(costs: PerResize | None, looks: bool = True) -> list[tuple[int, int]]:
        schedule = simulate(workload, Fair("user", costs=looks), costs=costs)
        return sorted((piece.job, len(piece.nodes)) for piece in schedule.all_pieces() if piece.start_s == 5)

    assert sizes(None) == sizes(PerResize(0.0, 1.0), False) == [(0, 6), (2, 6)]
    assert sizes(PerResize(0.0, 1.0)) == [(0, 4)]


def test_on_a_trace_made_malleable_it_beats_easy() -> None:
    workload = rigid(*[(at * 3, 1 + at * 7 % 16, 20 + at * 13 % 50) for at in range(200)], nodes=16)
    easy = simulate(workload, Easy())
    fair = simulate(make_malleable(workload, 1.0), Fair())
    assert sum(fair.ends_s) < sum(easy.ends_s)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "me"}, "by is 'me', not one of job, nodes, user, queue"),
        ({"order": "size"}, "order is 'size'"),
        ({"overtake": "no"}, "overtake is 'no'"),
        ({"cooldown_s": -1.0}, "cooldown_s must be a finite number"),
        ({"priorities": "a:1"}, "priorities needs by=user or by=queue"),
        ({"by": "user", "priorities": "a"}, "'a', not a name and a number"),
        ({"by": "user", "priorities": "a:0"}, "not above 0"),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fair(**settings)  # type: ignore[arg-type]
