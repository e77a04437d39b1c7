"""Figures with one definition: what counts as a latency of its kind, and the worker creation ratio."""

from __future__ import annotations

from mallob_py.service.telemetry.report import CreationRatio, creation_ratio, tells_latency


def test_the_creation_ratio_is_created_workers_over_the_largest_volume() -> None:
    assert creation_ratio([(6, 4), (1, 1), (9, 3)]) == CreationRatio(median=1.5, max=3.0, total=2.0)


def test_of_an_even_number_of_jobs_the_median_lies_between_the_middle_two() -> None:
    assert creation_ratio([(1, 1), (2, 1)]).median == 1.5


def test_a_job_that_never_had_a_volume_has_no_ratio() -> None:
    assert creation_ratio([(0, 0), (2, 1)]) == CreationRatio(2.0, 2.0, 2.0)
    assert creation_ratio([(0, 0)]) == CreationRatio(None, None, None)


def test_a_job_that_ended_before_it_got_a_worker_has_the_ratio_0() -> None:
    assert creation_ratio([(0, 2), (2, 2)]) == CreationRatio(median=0.5, max=1.0, total=0.5)


def test_the_adoption_of_a_root_is_told_as_scheduled() -> None:
    assert tells_latency("scheduled", {"job": 1, "root": 0})
    assert not tells_latency("adopted", {"job": 1, "index": 0})
    assert tells_latency("adopted", {"job": 1, "index": 1})
    assert not tells_latency("busy", {})
