import pytest
from hypothesis import given
from hypothesis import strategies as st
from workloads import malleable, rigid, sharing

from mallob_py.batch.costs import FreeResizes, PerNode, PerResize, resize_cost_of
from mallob_py.batch.job import Kind, Workload
from mallob_py.batch.speedup import LINEAR, Amdahl, Power
from mallob_py.batch.workload.changes import (
    NodeRange,
    SpeedModel,
    make_malleable,
    node_range_of,
    share_of,
    speed_model_of,
)

JOBS = 50


@pytest.fixture
def workload() -> Workload:
    return rigid(*[(at, 1 + at % 7, 10) for at in range(JOBS)], nodes=8)


def chosen(workload: Workload) -> set[int]:
    return {job.id for job in workload.jobs if job.is_malleable}


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(0, 5))
def test_jobs_of_a_share_are_among_those_of_a_larger_one_with_the_same_speedup(
    one: float, other: float, seed: int
) -> None:
    workload = rigid(*[(at, 2, 10) for at in range(JOBS)], nodes=8)
    small, large = (
        make_malleable(workload, share, speedup=SpeedModel(Power, 0.0, 0.3), seed=seed)
        for share in sorted((one, other))
    )
    assert len(chosen(small)) == round(min(one, other) * JOBS)
    assert chosen(small) <= chosen(large)
    for job in chosen(small):
        assert small.jobs[job] == large.jobs[job]


def test_another_seed_chooses_others(workload: Workload) -> None:
    assert chosen(make_malleable(workload, 0.4)) == chosen(make_malleable(workload, 0.4))
    assert chosen(make_malleable(workload, 0.4)) != chosen(make_malleable(workload, 0.4, seed=1))


def test_none_is_the_workload_itself_and_truths_stay(workload: Workload) -> None:
    assert make_malleable(workload, 0.0) == workload
    assert make_malleable(workload, 1.0).truths == workload.truths


def test_ranges_stay_within_their_multiples_one_node_and_the_machine() -> None:
    workload = rigid((0, 1, 5), (0, 3, 5), (0, 7, 5), nodes=8)
    jobs = make_malleable(workload, 1.0, NodeRange(0.5, 2.0)).jobs
    assert [(job.low, job.nodes, job.high) for job in jobs] == [(1, 1, 2), (2, 3, 6), (4, 7, 8)]
    jobs = make_malleable(workload, 1.0, NodeRange(0.1, 1.2)).jobs
    assert [(job.low, job.high) for job in jobs] == [(1, 1), (1, 3), (1, 8)]


def test_jobs_that_are_malleable_already_stay_as_they_are() -> None:
    workload = malleable((0, 1, 2, 3, 5), nodes=4)
    assert make_malleable(workload, 1.0, NodeRange(0.5, 2.0)) == workload


def test_jobs_that_share_nodes_stay_rigid() -> None:
    workload = sharing((0, 1, (1.0, 0.0), 5))
    assert all(job.kind is Kind.RIGID for job in make_malleable(workload, 0.0).jobs)
    with pytest.raises(ValueError, match="share nodes"):
        make_malleable(workload, 0.5)


def test_texts_of_options() -> None:
    assert share_of("50%") == share_of("0.5") == 0.5
    assert node_range_of("0.5:5") == NodeRange(0.5, 5.0)
    assert speed_model_of("linear").draw is not None
    assert make_malleable(rigid((0, 1, 1), nodes=1), 1.0).jobs[0].speedup == LINEAR
    assert speed_model_of("amdahl:0.05") == SpeedModel(Amdahl, 0.05, 0.05)
    assert speed_model_of("power:0:0.3") == SpeedModel(Power, 0.0, 0.3)
    assert resize_cost_of("14.55:7.41") == PerResize(14.55, 7.41)
    assert resize_cost_of("3.8:2.9/node") == PerNode(3.8, 2.9)
    assert resize_cost_of("2") == PerResize(2.0, 2.0)


@pytest.mark.parametrize("text", ["", "half", "101%", "-0.1", "nan", "50%%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a share such as 50%"):
        share_of(text)


@pytest.mark.parametrize("text", ["", "2:4", "0:2", "0.5:0.9", "a:b", "0.5:inf", "0.5:2:3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="multiples"):
        node_range_of(text)


@pytest.mark.parametrize("text", ["", "linear:1", "amdahl", "amdahl:2", "power:0.3:0.1", "cubic:0.1"])
def test_what_is_no_speed_model_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not linear"):
        speed_model_of(text)


@pytest.mark.parametrize("text", ["", "a", "1:2:3", "-1", "1:2/hour", "nan", "1/"])
def test_what_is_no_cost_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"should be seconds to grow|has the unit|not a cost"):
        resize_cost_of(text)


def test_costs_are_per_resize_or_per_node() -> None:
    job = rigid((0, 4, 1), nodes=4).jobs[0]
    assert [FreeResizes().pause_s(job, 2, 5), FreeResizes().pause_s(job, 5, 2)] == [0, 0]
    assert [PerResize(14.55, 7.41).pause_s(job, 2, 5), PerResize(14.55, 7.41).pause_s(job, 5, 2)] == [
        14.55,
        7.41,
    ]
    assert [PerNode(2, 1).pause_s(job, 2, 5), PerNode(2, 1).pause_s(job, 5, 2)] == [6, 3]
