"""The policy that gives the next node to the job that gains most from it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workloads import any_workloads, malleable, rigid_workloads

from mallob_py.batch.explanation import explain
from mallob_py.batch.job import AnySpeedup, Job, Workload
from mallob_py.batch.metrics import NodePower, metrics_of
from mallob_py.batch.policies.backfilling import Easy
from mallob_py.batch.policies.curve import Curve
from mallob_py.batch.policies.fair import Fair
from mallob_py.batch.policy import Running, View
from mallob_py.batch.registry import policy_of
from mallob_py.batch.runs import Setting, side_by_side
from mallob_py.batch.simulator import EventOrder, Schedule, simulate
from mallob_py.batch.speedup import Amdahl, Downey, Logarithmic, Power
from mallob_py.batch.workload.changes import speed_model_of


def with_speedups(workload: Workload, *speedups: AnySpeedup) -> Workload:
    jobs = [
        Job(job.id, job.submit_s, job.nodes, job.estimate_s, job.kind, job.low, job.high, speedup, job.number)
        for job, speedup in zip(workload.jobs, speedups, strict=True)
    ]
    return Workload(jobs, workload.truths, workload.nodes)


def first_sizes(schedule: Schedule) -> list[int]:
    return [
        len(next(piece.nodes for piece in schedule.all_pieces() if piece.job == job.id))
        for job in schedule.workload.jobs
    ]


@given(rigid_workloads())
def test_without_malleable_jobs_it_is_easy(workload: Workload) -> None:
    assert simulate(workload, Curve()).starts_s == simulate(workload, Easy()).starts_s


@given(any_workloads(nodes=16))
@pytest.mark.parametrize("floor", [0.0, 0.5, 1.0])
def test_no_job_has_less_than_its_part_of_the_fair_share_and_no_node_is_left(
    floor: float, workload: Workload
) -> None:
    class Watched(Curve):
        def volumes(
            self, view: View, able: Sequence[Running], starting: Sequence[Job], free: int
        ) -> dict[int, int]:
            fair = Fair.volumes(self, view, able, starting, free)
            own = super().volumes(view, able, starting, free)
            assert sum(own.values()) == sum(fair.values())
            jobs = {job.id: job for job in (*(one.job for one in able), *starting)}
            for number, volume in own.items():
                assert max(jobs[number].low, int(floor * fair[number])) <= volume <= jobs[number].high
            return own

    simulate(workload, Watched(floor=floor))


def test_more_nodes_go_to_the_job_that_scales() -> None:
    two = malleable((0, 1, 4, 12, 100), (0, 1, 4, 12, 100), nodes=12)
    schedule = simulate(with_speedups(two, Power(0.1), Power(0.6)), Curve("speed", floor=0.0))
    scalable, other = first_sizes(schedule)
    assert scalable > 2 * other
    assert first_sizes(simulate(with_speedups(two, Power(0.1), Power(0.6)), Curve("speed", floor=1.0))) == [
        6,
        6,
    ]


def test_more_nodes_go_to_the_job_with_the_shorter_estimate() -> None:
    two = malleable((0, 1, 4, 12, 100), (0, 1, 4, 12, 10), nodes=12)
    schedule = simulate(with_speedups(two, Power(0.3), Power(0.3)), Curve("time", floor=0.0))
    long, short = first_sizes(schedule)
    assert short > 2 * long


def test_by_weights_a_user_has_more() -> None:
    two = with_speedups(malleable((0, 1, 4, 12, 100), (0, 1, 4, 12, 100), nodes=12), Power(0.3), Power(0.3))
    jobs = [
        Job(**{**{f: getattr(job, f) for f in job.__struct_fields__}, "user": user})
        for job, user in zip(two.jobs, "ab", strict=True)
    ]
    schedule = simulate(Workload(jobs, two.truths, 12), policy_of("curve:floor=0,by=user,priorities=a:4"))
    mine, other = first_sizes(schedule)
    assert mine > other


def test_one_curve_may_be_assumed_of_all_jobs() -> None:
    two = with_speedups(malleable((0, 1, 4, 12, 100), (0, 1, 4, 12, 100), nodes=12), Power(0.1), Power(0.6))
    assert first_sizes(simulate(two, policy_of("curve:curve=power:0.3,floor=0"))) == [6, 6]
    assert first_sizes(simulate(two, policy_of("curve:curve=linear,floor=0"))) == [6, 6]


@given(
    st.sampled_from(
        [Downey(0.0), Downey(0.5), Downey(1.0), Downey(0.3, 4.0), Power(0.2), Amdahl(0.1), Logarithmic(0.1)]
    ),
    st.integers(1, 40),
    st.integers(1, 80),
)
def test_speeds_grow_ever_more_slowly(model: AnySpeedup, preferred: int, nodes: int) -> None:
    before, here, after = (
        (model.speed(nodes + more, preferred) for more in (-1, 0, 1)) if nodes > 1 else (0.0, 1.0, 2.0)
    )
    if isinstance(model, Downey) and nodes > 1:
        assert before <= here * (1 + 1e-12)
        assert here <= after * (1 + 1e-12)
        assert after - here <= here - before + 1e-9 * here
    assert model.speed(preferred, preferred) == pytest.approx(1.0)


def test_downey_is_linear_without_variance_up_to_the_parallelism_and_flat_behind() -> None:
    assert [Downey(0.0, 2.0).speed(nodes, 4) for nodes in (1, 4, 8, 9, 40)] == pytest.approx(
        [0.25, 1, 2, 2, 2]
    )
    # Downey's formula: A n / (A + sigma (n - 1) / 2), A = 8
    at = {n: 8 * n / (8 + 0.5 * (n - 1)) for n in (4, 8)}
    assert Downey(1.0, 2.0).speed(8, 4) == pytest.approx(at[8] / at[4])
    model = speed_model_of("downey:0.5")
    assert model.kind is Downey


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("gain=most", "gain is 'most'"),
        ("floor=2", "floor is 2"),
        ("curve=steep", "'steep' is not linear"),
        ("by=x", "by is 'x'"),
    ],
)
def test_settings_that_are_none_are_refused(settings: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_of(f"curve:{settings}")


def test_commands_show_the_policy_measured_rates(tmp_path: Path) -> None:
    short = [(at_s, 40, 40, 40, 50) for at_s in range(100, 900, 100)]
    jobs = malleable((0, 1, 32, 64, 900), (0, 1, 32, 64, 900), *short, nodes=64)
    workload = with_speedups(jobs, Power(0.9), Power(0.0), *[Power(0.2)] * len(short))
    fitted = "curve:curve=fitted,period_s=5"
    schedule = simulate(workload, policy_of(fitted))
    assert schedule.ends_s != simulate(workload, policy_of("curve:curve=power:0.2")).ends_s
    setting = Setting(workload, EventOrder.BATCH, None, NodePower(), tmp_path)
    (result,) = side_by_side(setting, [fitted], 1)
    assert result.metrics == metrics_of(schedule)
    for job, end_s in zip(workload.jobs, schedule.ends_s, strict=True):
        assert explain(workload, policy_of(fitted), job.number).end_s == end_s
