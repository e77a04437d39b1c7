"""The recorded course of a job: its content, and its bounds."""

from typing import Any

import pytest

from mallob_py.service.telemetry.status import JobInterim, JobStatus, ServiceStatus
from mallob_py.web import timelines
from mallob_py.web.timelines import STEPS_MAX, InterimStep, Timelines, VolumeStep
from mallob_py.web.views import History


def note(kept: Timelines, time_s: float, *jobs: JobStatus) -> None:
    status = ServiceStatus(time_s, 1, 8, 8, jobs)
    kept.note(status, {job.id: job.volume for job in jobs})


def job(number: int, volume: int, state: str = "running", **fields: Any) -> JobStatus:
    return JobStatus(number, "u", "n", state, volume=volume, demand=8, **fields)


def test_each_change_of_volume_and_state_is_a_step_and_the_end_is_the_last_one() -> None:
    kept = Timelines()
    note(kept, 1.0, job(1, 0, "queued"))
    assert kept.of(1).volumes == [], "its course begins with its first worker"
    note(kept, 2.0, job(1, 4))
    note(kept, 3.0, job(1, 4))
    note(kept, 4.0, job(1, 0, "resting", share=0.5))
    note(kept, 6.0)
    note(kept, 7.0)
    steps = [VolumeStep(2.0, 4, "running"), VolumeStep(4.0, 0, "resting"), VolumeStep(6.0, 0, "")]
    assert kept.of(1).volumes == steps
    assert kept.of(2).volumes == []


def test_interim_results_have_their_times() -> None:
    kept = Timelines()
    offers = [(None, 3), (9, 3), (9, 3), (7, 5)]
    for time_s, (value, bound) in enumerate(offers, 1):
        note(kept, float(time_s), job(1, 1, interim=JobInterim("cost", True, value, bound)))
    course = kept.of(1)
    assert course.interim == [InterimStep(1.0, None, 3), InterimStep(2.0, 9, 3), InterimStep(4.0, 7, 5)]
    assert (course.label, course.minimizes) == ("cost", True)
    note(kept, 9.0, job(2, 1, interim=JobInterim("", False, 4)))
    assert kept.of(2).interim == [InterimStep(9.0, None, None)], "a value without a label is not shown"


def test_a_long_course_is_thinned_and_keeps_its_first_and_last_step() -> None:
    kept = Timelines()
    for time_s in range(5 * STEPS_MAX):
        note(kept, float(time_s), job(1, 1 + time_s % 7))
    steps = kept.of(1).volumes
    assert STEPS_MAX / 2 <= len(steps) <= STEPS_MAX
    assert (steps[0].time, steps[-1].time) == (0.0, 5.0 * STEPS_MAX - 1)
    assert [step.time for step in steps] == sorted(step.time for step in steps)


def test_of_many_jobs_the_longest_unseen_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "JOBS_MAX", 3)
    kept = Timelines()
    note(kept, 1.0, job(1, 1), job(2, 1))
    for number in (3, 4, 5):
        note(kept, float(number), job(1, 1), job(number, 1))
    assert [number for number in range(6) if kept.of(number).volumes] == [1, 4, 5]


def test_the_history_keeps_the_courses() -> None:
    kept = History()
    kept.note(ServiceStatus(1.0, 1, 8, 8, (job(1, 2),)))
    assert kept.timelines.of(1).volumes == [VolumeStep(1.0, 2, "running")]
