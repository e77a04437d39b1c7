"""Simulated runs: a seed always gives the same run, invariants hold at rest, and summary and report agree."""

import io
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

from mallob_py.protocol.config import Config, Matching, Reuse
from mallob_py.service.telemetry.event_log import read_events
from mallob_py.service.telemetry.report import CREATION_RATIO_MEANS, Report, make_report
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.run import LOG_NAME, Simulation, SimulationLog, Summary, describe, open_log
from mallob_py.simulation.setting import Faults, Jobs, JobSpec, Setting, job_stream

SMALL = Setting(
    pes=12,
    pes_per_host=4,
    seconds=20.0,
    jobs=Jobs(interarrival_s=4.0, wallclock_mean_s=5.0, wallclock_deviation_s=3.0, wallclock_max_s=10.0),
)


def one_job(**changes: float) -> JobSpec:
    job = JobSpec(arrival_s=1.0, client=0, name="one", priority=1.0, wallclock_limit_s=0.0, max_demand=0)
    return msgspec.structs.replace(job, **changes)


def played(setting: Setting, *specs: JobSpec, log: SimulationLog | None = None) -> Simulation:
    """Simulate these jobs or, if none are given, the stream of jobs that the setting describes."""
    simulation = Simulation(setting, log)
    simulation.submit_all(specs or job_stream(setting.jobs, setting.pes, setting.seconds, setting.seed))
    simulation.play()
    return simulation


def logged(setting: Setting) -> bytes:
    file = io.BytesIO()
    played(setting, log=SimulationLog(file))
    return file.getvalue()


def reported(setting: Setting, folder: Path) -> tuple[Report, Summary]:
    simulation = played(setting, log=open_log(folder))
    return make_report(read_events(folder)), simulation.summary()


# --- replay ------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_log_to_the_byte_and_another_seed_another() -> None:
    first = logged(SMALL)
    assert first.count(b"\n") > 200
    assert logged(SMALL) == first
    assert logged(msgspec.structs.replace(SMALL, seed=1)) != first


def test_faults_are_replayed_too() -> None:
    faults = Faults(slow_pes=0.3, slow_factor=5.0, delayed_messages=0.05)
    setting = msgspec.structs.replace(SMALL, faults=faults)
    assert logged(setting) == logged(setting) != logged(SMALL)


def test_a_log_does_not_change_the_run() -> None:
    with_log, without = played(SMALL, log=SimulationLog(io.BytesIO())), played(SMALL)
    assert with_log.cluster.messages_sent == without.cluster.messages_sent
    assert with_log.measures.ended == without.measures.ended


# --- soundness ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"capacities": (4, 2, 1)},
        {"faults": Faults(slow_pes=0.2, slow_factor=10.0, delayed_messages=0.1, delay_ms=20.0)},
        {"protocol": Config(reuse=Reuse.NONE)},
        {"protocol": Config(matcher=Matching.ROUTING_TREE, random_hops=10)},
    ],
    ids=["plain", "capacities", "faults", "no reuse", "random walks"],
)
def test_the_invariants_hold_once_a_run_has_come_to_rest(changes: dict[str, object]) -> None:
    simulation = Simulation(msgspec.structs.replace(SMALL, **changes))
    simulation.submit_all(job_stream(SMALL.jobs, SMALL.pes, SMALL.seconds, SMALL.seed))
    simulation.play()
    assert len(simulation.measures.ended) >= 5
    simulation.cluster.settle()
    check_invariants(simulation.cluster)


def test_every_job_has_ended_once_when_the_stream_has_been_over_for_long() -> None:
    specs = job_stream(SMALL.jobs, SMALL.pes, 10.0, 0)
    simulation = played(msgspec.structs.replace(SMALL, seconds=600.0), *specs)
    assert sorted(job.job for job in simulation.measures.ended) == list(range(1, len(specs) + 1))
    assert {job.outcome for job in simulation.measures.ended} == {"result", "wallclock-limit"}


# --- work of jobs ------------------------------------------------------------------------------


def test_a_job_is_solved_when_its_work_is_done() -> None:
    simulation = played(SMALL, one_job(work_s=6.0))
    (job,) = simulation.measures.ended
    assert job.outcome == "result"
    assert job.wallclock_s == pytest.approx(6.0, abs=0.05)


def test_a_job_whose_speed_is_its_volume_is_done_so_much_sooner() -> None:
    simulation = played(SMALL, one_job(work_s=60.0, speedup=1.0))
    (job,) = simulation.measures.ended
    assert job.max_volume == 12
    assert job.wallclock_s == pytest.approx(5.0, abs=0.05)


def test_a_job_that_loses_half_its_volume_halfway_takes_longer_by_that() -> None:
    """The job needs 60 PE-seconds on 12 PEs; from 3 s on, another job of equal priority has six of the
    PEs.
    """
    specs = [one_job(work_s=60.0, speedup=1.0), one_job(arrival_s=4.0, client=1)]
    simulation = played(SMALL, *specs)
    (job,) = simulation.measures.ended
    assert job.wallclock_s == pytest.approx(3.0 + 24.0 / 6.0, abs=0.05)


def test_a_job_without_work_runs_until_its_limits() -> None:
    specs = [one_job(wallclock_limit_s=4.0), one_job(cpu_limit_s=36.0, arrival_s=6.0)]
    wallclock, cpu = played(SMALL, *specs).measures.ended
    assert (wallclock.outcome, cpu.outcome) == ("wallclock-limit", "cpu-limit")
    assert wallclock.wallclock_s == pytest.approx(4.0, abs=0.05)
    assert cpu.pe_s == pytest.approx(36.0, rel=0.05)


def test_one_is_told_of_each_end_and_may_submit_the_next_job_then() -> None:
    simulation = Simulation(SMALL)
    told: list[int] = []

    def go_on(job: int) -> None:
        told.append(job)
        if job < 3:
            simulation.submit(one_job(work_s=2.0))

    simulation.on_job_ended = go_on
    simulation.submit_all([one_job(work_s=2.0)])
    simulation.play()
    assert told == [1, 2, 3]


# --- progress ----------------------------------------------------------------------------------


def test_time_of_processes_that_go_on_after_a_rest_is_measured() -> None:
    simulation = played(msgspec.structs.replace(SMALL, pes=1, seconds=21.0), one_job(), one_job())
    assert sum(simulation.measures.worker_s.values()) == pytest.approx(20.0, rel=0.02)


def test_brief_jobs_of_one_client_leave_the_long_jobs_of_another_client_their_share() -> None:
    simulation = Simulation(msgspec.structs.replace(SMALL, pes=2, seconds=31.0))
    brief = one_job(client=1, work_s=0.1, max_demand=1)
    simulation.submit_all([one_job(max_demand=1)] * 2 + [msgspec.structs.replace(brief, arrival_s=2.0)] * 2)
    simulation.on_job_ended = lambda job: simulation.submit(brief)
    simulation.play()
    assert sum(simulation.measures.worker_s[job] for job in (1, 2)) > 0.4 * 60.0


@pytest.mark.parametrize("seconds", [20.0, 0.1, 3939.7474446861597])
def test_progress_goes_up_to_exactly_the_end(seconds: float) -> None:
    heard: list[float] = []
    Simulation(Setting(pes=1, seconds=seconds)).play(lambda now, _messages: heard.append(now))
    assert heard == sorted(heard)
    assert heard[-1] == seconds


# --- summary and report ------------------------------------------------------------------------


@pytest.mark.parametrize("capacities", [(1,), (4, 2)])
def test_the_report_of_a_runs_log_agrees_with_its_summary(
    capacities: tuple[int, ...], tmp_path: Path
) -> None:
    setting = msgspec.structs.replace(SMALL, capacities=capacities)
    report, summary = reported(setting, tmp_path)
    assert report.mode == "simulated"
    assert report.pes == summary.pes == 12
    assert report.ranks == len(setting.rank_capacities() or range(12))
    assert report.duration_s == pytest.approx(summary.seconds)
    assert len(report.jobs) == summary.jobs_submitted
    over = [job for job in report.jobs if job.outcome != "unfinished"]
    assert len(over) == summary.jobs_ended
    assert fmean(job.response_s or 0.0 for job in over) == pytest.approx(summary.response_mean_s)
    latencies = {row.kind: row for row in report.latencies}
    assert latencies["scheduled"] == summary.latencies[0]
    assert latencies["balanced"] == summary.latencies[1]
    assert latencies["adopted"] == summary.latencies[2]
    assert summary.latencies[2].count > 0
    assert (
        report.reuse.creation_ratio_median,
        report.reuse.creation_ratio_max,
        report.reuse.creation_ratio_total,
    ) == (summary.creation_ratio_median, summary.creation_ratio_max, summary.creation_ratio_total)


def test_report_and_measures_agree_on_utilisation_and_created_workers(tmp_path: Path) -> None:
    simulation = played(SMALL, log=open_log(tmp_path))
    report = make_report(read_events(tmp_path))
    shares = simulation.measures.busy_shares(SMALL.seconds)
    assert report.utilisation.mean == pytest.approx(fmean(shares), abs=1e-4)
    created = {job.job: job.created for job in simulation.measures.ended}
    assert {job.job: job.created_workers for job in report.jobs if job.job in created} == created
    assert sum(created.values()) > 10


def test_the_log_is_on_the_disk_when_the_run_is_over(tmp_path: Path) -> None:
    """The log must be written although it is too small to fill a buffer."""
    simulation = played(Setting(pes=2, seconds=2.0), one_job(), log=open_log(tmp_path / "new" / "folder"))
    lines = (tmp_path / "new" / "folder" / LOG_NAME).read_bytes().splitlines()
    assert msgspec.json.decode(lines[0])["event"] == "start"
    assert msgspec.json.decode(lines[-1]) == {"t": 2.0, "rank": 0, "event": "stop"}
    assert simulation.played_s > 0.0


class _Hesitant(io.BytesIO):
    """A disk that takes a few bytes at a time."""

    def write(self, data: object) -> int:
        return super().write(bytes(data)[:7])


def test_a_log_is_whole_where_the_disk_takes_only_parts_of_it() -> None:
    slow, fast = _Hesitant(), io.BytesIO()
    for file in (slow, fast):
        played(Setting(pes=2, seconds=2.0), one_job(), log=SimulationLog(file))
    assert slow.getvalue() == fast.getvalue()


@pytest.mark.parametrize("seconds", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("pes", [1, 5])
def test_a_run_without_any_job_can_be_summarised(seconds: float, pes: int, tmp_path: Path) -> None:
    setting = Setting(pes=pes, seconds=seconds, jobs=Jobs(interarrival_s=1e9))
    report, summary = reported(setting, tmp_path)
    assert (summary.jobs_submitted, summary.jobs_ended, len(report.jobs)) == (0, 0, 0)
    assert summary.response_mean_s is summary.creation_ratio_median is summary.creation_ratio_max is None
    assert not summary.utilisation
    assert summary.busy_median == 0.0
    assert [row.count for row in summary.latencies] == [0, 0, 0]
    assert describe(summary).startswith(f"{pes} PEs, {seconds:g} s in virtual time, seed 0")


def test_one_job_on_one_pe_keeps_it_busy_from_its_arrival_on() -> None:
    summary = played(Setting(pes=1, seconds=10.0), one_job()).summary()
    assert summary.busy_median == pytest.approx(0.9, abs=0.001)
    assert summary.utilisation == pytest.approx(1.0, abs=0.01)
    assert summary.context_switches_median == 1


def test_utilisation_leaves_out_the_first_tenth_or_minute() -> None:
    """The job comes at 60 s: at a tenth of 600 s, or at the first minute of 1000 s."""
    for seconds in (600.0, 1000.0):
        summary = played(Setting(pes=1, seconds=seconds), one_job(arrival_s=60.0)).summary()
        assert summary.utilisation == pytest.approx(1.0, abs=0.001)
    summary = played(Setting(pes=1, seconds=600.0), one_job(arrival_s=300.0)).summary()
    assert summary.utilisation == pytest.approx(300 / 540, abs=0.002)


def test_a_summary_as_text_has_all_its_numbers() -> None:
    summary = played(SMALL).summary()
    text = describe(summary)
    assert f"jobs submitted                    {summary.jobs_submitted}\n" in text
    assert f"messages                          {summary.messages}\n" in text
    assert f"utilisation                       {summary.utilisation:.4f}\n" in text
    for name in ("a job's root is placed", "a job has a volume", "a further worker is placed"):
        assert name in text
    assert CREATION_RATIO_MEANS in text
