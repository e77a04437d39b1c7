import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workloads import rigid_workloads

from mallob_py.batch.job import Job, Kind, Truth, Workload
from mallob_py.batch.metrics import NodePower, energy_of, metrics_of
from mallob_py.batch.policies.backfilling import Easy
from mallob_py.batch.policies.sd import SdPolicy
from mallob_py.batch.policy import Action, PolicyError, Resize, Running, Share, Start, View, Wake
from mallob_py.batch.simulator import EventOrder, Imbalance, Schedule, SharedSpan, simulate


def sharing(*jobs: tuple[float, int, float, float], nodes: int) -> Workload:
    """Return jobs given as (submission, nodes, run time, estimate), which can share their nodes' cores."""
    described = [
        Job(number, float(at), size, float(estimate), Kind.MALLEABLE, number=number + 1)
        for number, (at, size, _, estimate) in enumerate(jobs)
    ]
    return Workload(described, [Truth(float(run)) for _, _, run, _ in jobs], nodes)


class Planned:
    """A policy that starts all jobs that fit, and at given times returns the planned actions."""

    name = "planned"
    wants_all_arrivals = True

    def __init__(self, *plan: tuple[float, Action]) -> None:
        self._plan = dict(plan)

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Iterator[Action]:
        if view.now_s in self._plan:
            yield self._plan[view.now_s]
        for job in list(view.queue):
            if job.nodes <= view.free:
                yield Start(job.id, job.nodes)
        later = [time_s for time_s in self._plan if time_s > view.now_s]
        if later:
            yield Wake(min(later))


# --- the simulator --------------------------------------------------------------------------------


def test_a_guest_and_its_mate_run_at_half_speed_and_cores_go_back_at_its_end() -> None:
    workload = sharing((0, 4, 100, 120), (20, 4, 10, 15), nodes=4)
    schedule = simulate(workload, Planned((20, Share(1, (0,)))))
    assert schedule.starts_s == [0, 20]
    assert schedule.ends_s == [110, 40]
    assert schedule.shared == [SharedSpan(1, 0, 20, 40, 4, 0.5)]
    assert metrics_of(schedule).utilisation == 1.0
    assert energy_of(schedule, NodePower()).busy_node_s == 4 * 110


@pytest.mark.parametrize(("imbalance", "rate"), [(Imbalance.IDEAL, 7 / 8), (Imbalance.WORST, 1 / 2)])
def test_a_guest_takes_over_the_nodes_of_a_mate_that_ends(imbalance: Imbalance, rate: float) -> None:
    workload = sharing((0, 3, 4, 50), (0, 1, 100, 100), (0, 4, 10, 30), nodes=4)
    schedule = simulate(workload, Planned((2, Share(2, (0, 1)))), imbalance=imbalance)
    # When the first mate has ended, 2 of the guest's 10 s are done; then the guest has 3 whole nodes and a
    # half.
    end_s = 6 + 8 / rate
    assert schedule.ends_s == pytest.approx([6, 100 + (end_s - 2) / 2, end_s])
    assert schedule.shared == [
        SharedSpan(2, 0, 2, 6, 3, 0.5),
        SharedSpan(2, 1, 2, schedule.ends_s[2], 1, 0.5),
    ]


def test_a_guest_without_mates_has_all_cores_and_frees_all_nodes() -> None:
    workload = sharing((0, 2, 4, 9), (0, 2, 10, 10), (20, 2, 1, 1), nodes=2)
    schedule = simulate(workload, Planned((1, Share(1, (0,)))))
    assert schedule.ends_s[:2] == [7, 7 + 7]
    assert schedule.starts_s[2] == 20


def test_other_shares_of_the_cores_can_be_given() -> None:
    workload = sharing((0, 2, 10, 10), (0, 2, 3, 3), nodes=2)
    schedule = simulate(workload, Planned((4, Share(1, (0,), 0.25))))
    # The mate, at 3/4 of its speed, ends first; by that time, the guest has done 2 of 3 s.
    assert schedule.ends_s == [4 + 6 / 0.75, 13]


def test_estimated_ends_are_those_of_the_limits() -> None:
    seen: dict[float, list[tuple[int, float, int]]] = {}

    class Watching(Planned):
        def decide(self, view: View) -> Iterator[Action]:
            yield from super().decide(view)
            seen[view.now_s] = [(one.job.id, end_s, one.freed) for end_s, _, one in view.ends]

    workload = sharing((0, 3, 4, 50), (0, 1, 100, 100), (0, 4, 18, 30), nodes=4)
    simulate(workload, Watching((1, Share(2, (0, 1)))))
    assert seen[1] == [(2, 61, 0), (0, 80, 3), (1, 130, 1)]
    # Job 0 has ended, but its nodes are still in use.
    assert seen[7] == [(2, 61, 3), (1, 130, 1)]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Share(2, (0,)), "job 3 is to share 2 nodes, or has a mate twice; it can run on 4 to 4"),
        (Share(2, (0, 0)), "job 3 is to share 2 nodes, or has a mate twice"),
        (Share(2, ()), "job 3 is to share 0 nodes"),
        (Share(2, (0, 4)), "job 5 is to be a mate, but does not run"),
        (Share(0, (1,)), "job 1 is started, but is not in the queue"),
        (Share(2, (0, 1), 1.0), "job 3 is to have the share 1 of cores"),
        (Share(3, (0,)), "job 4 is to be a guest, but is rigid"),
    ],
)
def test_sharing_that_cannot_be_is_refused_with_policy_job_and_time(action: Action, message: str) -> None:
    jobs = sharing((0, 2, 9, 9), (0, 2, 9, 9), (1, 4, 9, 9), (1, 2, 9, 9), (2, 4, 9, 9), nodes=4)
    described = [*jobs.jobs[:3], Job(3, 1.0, 2, 9.0, number=4), jobs.jobs[4]]
    with pytest.raises(PolicyError, match=rf"^planned: {message}.*\(at 1 s\)"):
        simulate(Workload(described, jobs.truths, 4), Planned((1, action)))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Share(2, (0,)), "job 1 is to be a mate, but shares its nodes already"),
        (Share(2, (1,)), "job 2 is to be a mate, but shares its nodes already"),
        (Resize(0, 2), "job 1 is resized, but shares its nodes"),
        (Resize(1, 2), "job 2 is resized, but shares its nodes"),
    ],
)
def test_a_job_shares_its_nodes_once(action: Action, message: str) -> None:
    workload = sharing((0, 2, 9, 9), (1, 2, 9, 9), (1, 2, 9, 9), nodes=2)
    with pytest.raises(PolicyError, match=message):
        simulate(workload, Planned((1, Share(1, (0,))), (2, action)))


# --- the policy -----------------------------------------------------------------------------------


def test_a_short_job_becomes_the_guest_of_a_long_one() -> None:
    workload = sharing((0, 4, 100, 100), (10, 4, 5, 5), nodes=4)
    assert simulate(workload, SdPolicy()).starts_s == [0, 10]
    assert simulate(workload, SdPolicy()).ends_s == [105, 20]


def test_a_job_that_would_end_earlier_by_waiting_waits() -> None:
    workload = sharing((0, 4, 100, 100), (60, 4, 40, 40), nodes=4)
    assert simulate(workload, SdPolicy()).starts_s == [0, 100]
    assert simulate(workload, SdPolicy(check=False)).starts_s == [0, 60]


def test_nobody_is_the_guest_of_a_job_that_it_outlives() -> None:
    workload = sharing((0, 4, 100, 100), (51, 4, 50, 50), nodes=4)
    assert simulate(workload, SdPolicy(check=False)).starts_s == [0, 100]


def test_the_penalty_is_kept_below_the_cutoff() -> None:
    workload = sharing((0, 4, 100, 100), (10, 4, 50, 50), nodes=4)
    assert simulate(workload, SdPolicy(max_slowdown=1.51, check=False)).starts_s == [0, 10]
    assert simulate(workload, SdPolicy(max_slowdown=1.5, check=False)).starts_s == [0, 100]


def test_the_dynamic_cutoff_is_the_mean_of_the_running_jobs_slowdowns() -> None:
    # From 100 on, the running jobs' slowdowns are 1 and 2, so the cut-off is 1.5; job 2 would have 2.1, job 3
    # 1.02.
    jobs = [(0, 4, 100, 100), (0, 2, 100, 100), (0, 2, 1000, 1000), (110, 2, 20, 20), (110, 4, 9, 9)]
    schedule = simulate(sharing(*jobs, nodes=4), SdPolicy(dynamic=True, check=False))
    assert schedule.starts_s[:4] == [0, 100, 100, 110]
    assert [(span.guest, span.mate) for span in schedule.shared] == [(3, 2)]


def test_the_pair_of_mates_with_the_least_penalties_is_chosen() -> None:
    jobs = [(0, 1, 900, 900), (0, 1, 800, 800), (0, 2, 500, 500), (0, 2, 1000, 1000), (1, 3, 9, 9)]
    schedule = simulate(sharing(*jobs, nodes=6), SdPolicy(check=False))
    assert {(span.guest, span.mate) for span in schedule.shared} == {(4, 0), (4, 3)}
    assert not simulate(sharing(*jobs, nodes=6), SdPolicy(check=False, mates=1)).shared


@pytest.mark.parametrize(("mates", "start_s"), [(2, 100.0), (3, 10.0)])
def test_more_than_two_mates_are_as_many_as_are_allowed(mates: int, start_s: float) -> None:
    workload = sharing((0, 1, 100, 100), (0, 1, 100, 100), (0, 2, 100, 100), (10, 4, 5, 5), nodes=4)
    schedule = simulate(workload, SdPolicy(mates=mates))
    assert schedule.starts_s[3] == start_s
    assert len(schedule.shared) == (mates if mates > 2 else 0)


def test_of_three_mates_the_set_with_the_least_penalties_is_chosen() -> None:
    short, long = (0, 2, 50, 50), [(0, size, 1000, 1000) for size in (1, 3)]
    schedule = simulate(sharing(short, short, short, *long, (10, 6, 5, 5), nodes=10), SdPolicy(mates=3))
    assert [span.mate for span in schedule.shared][1:] == [3, 4]


@pytest.mark.parametrize(("again", "start_s"), [(True, 20), (False, 55)])
def test_a_guest_whose_mate_has_ended_can_be_a_mate_itself_or_not(again: bool, start_s: float) -> None:
    # The first job ends at 15 and leaves its nodes to its guest, which has 40 of 45 s left.
    jobs = [(0, 4, 10, 100), (5, 4, 45, 45), (20, 4, 5, 5)]
    schedule = simulate(sharing(*jobs, nodes=4), SdPolicy(check=False, again=again))
    assert schedule.ends_s[0] == 15
    assert schedule.starts_s[2] == start_s


@pytest.mark.parametrize(("counts_shared", "start_s"), [(True, 2), (False, 3)])
def test_reservations_count_on_shared_nodes_or_not(counts_shared: bool, start_s: float) -> None:
    # The head can start at 101, beside the last job, if the nodes that job 2 shares until 3 are counted.
    jobs = [(0, 2, 100, 100), (0, 1, 50, 50), (1, 2, 1, 1), (2, 3, 9, 9), (2, 1, 200, 200)]
    policy = SdPolicy(1.05, check=False, counts_shared=counts_shared)
    assert simulate(sharing(*jobs, nodes=4), policy).starts_s[4] == start_s


def test_rigid_jobs_are_neither_guests_nor_mates() -> None:
    workload = sharing((0, 4, 100, 100), (10, 4, 5, 5), nodes=4)
    for rigid in (0, 1):
        jobs = list(workload.jobs)
        jobs[rigid] = Job(rigid, jobs[rigid].submit_s, 4, jobs[rigid].estimate_s)
        assert simulate(Workload(jobs, workload.truths, 4), SdPolicy()).starts_s == [0, 100]


@pytest.mark.parametrize("settings", [{"factor": 1.0}, {"factor": 0.0}, {"mates": 0}, {"waits": "all"}])
def test_settings_that_cannot_be_are_refused(settings: dict[str, float | str]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        SdPolicy(**settings)  # type: ignore[arg-type]


sharing_workloads = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 8), st.integers(1, 40), st.integers(0, 20)),
    min_size=1,
    max_size=40,
).map(lambda many: sharing(*[(at, size, run, run + more) for at, size, run, more in sorted(many)], nodes=8))
policies = st.builds(
    SdPolicy,
    max_slowdown=st.sampled_from([1.5, 3.0, 10.0, math.inf]),
    dynamic=st.booleans(),
    check=st.booleans(),
    counts_shared=st.booleans(),
    depth=st.sampled_from([0, 1, 3, 10]),
    mates=st.sampled_from([1, 2, 3, 5]),
    factor=st.sampled_from([0.25, 0.5]),
    again=st.booleans(),
    replan=st.booleans(),
    waits=st.sampled_from(["head", "map"]),
)


@given(rigid_workloads(), st.sampled_from([0, 1, 4]))
def test_without_mates_it_is_easy(workload: Workload, depth: int) -> None:
    assert simulate(workload, SdPolicy(depth=depth)).starts_s == simulate(workload, Easy(depth)).starts_s


@given(sharing_workloads, policies, st.sampled_from(Imbalance), st.sampled_from(EventOrder))
def test_sharing_keeps_capacity_and_work_and_everybody_ends(
    workload: Workload, policy: SdPolicy, imbalance: Imbalance, order: EventOrder
) -> None:
    schedule = simulate(workload, policy, imbalance=imbalance, order=order)
    check_nodes(schedule)
    done_s = [end_s - start_s for start_s, end_s in zip(schedule.starts_s, schedule.ends_s, strict=True)]
    for span in schedule.shared:
        done_s[span.mate] -= (span.end_s - span.start_s) * span.factor
    by_guest = {
        span.guest: [other for other in schedule.shared if other.guest == span.guest]
        for span in schedule.shared
    }
    for guest, spans in by_guest.items():
        if imbalance is Imbalance.WORST:
            done_s[guest] -= max(span.end_s - span.start_s for span in spans) * (1 - spans[0].factor)
        else:
            size = workload.jobs[guest].nodes
            done_s[guest] -= sum(
                (span.end_s - span.start_s) * (1 - span.factor) * span.nodes / size for span in spans
            )
    assert done_s == pytest.approx([truth.run_s for truth in workload.truths])


def check_nodes(schedule: Schedule) -> None:
    """Check that no job starts before its submission, and that jobs never have more cores of a node than it
    has.
    """
    shares: dict[int, list[tuple[float, float]]] = {}
    for job, (begin_s, end_s, nodes) in enumerate(
        zip(schedule.starts_s, schedule.ends_s, schedule.allocations, strict=True)
    ):
        assert begin_s >= schedule.workload.jobs[job].submit_s
        assert len(set(nodes)) == len(nodes) == schedule.workload.jobs[job].nodes
        for node in nodes:
            shares.setdefault(node, []).extend([(begin_s, 1.0), (end_s, -1.0)])
    for span in schedule.shared:
        common = set(schedule.allocations[span.guest]) & set(schedule.allocations[span.mate])
        assert len(common) == span.nodes
        for node in common:
            shares[node] += [(span.start_s, -1.0), (span.end_s, 1.0)]
    for changes in shares.values():
        held = itertools.accumulate(change for _, change in sorted(changes))
        assert max(held) <= 1.0


class SlowSd:
    """SD-Policy by its definition: all sets of mates are tried at each decision, and nothing is
    remembered.
    """

    name = "slow"
    wants_all_arrivals = True

    def __init__(
        self,
        cutoff: float,
        is_dynamic: bool,
        checks: bool,
        depth: int,
        again: bool,
        replan: bool,
        waits: str,
        mates: int,
    ) -> None:
        self._mates_max = mates
        self._cutoff, self._is_dynamic, self._checks = cutoff, is_dynamic, checks
        self._replans = replan
        self._waits = waits
        self._depth = depth or math.inf
        self._again = again

    def begin(self, nodes: int) -> None:
        self._guests: set[int] = set()

    def decide(self, view: View) -> Iterator[Action]:
        ends = [
            (running.estimated_end_s - running.job.submit_s) / running.job.estimate_s
            for running in view.running.values()
        ]
        cutoff = self._cutoff if not self._is_dynamic else sum(ends) / len(ends) if ends else math.inf
        while view.queue and view.queue[0].nodes <= view.free:
            yield Start(view.queue[0].id, view.queue[0].nodes)
        place = looked_at = 0
        wait_s, extra = self._reservation(view, view.queue[0]) if view.queue else (0.0, 0)
        while place < len(view.queue) and looked_at < self._depth:
            looked_at += 1
            job, head = view.queue[place], view.queue[0]
            if self._replans:
                wait_s, extra = self._reservation(view, head)
            is_head = self._replans and place == 0
            if job.nodes <= view.free and (is_head or job.estimate_s <= wait_s or job.nodes <= extra):
                if job.estimate_s > wait_s:
                    extra -= job.nodes
                yield Start(job.id, job.nodes)
            elif self._is_worth_while(view, job, wait_s) and (mates := self._mates(view, job, cutoff)):
                self._guests.add(job.id)
                yield Share(job.id, tuple(mate.job.id for mate in mates))
            else:
                place += 1

    def _is_worth_while(self, view: View, job: Job, wait_s: float) -> bool:
        if self._waits == "map":
            wait_s = self._planned_start(view, job) - view.now_s
        return wait_s > job.estimate_s or not self._checks

    def _planned_start(self, view: View, job: Job) -> float:
        ends = [(max(view.now_s, one.estimated_end_s), one.freed) for one in view.running.values()]
        planned: list[tuple[float, float, int]] = []

        def free(at_s: float) -> int:
            held = sum(nodes for begin_s, end_s, nodes in planned if begin_s <= at_s < end_s)
            return view.free + sum(freed for end_s, freed in ends if end_s <= at_s) - held

        for other in view.queue:
            times = sorted({view.now_s, *(end_s for end_s, _ in ends), *(end_s for _, end_s, _ in planned)})
            begins = {begin_s for begin_s, _, _ in planned}
            start_s = next(
                at_s
                for at_s in times
                if all(
                    free(then_s) >= other.nodes
                    for then_s in {at_s, *times, *begins}
                    if at_s <= then_s < at_s + other.estimate_s
                )
            )
            if other is job:
                return start_s
            planned.append((start_s, start_s + other.estimate_s, other.nodes))
        raise AssertionError

    def _reservation(self, view: View, head: Job) -> tuple[float, int]:
        for end_s in sorted({view.now_s, *(max(view.now_s, end_s) for end_s, _, _ in view.ends)}):
            freed = sum(one.freed for one in view.running.values() if one.estimated_end_s <= end_s)
            if view.free + freed >= head.nodes:
                return end_s - view.now_s, view.free + freed - head.nodes
        raise AssertionError

    def _mates(self, view: View, job: Job, cutoff: float) -> tuple[Running, ...]:
        alone = [
            one
            for one in view.running.values()
            if one.guest is None
            and not one.mates
            and (self._again or one.job.id not in self._guests)
            and one.estimated_end_s >= view.now_s + job.estimate_s
            and self._penalty(one, job) < cutoff
        ]
        counts = range(1, self._mates_max + 1)
        sets = [chosen for count in counts for chosen in itertools.combinations(alone, count)]
        fitting = [chosen for chosen in sets if sum(one.size for one in chosen) == job.nodes]
        return min(fitting, key=lambda chosen: sum(self._penalty(one, job) for one in chosen), default=())

    def _penalty(self, mate: Running, job: Job) -> float:
        return (mate.estimated_end_s - mate.job.submit_s + job.estimate_s) / mate.job.estimate_s


@given(
    sharing_workloads,
    st.sampled_from([1.5, 4.0, math.inf]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 3]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["head", "map"]),
    st.sampled_from([1, 2, 3, 4]),
)
def test_it_is_what_its_definition_says(
    workload: Workload,
    cutoff: float,
    is_dynamic: bool,
    checks: bool,
    depth: int,
    again: bool,
    replan: bool,
    waits: str,
    mates: int,
) -> None:
    policy = SdPolicy(
        cutoff, is_dynamic, checks, depth=depth, mates=mates, again=again, replan=replan, waits=waits
    )
    quick = simulate(workload, policy)
    slow = simulate(workload, SlowSd(cutoff, is_dynamic, checks, depth, again, replan, waits, mates))
    assert quick.starts_s == slow.starts_s
    assert quick.ends_s == pytest.approx(slow.ends_s)


def test_with_a_map_a_job_behind_the_head_knows_that_it_waits_for_it_as_well() -> None:
    # The head can start at 40, 25 s from now, and then runs for 60 s; the last job takes 25 s.
    jobs = [(0, 4, 40, 40), (0, 2, 900, 900), (15, 4, 60, 60), (15, 4, 25, 25)]
    starts = {
        waits: simulate(sharing(*jobs, nodes=6), SdPolicy(waits=waits)).starts_s[3]
        for waits in ("head", "map")
    }
    assert starts == {"head": 40, "map": 15}
