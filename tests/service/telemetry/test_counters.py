"""Counters of replies and of times."""

from mallob_py.service.jobs.reply import JobStatistics
from mallob_py.service.telemetry.status import BOUNDS_S, Counters, Totals, sum_of


def test_a_time_falls_into_the_bucket_of_the_first_bound_that_is_not_below_it() -> None:
    counters = Counters()
    for total_s in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1] * 2):
        counters.ended("result", JobStatistics(total_s=total_s, max_volume=1))
    histogram = counters.totals().times["total"]
    assert histogram.counts[:2] == (2, 1)
    assert histogram.counts[-1] == 1
    assert sum(histogram.counts) == 4
    assert histogram.sum_s == BOUNDS_S[0] * 2.01 + BOUNDS_S[-1] * 2


def test_a_job_without_a_worker_has_no_latency() -> None:
    counters = Counters()
    counters.ended("wallclock-limit", JobStatistics(total_s=1.0))
    assert set(counters.totals().times) == {"total", "parsing"}


def test_totals_of_clients_add_up() -> None:
    one, two = Counters(), Counters()
    one.ended("result", JobStatistics(total_s=1.0))
    two.ended("result", JobStatistics(total_s=2.0))
    two.replied("refused")
    totals = sum_of([one.totals(), two.totals(), Totals()])
    assert totals.replies == {"result": 2, "refused": 1}
    assert sum(totals.times["total"].counts) == 2
    assert totals.times["total"].sum_s == 3.0
