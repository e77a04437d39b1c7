"""Definitions of the kinds of latencies, and of the worker creation ratio."""

import pytest

from mallob_py.service.telemetry.report import CreationRatio, creation_ratio, tells_latency


@pytest.mark.parametrize(
    ("jobs", "ratio"),
    [
        ([(6, 4), (1, 1), (9, 3)], CreationRatio(median=1.5, max=3.0, total=2.0)),
        # the median of two values is their mean
        ([(1, 1), (2, 1)], CreationRatio(median=1.5, max=2.0, total=1.5)),
        ([(0, 0), (2, 1)], CreationRatio(2.0, 2.0, 2.0)),
        ([(0, 0)], CreationRatio(None, None, None)),
        # the first job ended before it got a worker
        ([(0, 2), (2, 2)], CreationRatio(median=0.5, max=1.0, total=0.5)),
    ],
)
def test_the_creation_ratio_of_a_job_is_created_workers_over_its_largest_volume(
    jobs: list[tuple[int, int]], ratio: CreationRatio
) -> None:
    assert creation_ratio(jobs) == ratio


def test_the_adoption_of_a_root_is_told_as_scheduled() -> None:
    assert tells_latency("scheduled", {"job": 1, "root": 0})
    assert not tells_latency("adopted", {"job": 1, "index": 0})
    assert tells_latency("adopted", {"job": 1, "index": 1})
    assert not tells_latency("busy", {})
