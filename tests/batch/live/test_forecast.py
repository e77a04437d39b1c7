"""Forecasts of a waiting job's start, from the times that jobs request."""

import pytest

from mallob_py.batch.job import Job, Kind
from mallob_py.batch.live.forecast import start_of
from mallob_py.batch.live.scheduler import LiveScheduler
from mallob_py.batch.live.script import ANY_NUMBER
from mallob_py.batch.registry import policy_for


def rigid(number: int, nodes: int, required_s: float) -> Job:
    return Job(number, 0.0, nodes, required_s, Kind.RIGID, nodes, nodes, ANY_NUMBER, number)


def scheduler_of(policy: str, slots: int, *jobs: Job) -> LiveScheduler:
    scheduler = LiveScheduler(policy_for(policy), 0)
    scheduler.offer(range(slots))
    for job in jobs:
        scheduler.submit(job)
    scheduler.decide(0.0)
    scheduler.effects.clear()
    return scheduler


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_the_end_of_those_that_run_is_awaited(policy: str) -> None:
    scheduler = scheduler_of(policy, 4, rigid(1, 3, 100.0), rigid(2, 2, 50.0), rigid(3, 4, 10.0))
    assert set(scheduler.running) == {1}
    assert start_of(2, scheduler, 30.0) == 100.0
    assert start_of(3, scheduler, 30.0) == 150.0


def test_who_may_overtake_starts_earlier() -> None:
    jobs = rigid(1, 3, 100.0), rigid(2, 4, 50.0), rigid(3, 1, 200.0), rigid(4, 1, 20.0)
    assert start_of(3, scheduler_of("fcfs", 4, *jobs), 0.0) == 150.0
    easy = scheduler_of("easy", 4, *jobs)
    assert set(easy.running) == {1, 4}
    assert start_of(2, easy, 0.0) == 100.0


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_jobs_that_end_together_are_awaited_together(policy: str) -> None:
    scheduler = scheduler_of(policy, 16, *(rigid(number, 1, 100.0) for number in range(1, 17)))
    scheduler.submit(rigid(17, 16, 10.0))
    assert start_of(17, scheduler, 0.0) == 100.0


def test_nothing_of_the_scheduler_changes() -> None:
    scheduler = scheduler_of("easy", 4, rigid(1, 4, 100.0), rigid(2, 4, 50.0))
    for _ in range(2):
        assert start_of(2, scheduler, 0.0) == 100.0
    assert (set(scheduler.running), [job.id for job in scheduler.waiting]) == ({1}, [2])
    assert not scheduler.effects


def test_who_needs_more_than_there_is_has_no_start() -> None:
    scheduler = scheduler_of("easy", 4, rigid(1, 4, 100.0), rigid(2, 8, 50.0))
    assert start_of(2, scheduler, 0.0) is None


def test_malleable_jobs_shrink_for_it() -> None:
    job = Job(1, 0.0, 4, 1000.0, Kind.MALLEABLE, 1, 4, ANY_NUMBER, 1)
    scheduler = scheduler_of("elastic", 4, job)
    scheduler.ready(1)
    scheduler.submit(rigid(2, 2, 10.0))
    started_s = start_of(2, scheduler, 5.0)
    assert started_s is not None
    assert started_s <= 1000.0
