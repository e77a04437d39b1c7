import pytest
from hypothesis import given
from test_agreement import malleable_workloads
from test_simulator import check
from workloads import malleable, rigid

from mallob_py.batch.costs import Delays, PerResize
from mallob_py.batch.job import Kind, Workload
from mallob_py.batch.policies.elastic import ElasticEasy, ElasticFcfs, Malleable
from mallob_py.batch.policies.fair import Fair
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.glb_batch import JOBS, NODES, glb_batch

_ALL = [
    ElasticFcfs,
    ElasticEasy,
    Malleable,
    lambda: Malleable("code", "code", "code"),
    lambda: Malleable("code", ready_s=6, cooldown_s=5),
]


@given(malleable_workloads())
@pytest.mark.parametrize("make", _ALL)
def test_all_jobs_end_and_share_no_node(make: type[Malleable], workload: Workload) -> None:
    check(simulate(workload, make()))


@given(malleable_workloads())
@pytest.mark.parametrize("make", [*_ALL, Fair])
def test_with_delays_all_jobs_end_as_well(make: type[Malleable], workload: Workload) -> None:
    check(simulate(workload, make(), delays=Delays(0.5, 1.5, 2.5, 1.0, 0.25)))


def test_easy_has_no_extra_nodes_and_wants_ends_before_the_shadow() -> None:
    # The head (3 nodes) can start at 10 s; a job of one node that ends exactly then may not overtake.
    workload = rigid((0, 2, 10), (0, 3, 5), (0, 1, 10), (0, 1, 9), nodes=4)
    assert simulate(workload, ElasticEasy()).starts_s == [0, 10, 10, 0]


def test_without_malleable_jobs_the_malleable_policy_is_easy() -> None:
    for seed in range(10):
        workload = glb_batch(seed)
        assert simulate(workload, Malleable()).starts_s == simulate(workload, ElasticEasy()).starts_s


def test_moldable_jobs_start_on_as_many_nodes_as_there_are() -> None:
    workload = malleable((0, 1, 2, 3, 30), (0, 1, 2, 4, 30), nodes=4)
    for policy in (ElasticFcfs(), ElasticEasy()):
        assert [len(nodes) for nodes in simulate(workload, policy).allocations] == [3, 1]


def test_jobs_start_small_and_grow_into_what_is_left() -> None:
    schedule = simulate(malleable((0, 1, 2, 4, 30), nodes=4), Malleable(ready_s=6))
    assert [(piece.end_s, len(piece.nodes)) for piece in schedule.pieces] == [(10, 1)]
    assert schedule.ends_s == [10 + (30 - 5) / 2]


def test_a_running_job_shrinks_for_one_that_waits_but_not_while_it_cools_down() -> None:
    jobs = ((0, 1, 4, 4, 300), (20, 2, 2, 2, 10))
    schedule = simulate(malleable(*jobs, nodes=4), Malleable("code"))
    assert schedule.starts_s == [0, 20]
    # Here job 0 has grown at 5 s, so it is not resized until 65 s.
    schedule = simulate(malleable(*jobs, nodes=4), Malleable(ready_s=5))
    assert schedule.starts_s == [0, 65]


def test_a_job_that_stood_still_for_a_resize_runs_for_a_period_before_the_next() -> None:
    # Job 0 grows at 5 s and stands still until 25 s.
    workload = malleable((0, 1, 4, 4, 300), (12, 2, 2, 2, 10), nodes=4)
    schedule = simulate(workload, Malleable(ready_s=5, cooldown_s=5), costs=PerResize(20.0, 20.0))
    assert schedule.starts_s == [0, 30]


def test_nodes_are_taken_from_the_largest_job_and_by_the_program_from_the_largest_surplus() -> None:
    # Job 0 has 6 nodes, one above its smallest number; job 1 has 4, three above; job 2 wants one node.
    jobs = ((0, 5, 6, 6, 100), (0, 1, 4, 4, 100), (10, 1, 1, 1, 10))

    def shrunk(shrink: str) -> set[int]:
        schedule = simulate(malleable(*jobs, nodes=10), Malleable("code", shrink))
        assert schedule.starts_s == [0, 0, 10]
        return {piece.job for piece in schedule.pieces if piece.end_s == 10}

    assert shrunk("paper") == {0}
    assert shrunk("code") == {1}


def test_the_program_shrinks_for_the_first_that_waits_only() -> None:
    jobs = ((0, 2, 4, 4, 100), (10, 3, 3, 3, 10), (10, 2, 2, 2, 900))
    assert simulate(malleable(*jobs, nodes=4), Malleable("code")).starts_s[2] == 10
    assert simulate(malleable(*jobs, nodes=4), Malleable("code", "code")).starts_s[2] > 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grow": "both"}, "grow is 'both', not paper or code"),
        ({"ready_s": -1}, "ready_s is -1, below 0"),
        ({"cooldown_s": 0}, "cooldown_s is 0, below period_s, which is 5"),
        ({"period_s": 0}, "period_s is 0, not above 0"),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Malleable(**settings)  # type: ignore[arg-type]


def test_batches_are_those_published_and_differ_only_in_who_is_malleable() -> None:
    plain, half, again = glb_batch(1), glb_batch(1, 0.4), glb_batch(1, 0.4)
    assert (len(plain.jobs), plain.nodes) == (JOBS, NODES) == (25, 32)
    assert [job.submit_s for job in plain.jobs[:5]] == [0.0] * 5
    assert 0 < plain.jobs[5].submit_s <= plain.jobs[-1].submit_s < 600
    assert half.jobs == again.jobs
    assert half.truths == plain.truths
    assert sum(job.kind is Kind.MALLEABLE for job in half.jobs) == 10
    work_h = [
        sum(job.nodes * truth.run_s for job, truth in zip(one.jobs, one.truths, strict=True)) / 3600
        for one in map(glb_batch, range(200))
    ]
    assert sum(work_h) / 200 == pytest.approx(8, rel=0.05)
