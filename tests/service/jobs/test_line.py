"""Which jobs begin: best first, few at a time, no job overtaken for ever, users by their weights."""

import json
import math
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from reachable import reachable

from mallob_py.protocol.config import again_of, window_of
from mallob_py.protocol.job_life import Happening, JobState
from mallob_py.service.jobs.job_file import InputUse, JobFile, parse_job
from mallob_py.service.jobs.line import Line, residents_of
from mallob_py.service.jobs.live import LiveJob, LiveJobs

AGEING_S = 60.0


class Rules:
    """Users' weights and limits; any other user has weight 1 and no limit."""

    def __init__(self, weights: dict[str, float] | None = None, limits: dict[str, int] | None = None) -> None:
        self._weights = weights or {}
        self.limits = limits or {}

    def weight_of(self, user: str) -> float:
        return self._weights.get(user, 1.0)

    def limit_of(self, user: str) -> float:
        return self.limits.get(user, math.inf)


class Jobs:
    """A line of numbered jobs, which pass through their states as in a service."""

    def __init__(
        self, pes: int, window: int = 0, residents_per_pe: int | None = None, rules: Rules | None = None
    ) -> None:
        self.jobs = LiveJobs()
        self.line = Line(self.jobs, rules or Rules(), pes, AGEING_S, window, residents_per_pe)

    def __len__(self) -> int:
        return len(self.line)

    def put(self, number: int, user: str, priority: float, since_s: float) -> None:
        content = {"user": user, "name": str(number), "application": "NOOP", "priority": priority}
        file = parse_job(json.dumps(content).encode(), {"NOOP": InputUse.NONE})
        assert isinstance(file, JobFile)
        self.jobs.add(LiveJob(number, file, since_s, since_s))
        self.jobs.happens(self.jobs[number], Happening.FREED)
        self.line.put(self.jobs[number])

    def next(self) -> int | None:
        return None if (job := self.line.next()) is None else job.id

    def next_set_back(self, now: float) -> int | None:
        return None if (job := self.line.next_set_back(now)) is None else job.id

    def put_again(self, number: int, had_s: float, lost_s: float) -> None:
        job = self.jobs[number]
        for what in (Happening.SUBMITTED, Happening.GIVEN_UP):
            self.jobs.happens(job, what)
        self.line.put_again(job, had_s, lost_s)

    def drop(self, number: int) -> None:
        if (job := self.jobs.get(number)) is not None:
            self.jobs.happens(job, Happening.ANSWERED)
            self.line.drop(job)
            self.jobs.remove(number)

    def claim(self, number: int) -> bool:
        return self.line.claim(self.jobs[number])

    def settle(self, number: int) -> None:
        self.line.settle(self.jobs[number])

    def set_aside(self, number: int) -> None:
        self.line.set_aside(self.jobs[number])

    def bring_back(self, number: int) -> None:
        self.line.bring_back(self.jobs[number])

    def lasting_before(self, number: int) -> int:
        return self.line.lasting_before(self.jobs[number])

    def waiting(self) -> set[int]:
        at_work = set(self.line.at_work())
        return {number for number in self.jobs if number not in at_work}


def queue(pes: int = 4, window: int = 8, weights: dict[str, float] | None = None) -> Jobs:
    return Jobs(pes, window, rules=Rules(weights))


def begun(jobs: Jobs) -> list[int]:
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
    assert jobs.next() == residents_of(1) + 2


def test_few_pes_have_as_many_residents_as_some_more() -> None:
    assert [residents_of(pes) for pes in (1, 2, 4, 6, 8)] == [72, 72, 72, 72, 96]
    assert [residents_of(2, per_pe) for per_pe in (0, 4)] == [0, 6]


def express(residents: int = 3) -> Jobs:
    """Return a line on two PEs with a window of two and `residents` residents that never end."""
    jobs = Jobs(2, 2, residents * 4 // 3 // 2)
    for job in range(residents):
        jobs.put(job, "u", 1.0, 0.0)
        assert jobs.next() == job
        jobs.settle(job)
    return jobs


def test_beyond_the_residents_a_job_that_has_had_its_turn_makes_room_for_one_that_waits() -> None:
    jobs = express()
    for job in (10, 11, 12):
        jobs.put(job, "u", 1.0, float(job))
    assert begun(jobs) == [10, 11]
    assert jobs.next_set_back(0.0) is None
    jobs.settle(10)
    jobs.settle(11)
    assert jobs.next_set_back(0.0) == 11  # job 11 loses least work
    jobs.put_again(11, 0.05, 0.05)
    assert sorted(begun(jobs)) == [11, 12]  # as no other job waits, job 11 has a place again
    assert jobs.next_set_back(0.0) is None
    assert jobs.line.set_back_due_s() == math.inf


def test_of_those_given_up_the_one_that_has_had_least_is_next_and_new_ones_wait_for_none() -> None:
    jobs = express()
    for job in range(100, 140):
        jobs.put(job, "u", 1.0, float(job))
        assert job in begun(jobs)
        jobs.settle(job)
        jobs.put_again(job, had_s=1000.0 - job, lost_s=0.0)
    again = [job for job in jobs.line.at_work() if job >= 100]
    assert len(again) == again_of(2)
    jobs.put(10, "u", 1.0, 1e9)
    assert begun(jobs) == [10]
    jobs.drop(again[0])
    assert begun(jobs) == [139]


def test_no_more_is_lost_than_a_small_part() -> None:
    jobs = express()
    lost_s, now = 0.0, 0.0
    for job in range(10, 10_000):
        jobs.put(job, "u", 1.0, now)
        for begins in begun(jobs):
            jobs.settle(begins)
        while (other := jobs.next_set_back(now)) is not None:
            jobs.put_again(other, 0.5, 0.5)
            jobs.drop(other)
            lost_s += 0.5
        now += 0.01
    assert 0.04 * 2 * now < lost_s < 0.07 * 2 * now


def test_a_job_that_cannot_begin_anew_is_a_resident_in_place_of_another() -> None:
    jobs = express()
    for job in (10, 11, 12):
        jobs.put(job, "u", 1.0, 0.0)
    assert begun(jobs) == [10, 11]
    assert jobs.claim(10)
    assert begun(jobs) == []
    assert jobs.next_set_back(0.0) == 2  # resident 2, the last one
    jobs.put_again(2, 1.0, 1.0)
    assert 12 in begun(jobs)


def test_where_all_residents_cannot_begin_anew_a_further_such_job_waits_and_new_ones_do_not() -> None:
    jobs = express()
    for job in range(10, 20):
        jobs.put(job, "u", 1.0, 0.0)
    claimed = {}
    for now in range(10):
        while (job := jobs.next()) is not None and job >= 10:
            claimed[job] = jobs.claim(job)
        while (job := jobs.next_set_back(100.0 * now)) is not None:
            jobs.put_again(job, 1.0, 1.0)
            jobs.drop(job)
    assert [job for job, is_resident in claimed.items() if is_resident] == [10, 11, 12]
    assert list(claimed) == list(range(10, 20))
    assert [jobs.lasting_before(job) for job in (12, 13, 19)] == [0, 3, 3]
    for job in range(20, 30):
        jobs.put(job, "u", 1.0, 0.0)
        assert job in begun(jobs)
        jobs.drop(job)
    jobs.drop(13)
    jobs.drop(11)
    assert begun(jobs) == [14]
    assert jobs.claim(14)


def test_without_residents_jobs_that_cannot_begin_anew_have_a_pe_each() -> None:
    jobs = Jobs(2, 2, 0)
    for job in range(3):
        jobs.put(job, "u", 1.0, 0.0)
        assert begun(jobs) == [job]
        assert jobs.claim(job) == (job < 2)


def test_where_pes_join_jobs_that_were_held_begin_and_those_that_had_a_turn_stay() -> None:
    jobs = Jobs(1, 6, 4)
    for job in range(5):
        jobs.put(job, "u", 1.0, float(job))
        assert begun(jobs) == [job]
        assert jobs.claim(job) is (job < 3)
    jobs.put(5, "u", 1.0, 5.0)
    assert begun(jobs) == [5]
    jobs.settle(5)
    jobs.line.resize(2)
    assert begun(jobs) == [3, 4]
    assert jobs.claim(3)
    assert jobs.claim(4)
    for job in range(6, 12):
        jobs.put(job, "u", 1.0, float(job))
    assert begun(jobs) == list(range(6, 12))
    assert jobs.next_set_back(0.0) is None, "a job is given up though there is room for it"


def test_a_user_with_less_at_work_has_residents_in_place_of_another_s() -> None:
    jobs = Jobs(2, 2, 2)
    for job in range(3):
        jobs.put(job, "many", 1.0, 0.0)
        assert jobs.next() == job
        jobs.settle(job)
    jobs.put(10, "few", 1.0, 0.0)
    assert begun(jobs) == [10]
    jobs.settle(10)
    assert begun(jobs) == []
    jobs.put(11, "few", 1.0, 0.0)
    assert begun(jobs) == [11]
    jobs.put(12, "more", 1.0, 0.0)
    assert jobs.next_set_back(0.0) == 2


def test_a_job_of_the_user_who_has_most_at_work_makes_room() -> None:
    jobs = Jobs(1, 3, 0)
    for job, user in enumerate(["a", "b", "a"]):
        jobs.put(job, user, 1.0, 0.0)
        assert begun(jobs) == [job]
        jobs.settle(job)
    jobs.settle(1)
    jobs.put(3, "b", 1.0, 0.0)
    assert jobs.next_set_back(0.0) in (0, 2)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 3), st.integers(0, 3), st.booleans())
def test_whatever_happens_each_job_is_in_one_place_and_no_place_stays_empty(
    choose: random.Random, pes: int, residents: int, with_users: bool
) -> None:
    jobs = Jobs(pes, 3, residents, Rules({"bb": 2.0}))
    at_work: set[int] = set()
    waiting: set[int] = set()
    leaving: set[int] = set()
    settled: set[int] = set()
    lasting: set[int] = set()
    held: set[int] = set()
    for number in range(200):
        now = number * 0.1
        match choose.randrange(5):
            case 0 | 1:
                jobs.put(
                    number,
                    choose.choice(["a", "bb"] if with_users else ["a"]),
                    choose.choice([0.5, 1.0]),
                    now,
                )
                waiting.add(number)
                if choose.random() < 0.2:
                    lasting.add(number)
            case 2 if settling := sorted(at_work - settled):
                job = choose.choice(settling)
                settled.add(job)
                jobs.settle(job)
            case 3 if leaving:
                job = leaving.pop()
                jobs.put_again(job, choose.random(), choose.random() / 10)
                at_work.remove(job)
                settled.remove(job)
                waiting.add(job)
            case 4 if at_work or waiting:
                job = choose.choice(sorted(at_work | waiting))
                jobs.drop(job)
                for group in (at_work, waiting, leaving, settled, held):
                    group.discard(job)
        while (job := jobs.next()) is not None:
            assert job in waiting
            held.discard(job)
            if job in lasting and not jobs.claim(job):
                held.add(job)
                assert jobs.lasting_before(job) == len(lasting & at_work) >= max(1, residents * pes * 3 // 4)
                continue
            waiting.remove(job)
            at_work.add(job)
        while (job := jobs.next_set_back(now)) is not None:
            assert job in settled - leaving - lasting
            leaving.add(job)
        assert jobs.line.set_back_due_s() > now, "it is asked again and again in vain"
        assert set(jobs.line.at_work()) == at_work
        assert jobs.waiting() == waiting
        assert not waiting - held or len(at_work - lasting) >= 3
    for job in at_work | waiting:
        jobs.drop(job)
    assert not jobs.line._queues
    assert not jobs.line._merits


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
    assert not list(jobs.line.at_work())


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
    assert not jobs.line._queues
    assert len(jobs.line._heads) < 200


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
    first = jobs.line.first(10)
    assert first[0] == 98
    assert len(first) == 10


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_each_job_begins_once_in_the_order_of_merit_and_few_are_at_work(seed: int, with_users: bool) -> None:
    choose = random.Random(seed)
    pes = choose.randint(1, 5)
    jobs = Jobs(pes, rules=Rules({"uu": 2.0, "uuu": 3.0}))
    waiting: set[int] = set()
    at_work: set[int] = set()
    number = 0
    for step in range(300):
        deed = choose.random()
        if deed < 0.6:
            jobs.put(number, "u" * (choose.randint(1, 3) if with_users else 1), 1.0, since_s=float(step))
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
        assert set(jobs.line.at_work()) == at_work
        assert len(jobs) == len(waiting)
        assert len(at_work) >= min(window_of(pes), len(waiting) + len(at_work))
        assert with_users or len(at_work) <= window_of(pes)


def test_a_user_s_further_jobs_wait_for_those_at_work_the_most_important_first() -> None:
    jobs = Jobs(4, rules=Rules(limits={"u": 2}))
    for job, priority in enumerate((1.0, 1.0, 1.0, 5.0, 1.0)):
        jobs.put(job, "u", priority, since_s=0.0)
    jobs.put(9, "v", 1.0, since_s=1.0)
    assert begun(jobs) == [3, 9, 0]
    jobs.drop(3)
    assert begun(jobs) == [1]
    jobs.drop(2)
    jobs.drop(0)
    jobs.drop(1)
    assert begun(jobs) == [4]


def test_a_job_given_up_makes_room_within_its_user_s_limit_and_waits_for_room_itself() -> None:
    rules = Rules(limits={"u": 1})
    jobs = Jobs(1, 1, 0, rules)
    for job, user in enumerate(("u", "u", "v")):
        jobs.put(job, user, 1.0, since_s=float(job))
    assert begun(jobs) == [0]
    jobs.settle(0)
    assert jobs.next_set_back(0.0) == 0
    jobs.put_again(0, 0.1, 0.0)
    assert begun(jobs) == [1], "its user has another one at work now, and so it waits on"
    jobs.drop(1)
    assert begun(jobs) == [2, 0]


def test_a_limit_follows_the_number_of_pes() -> None:
    rules = Rules(limits={"u": 1})
    jobs = Jobs(4, rules=rules)
    for job in range(5):
        jobs.put(job, "u", 1.0, since_s=float(job))
    assert begun(jobs) == [0]
    rules.limits["u"] = 3
    jobs.line.resize(8)
    assert begun(jobs) == [1, 2]


def test_nothing_is_kept_of_jobs_that_are_answered_behind_one_that_waits() -> None:
    jobs = Jobs(1, 1, 0)
    for job in range(2000):
        jobs.put(job, "u", 1.0, since_s=float(job))
    assert begun(jobs) == [0]
    for job in range(2, 2000):
        jobs.drop(job)
    answered = reachable(jobs.line, lambda one: isinstance(one, LiveJob) and one.state is JobState.ANSWERED)
    assert len(answered) < 200
    assert jobs.jobs[1].state is JobState.QUEUED
