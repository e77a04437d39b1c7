"""Which jobs begin: best first, few at a time, nobody overtaken for ever, users by their weights."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mallob_py.service.turns import JobQueue, residents_of, window_of

AGEING_S = 60.0


def queue(pes: int = 4, window: int = 8, weights: dict[str, float] | None = None) -> JobQueue:
    return JobQueue(pes, AGEING_S, None if weights is None else lambda user: weights.get(user, 1.0), window)


def begun(jobs: JobQueue) -> list[int]:
    return list(iter(jobs.next, None))


def test_jobs_that_have_had_a_turn_do_not_keep_others_from_theirs_up_to_a_bound() -> None:
    jobs = queue(pes=1, window=2)
    for job in range(200):
        jobs.put(job, "u", 1.0, float(job))
    assert [jobs.next(), jobs.next(), jobs.next()] == [0, 1, None]
    for job in range(residents_of(1)):
        jobs.settle(job)
        assert jobs.next() == job + 2
        assert jobs.next() is None
    jobs.settle(residents_of(1))
    assert jobs.next() is None
    jobs.drop(0)
    jobs.settle(residents_of(1))
    assert jobs.next() == residents_of(1) + 2


def test_jobs_begin_in_the_order_in_which_they_came_up_to_the_window() -> None:
    jobs = queue()
    for job in range(20):
        jobs.put(job, "u", 1.0, since_s=float(job))
    assert begun(jobs) == list(range(8))
    assert len(jobs) == 12
    jobs.drop(3)
    assert begun(jobs) == [8]


def test_an_important_job_begins_at_once_behind_thousands_of_others() -> None:
    jobs = queue()
    for job in range(20_000):
        jobs.put(job, "u", 1.0, since_s=0.0)
    begun(jobs)
    jobs.put(20_000, "u", 10.0, since_s=1.0)
    assert begun(jobs) == [20_000]


def test_what_is_better_than_nobody_who_has_a_pe_waits() -> None:
    jobs = queue(pes=2, window=4)
    for job, priority in enumerate((8.0, 8.0, 1.0, 1.0)):
        jobs.put(job, "u", priority, since_s=0.0)
    assert begun(jobs) == [0, 1, 2, 3]
    jobs.put(4, "u", 4.0, since_s=0.0)
    assert begun(jobs) == []
    jobs.put(5, "u", 16.0, since_s=0.0)
    assert begun(jobs) == [5]


def test_an_interrupted_job_never_begins_and_leaves_its_place() -> None:
    jobs = queue(window=1, pes=1)
    for job in range(4):
        jobs.put(job, "u", 1.0, since_s=float(job))
    assert begun(jobs) == [0]
    jobs.drop(1)
    jobs.drop(0)
    assert begun(jobs) == [2]
    jobs.drop(77)
    jobs.drop(2)
    assert begun(jobs) == [3]
    jobs.drop(3)
    assert len(jobs) == 0
    assert not list(jobs.at_work())


def test_a_job_that_stands_still_takes_nobody_s_place() -> None:
    jobs = queue(window=2, pes=1)
    for job in range(6):
        jobs.put(job, "u", 1.0, since_s=float(job))
    assert begun(jobs) == [0, 1]
    jobs.set_aside(0)
    jobs.set_aside(1)
    assert begun(jobs) == [2, 3]
    jobs.bring_back(0)
    jobs.bring_back(0)
    jobs.drop(2)
    jobs.drop(1)
    assert begun(jobs) == []  # 0 and 3 are at work
    jobs.drop(0)
    assert begun(jobs) == [4]


def test_a_user_with_thousands_of_jobs_does_not_hold_up_the_others() -> None:
    jobs = queue(weights={})
    for job in range(5000):
        jobs.put(job, "many", 1.0, since_s=0.0)
    begun(jobs)
    jobs.put(5000, "few", 1.0, since_s=10.0)
    assert begun(jobs) == [5000]


def test_users_get_places_by_their_weights() -> None:
    jobs = queue(pes=4, window=40, weights={"heavy": 3.0})
    user_of = {}
    for job in range(400):
        user_of[job] = "heavy" if job % 2 else "light"
        jobs.put(job, user_of[job], 1.0, since_s=0.0)
    shares = Counter(user_of[job] for job in begun(jobs))
    assert 28 <= shares["heavy"] <= 32, shares


def test_nothing_is_kept_of_users_without_jobs() -> None:
    jobs = queue(weights={})
    for job in range(1000):
        jobs.put(job, f"user {job}", 1.0, since_s=float(job))
        assert jobs.next() == job
        jobs.drop(job)
    assert not jobs._lines
    assert len(jobs._heads) < 200


def test_a_waiting_job_is_not_overtaken_for_ever() -> None:
    jobs = queue(pes=1, window=1)
    jobs.put(0, "u", 1.0, since_s=0.0)
    assert jobs.next() == 0
    jobs.put(1, "u", 1.0, since_s=0.0)
    number, now_s = 1, 0.0
    at_work = [0]
    while 1 not in at_work:
        now_s += 1.0
        number += 1
        jobs.put(number, "u", 8.0, since_s=now_s)
        jobs.drop(at_work.pop(0))
        at_work += begun(jobs)
        assert now_s < 4 * AGEING_S


def test_the_best_of_those_that_wait_can_be_told() -> None:
    jobs = queue(pes=1, window=1)
    for job in range(100):
        jobs.put(job, "u", 1.0 + job, since_s=0.0)
    assert begun(jobs) == [99]
    first = jobs.first(10)
    assert first[0] == 98
    assert len(first) == 10


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_each_job_begins_once_in_the_order_of_merit_and_few_are_at_work(seed: int, with_users: bool) -> None:
    choose = random.Random(seed)
    pes = choose.randint(1, 5)
    jobs = JobQueue(pes, AGEING_S, (lambda user: 1.0 + len(user)) if with_users else None)
    waiting: set[int] = set()
    at_work: set[int] = set()
    number = 0
    for step in range(300):
        deed = choose.random()
        if deed < 0.6:
            jobs.put(number, "u" * choose.randint(1, 3), 1.0, since_s=float(step))
            waiting.add(number)
            number += 1
        elif deed < 0.9 and at_work:
            over = choose.choice(sorted(at_work))
            at_work.remove(over)
            jobs.drop(over)
        elif waiting:
            over = choose.choice(sorted(waiting))
            waiting.remove(over)
            jobs.drop(over)
        for job in begun(jobs):
            waiting.remove(job)
            at_work.add(job)
        assert set(jobs.at_work()) == at_work
        assert len(jobs) == len(waiting)
        assert len(at_work) >= min(window_of(pes), len(waiting) + len(at_work))
        assert with_users or len(at_work) <= window_of(pes)
