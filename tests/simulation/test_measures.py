"""Measures of constructed runs whose numbers are known."""

import pytest

from mallob_py.service.telemetry.report import CreationRatio
from mallob_py.simulation.run import Measures


def adopted(
    measures: Measures,
    now: float,
    rank: int,
    job: int,
    index: int,
    created: bool = True,
    latency_s: float = 0.0,
) -> None:
    fields = {"job": job, "index": index, "latency_s": latency_s, "created": created}
    measures.observe(now, rank, "adopted", fields)


def submitted(measures: Measures, now: float, job: int) -> None:
    measures.observe(now, 0, "submitted", {"job": job, "priority": 1.0, "demand": 1})


def ended(measures: Measures, now: float, job: int, max_volume: int = 1) -> None:
    fields = {
        "job": job,
        "outcome": "result",
        "response_s": now,
        "wallclock_s": now - 1.0,
        "pe_s": 2.0 * now,
        "max_volume": max_volume,
    }
    measures.observe(now, 0, "ended", fields)


def busy(measures: Measures, rank: int, since_s: float, until_s: float | None = None) -> None:
    measures.observe(since_s, rank, "busy", {})
    if until_s is not None:
        measures.observe(until_s, rank, "idle", {})


# --- utilisation -------------------------------------------------------------------------------


def test_a_pes_busy_share_is_the_sum_of_its_busy_times_over_the_run() -> None:
    measures = Measures(3)
    busy(measures, 0, 1.0, 3.0)
    busy(measures, 0, 4.0, 5.0)
    busy(measures, 1, 6.0)
    measures.close(10.0)
    assert measures.busy_shares(10.0) == pytest.approx([0.3, 0.4, 0.0])


def test_the_mean_of_the_utilisation_is_the_mean_busy_share() -> None:
    measures = Measures(2)
    busy(measures, 0, 0.0, 5.0)
    busy(measures, 1, 5.0, 7.5)
    measures.close(10.0)
    times_s, shares = measures.utilisation(0.1, 0.0, 10.05)
    assert len(times_s) == len(shares) == 100
    assert sum(shares) / len(shares) == pytest.approx(7.5 / 20)


def test_utilisation_is_a_moving_average_that_ends_at_its_time() -> None:
    measures = Measures(2)
    busy(measures, 0, 2.0, 4.0)
    measures.close(10.0)
    times_s, shares = measures.utilisation(1.0, 0.0, 10.0)
    at = dict(zip((round(time_s, 1) for time_s in times_s), shares, strict=True))
    assert times_s[0] == pytest.approx(1.0)
    assert [at[time_s] for time_s in (2.0, 2.5, 3.0, 4.0, 4.5, 5.0)] == pytest.approx(
        [0.0, 0.25, 0.5, 0.5, 0.25, 0.0]
    )


def test_utilisation_counts_from_its_first_instant_on() -> None:
    measures = Measures(1)
    busy(measures, 0, 5.0, 10.0)
    measures.close(10.0)
    _, shares = measures.utilisation(1.0, 5.0, 10.0)
    assert shares == pytest.approx([1.0] * len(shares))


def test_a_window_longer_than_the_run_gives_no_utilisation() -> None:
    measures = Measures(1)
    busy(measures, 0, 0.0, 1.0)
    assert measures.utilisation(60.0, 0.0, 10.0) == ([], [])


# --- work --------------------------------------------------------------------------------------


def test_a_jobs_workers_have_run_from_the_start_of_their_processes_until_their_pes_turned_idle() -> None:
    measures = Measures(3)
    for rank, started_s in ((0, 1.5), (1, 3.0), (2, 4.0)):
        busy(measures, rank, 1.0)
        measures.observe(started_s, rank, "started", {"job": 1, "index": rank, "latency_s": 0.0})
    measures.observe(5.0, 0, "idle", {})
    measures.observe(6.0, 1, "idle", {})
    measures.close(10.0)
    assert measures.worker_s[1] == pytest.approx(3.5 + 3.0 + 6.0)


def test_a_worker_whose_process_never_started_has_not_run() -> None:
    measures = Measures(1)
    busy(measures, 0, 1.0, 2.0)
    measures.close(3.0)
    assert sum(measures.worker_s.values()) == 0.0


def test_active_jobs_go_up_and_down() -> None:
    measures = Measures(1)
    submitted(measures, 1.0, 1)
    submitted(measures, 2.0, 2)
    ended(measures, 3.0, 1)
    assert measures.active_jobs == [(1.0, 1), (2.0, 2), (3.0, 1)]


def test_what_a_jobs_end_says_is_kept() -> None:
    measures = Measures(1)
    ended(measures, 4.0, 7, max_volume=3)
    (job,) = measures.ended
    assert (job.job, job.ended_s, job.outcome) == (7, 4.0, "result")
    assert (job.response_s, job.wallclock_s, job.pe_s, job.max_volume) == (4.0, 3.0, 8.0, 3)


# --- reuse -------------------------------------------------------------------------------------


def test_the_creation_ratio_is_created_workers_over_the_largest_volume() -> None:
    measures = Measures(4)
    for rank in range(4):
        adopted(measures, 1.0, rank, job=1, index=rank)
    adopted(measures, 2.0, 3, job=1, index=2)
    adopted(measures, 2.5, 2, job=1, index=3, created=False)
    ended(measures, 3.0, 1, max_volume=4)
    assert measures.creation_ratio().median == 5 / 4


def test_a_worker_created_again_on_its_pe_counts_again_but_on_one_distinct_pe() -> None:
    measures = Measures(2)
    adopted(measures, 1.0, 0, job=1, index=0)
    adopted(measures, 2.0, 0, job=1, index=0)
    ended(measures, 3.0, 1)
    assert measures.creation_ratio().total == 2.0
    assert measures.shares_created_on_at_most()[0] == 1.0


def test_the_total_ratio_weighs_jobs_by_volume_and_leaves_out_those_that_have_not_ended() -> None:
    measures = Measures(4)
    adopted(measures, 1.0, 0, job=1, index=0)
    adopted(measures, 1.0, 1, job=1, index=0)
    for rank in range(3):
        adopted(measures, 2.0, rank, job=2, index=rank)
    adopted(measures, 2.0, 3, job=3, index=0)
    ended(measures, 3.0, 1)
    ended(measures, 3.0, 2, max_volume=3)
    assert measures.creation_ratio() == CreationRatio(median=1.5, max=2.0, total=5 / 4)


def test_workers_are_told_apart_by_the_number_of_pes_that_they_were_created_on() -> None:
    measures = Measures(30)
    adopted(measures, 1.0, 0, job=1, index=0)
    for rank in (1, 2):
        adopted(measures, 1.0, rank, job=1, index=1)
    for rank in range(5):
        adopted(measures, 1.0, rank, job=1, index=2)
    for rank in range(26):
        adopted(measures, 1.0, rank, job=1, index=3)
    assert measures.shares_created_on_at_most() == [0.0] * 5, "nothing is known before the job's end"
    ended(measures, 2.0, 1, max_volume=4)
    assert measures.shares_created_on_at_most() == [0.25, 0.5, 0.75, 0.75, 0.75]


def test_a_context_switch_is_a_pes_change_to_another_job() -> None:
    measures = Measures(2)
    for job in (1, 1, 2, 2, 1):
        adopted(measures, 1.0, 0, job=job, index=1, created=False)
    assert measures.context_switches == [3, 0]


# --- latencies ---------------------------------------------------------------------------------


def test_latencies_are_in_milliseconds_and_a_root_is_no_further_worker() -> None:
    measures = Measures(1)
    measures.observe(1.0, 0, "scheduled", {"job": 1, "root": 0, "latency_s": 0.25})
    measures.observe(1.0, 0, "balanced", {"job": 1, "latency_s": 0.5})
    for index, latency_s in enumerate((9.0, 0.001, 0.002, 0.004)):
        adopted(measures, 1.0, 0, job=1, index=index, latency_s=latency_s)
    assert measures.latency("scheduled").median_ms == 250.0
    assert measures.latency("balanced").max_ms == 500.0
    workers = measures.latency("adopted")
    assert (workers.count, workers.median_ms, workers.max_ms) == (3, 2.0, 4.0)


# --- runs without jobs -------------------------------------------------------------------------


def test_a_run_without_any_event_has_empty_measures() -> None:
    measures = Measures(2)
    measures.close(10.0)
    assert measures.busy_shares(10.0) == [0.0, 0.0]
    _, shares = measures.utilisation(1.0, 0.0, 10.0)
    assert set(shares) == {0.0}
    assert measures.latency("adopted").count == 0
    assert measures.creation_ratio() == CreationRatio(None, None, None)
    assert measures.shares_created_on_at_most() == [0.0] * 5
