"""Small runs of the experiments with uniform jobs, priorities and realistic arrivals, whose rows are
predictable.
"""

import itertools
from pathlib import Path

import msgspec
import pytest

from mallob_py.experiments import paper, priorities, realistic, sizes, uniform
from mallob_py.experiments.uniform import ClosedLoop
from mallob_py.simulation.run import Simulation
from mallob_py.simulation.setting import Jobs, JobSpec, Setting, SettingError

SETTING = Setting(pes=24, pes_per_host=6, seconds=20.0, jobs=Jobs(wallclock_mean_s=5.0, wallclock_max_s=10.0))


def changed(**changes: object) -> Setting:
    return msgspec.structs.replace(SETTING, **changes)


# --- closed loops ------------------------------------------------------------------------------


def test_a_closed_loop_has_one_job_of_each_stream_in_the_system_until_the_stream_is_over() -> None:
    first = JobSpec(
        arrival_s=0.0, client=0, name="", priority=1.0, wallclock_limit_s=0.0, max_demand=1, work_s=2.0
    )
    longer = msgspec.structs.replace(first, work_s=3.0)
    simulation = Simulation(SETTING)
    loop = ClosedLoop(simulation, [iter([first] * 3), iter([longer])])
    simulation.play()
    assert list(loop.stream_of.values()) == [0, 1, 0, 0]
    assert [active for _, active in simulation.measures.active_jobs] == [1, 2, 1, 2, 1, 0, 1, 0]
    assert [round(job.ended_s) for job in simulation.measures.ended] == [2, 3, 4, 6]


# --- uniform jobs ------------------------------------------------------------------------------


def test_rows_are_those_of_the_paper_that_divide_the_pes() -> None:
    assert [case.jobs_at_a_time for case in uniform.cases(SETTING)] == [3, 6, 12, 24]
    assert [case.jobs_at_a_time for case in uniform.cases(changed(pes=1536))] == list(paper.UNIFORM)


@pytest.mark.parametrize("pes", [1, 2, 4, 25])
def test_pes_that_no_row_divides_are_refused(pes: int) -> None:
    with pytest.raises(SettingError, match=f"pes: {pes} is no multiple of 3"):
        uniform.cases(changed(pes=pes))


@pytest.mark.parametrize("jobs", [3, 24])
def test_uniform_jobs_come_near_to_a_perfect_schedule_and_never_beyond(jobs: int) -> None:
    case = next(case for case in uniform.cases(changed(seconds=60.0)) if case.jobs_at_a_time == jobs)
    row = uniform.measure(case)
    assert row.theta_opt == jobs / uniform.GENERATION_S
    assert 0.98 * row.theta_opt < row.theta <= row.theta_opt
    assert row.summary.jobs_ended == 3 * jobs
    assert row.eta == pytest.approx(1.0, abs=0.01)
    assert row.etas == pytest.approx([1.0] * 3, abs=0.01)
    assert row.generations_s == pytest.approx([uniform.GENERATION_S] * 3, rel=0.02)
    assert row.summary.utilisation == pytest.approx(1.0, abs=0.01)


def test_a_time_too_short_for_any_job_has_a_throughput_of_zero() -> None:
    row = uniform.measure(uniform.cases(changed(seconds=0.5))[0])
    assert (row.theta, row.eta, row.summary.jobs_ended) == (0.0, 0.0, 0)
    assert (row.etas, row.generations_s) == ([], [])


# --- priorities --------------------------------------------------------------------------------


def test_mean_volumes_go_by_priority_and_use_all_pes() -> None:
    rows = priorities.measure(changed(pes=96, seconds=900.0))
    assert [row.priority for row in rows] == list(paper.PRIORITIES)
    assert sum(row.assigned_volume for row in rows) == 96
    assert sum(row.fair_volume for row in rows) == pytest.approx(96.0)
    for row in rows:
        assert abs(row.assigned_volume - row.fair_volume) < 1.0
        assert row.jobs > 0
        assert row.mean_volume == pytest.approx(row.assigned_volume, rel=0.05, abs=0.05)


def test_each_stream_is_a_permutation_of_the_same_instances() -> None:
    streams = [priorities.specs_of(priority, 0, 1) for priority in (0.1, 1.0)]
    works = [[spec.work_s for spec in itertools.islice(stream, priorities.INSTANCES)] for stream in streams]
    assert works[0] != works[1]
    assert sorted(works[0]) == sorted(works[1])
    assert len(set(works[0])) == priorities.INSTANCES
    rows = priorities.measure(changed(pes=96, seconds=3600.0))
    assert all(len(row.responses_s) == min(row.jobs, priorities.INSTANCES) for row in rows)
    both = rows[0].responses_s.keys() & rows[-1].responses_s.keys()
    assert all(rows[-1].responses_s[one] <= rows[0].responses_s[one] + 1.0 for one in both)


def test_streams_of_which_no_job_has_ended_have_no_means() -> None:
    rows = priorities.measure(changed(seconds=0.01))
    assert {(row.jobs, row.mean_volume, row.mean_response_s) for row in rows} == {(0, None, None)}


def test_fewer_pes_than_jobs_at_a_time_are_refused() -> None:
    with pytest.raises(SettingError, match="pes: 8 are too few for 9 jobs"):
        priorities.measure(changed(pes=8))


# --- realistic arrivals ------------------------------------------------------------------------


def test_ten_variants_are_played_and_none_for_other_arrivals_where_there_is_a_stream() -> None:
    names = list(realistic.variants(SETTING))
    assert len(names) == 10
    assert names[-2:] == ["1/lambda = 2.5 s", "1/lambda = 10 s"]
    assert list(realistic.variants(changed(jobs=Jobs(stream="x.csv")))) == names[:-2]


def test_a_rate_of_the_papers_that_is_the_settings_own_is_not_played_twice() -> None:
    names = list(realistic.variants(changed(jobs=Jobs(interarrival_s=10.0))))
    assert names[-2:] == ["1/lambda = 2.5 s", "1/lambda = 5 s"]


def test_a_variant_differs_from_the_setting_in_what_its_name_says_alone() -> None:
    for variant in realistic.variants(SETTING).values():
        assert (
            msgspec.structs.replace(variant.setting, protocol=SETTING.protocol, jobs=SETTING.jobs) == SETTING
        )
    variants = realistic.variants(SETTING)
    assert variants["prefix sum"].setting == SETTING
    assert variants["reuse none"].setting.protocol.reuse.value == "none"
    assert variants["random walk h=inf"].setting.protocol.random_hops == -1
    assert variants["1/lambda = 2.5 s"].setting.jobs.interarrival_s == 2.5


def test_curves_of_a_variant_span_the_run() -> None:
    result = realistic.measure(realistic.variants(SETTING)["prefix sum"])
    assert result.interarrival_s == 5.0
    times_s, active = result.active_jobs
    assert times_s == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0]
    assert active[0] == 0.0
    assert 0.0 < max(active) <= result.summary.jobs_submitted
    assert set(result.utilisation) == set(realistic.WINDOWS_S)
    for latencies_ms in (result.root_ms, result.worker_ms):
        assert latencies_ms == sorted(latencies_ms)
    assert result.root_ms[-1] == result.summary.latencies[0].max_ms
    assert result.worker_ms[0] > 0.0


def test_parts_of_a_variant_add_up_to_the_whole() -> None:
    result = realistic.measure(realistic.variants(SETTING)["prefix sum"])
    assert len(result.parts.busy) == 9
    for values_ms in (result.parts.root_ms, result.parts.worker_ms, result.parts.balancing_ms):
        assert len(values_ms) == 10
    assert min(result.parts.root_ms) <= result.root_ms[200] <= max(result.parts.root_ms)
    total = sum(result.parts.created) / sum(result.parts.largest_volumes)
    assert total == pytest.approx(result.summary.creation_ratio_total)


def test_a_variant_without_any_job_has_empty_curves() -> None:
    result = realistic.measure(realistic.variants(changed(seconds=1e-6))["prefix sum"])
    assert (result.root_ms, result.worker_ms) == ([], [])
    assert result.summary.jobs_submitted == 0


# --- sizes -------------------------------------------------------------------------------------


def test_latencies_grow_with_the_number_of_pes_and_messages_of_a_pe_do_not(tmp_path: Path) -> None:
    sizes.run(tmp_path, [16, 256])
    table = msgspec.json.decode((tmp_path / "sizes.json").read_bytes())[0]
    small, large = (dict(zip(table["header"], row, strict=True)) for row in table["rows"])
    assert (small["m"], small["roots"]) == (16, large["roots"])
    assert small["root median"] < large["root median"] < 2 * small["root median"], "as log m: 4 and 8"
    assert large["messages per PE"] < small["messages per PE"]
