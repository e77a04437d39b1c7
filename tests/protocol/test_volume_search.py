"""Volumes from questions and answers: bit for bit those of `fair_volumes`, in few short rounds.

Set MALLOB_PY_CASES to play more random cases than by default.
"""

import functools
import math
import os
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeds import seeds

from mallob_py.experiments.balancing import TreeOfDeputies
from mallob_py.protocol import section_search, volume_search
from mallob_py.protocol.messages import JobEvent
from mallob_py.protocol.splitmix import splitmix64
from mallob_py.protocol.volumes import _splitmix64, fair_volumes

_CASES = int(os.environ.get("MALLOB_PY_CASES", "3000"))
_BATCHES = 10
#: bound on the size of an answer; the largest measured one, full of keys, has 2714 bytes
_LONGEST_BYTES = 4000

Draw = Callable[[random.Random], float]

_PRIORITIES: dict[str, Draw] = {
    "equal": lambda _: 1.0,
    "few": lambda choose: choose.choice((0.5, 1.0, 3.0)),
    "whole": lambda choose: float(choose.randint(1, 9)),
    "uniform": lambda choose: choose.uniform(0.001, 1.0),
    "extreme": lambda choose: 10 ** choose.uniform(-100, 100),
    "ends": lambda choose: choose.choice((1e-100, 1.0, 1e100)),
    "neighbours": lambda choose: 3.0 * (1 + choose.randrange(20) * 2**-52),
}


def _job(job: int, priority: float, demand: int, standing: float = 0.0) -> JobEvent:
    return JobEvent(job, 1, demand, priority, standing)


def _fair(jobs: list[JobEvent], m: int) -> list[int]:
    return fair_volumes(
        [job.priority for job in jobs],
        [job.demand for job in jobs],
        m,
        job_ids=[job.job for job in jobs],
        standing=[job.standing for job in jobs],
    ).tolist()


def _solve(
    search: volume_search.VolumeSearch, deputies: list[volume_search.Deputy]
) -> volume_search.EpochVolumes:
    """Compute the volumes of all jobs with deputies in this process, without a tree."""
    while search.question is not None:
        search.take(
            functools.reduce(volume_search.merged, [deputy.answer(search.question) for deputy in deputies])
        )
    assert search.epoch_volumes is not None
    return search.epoch_volumes


def _assert_fair(
    jobs: list[JobEvent], m: int, deputies: int = 1, hint: volume_search.Hint | None = None
) -> int:
    """Check that the search finds the fair volumes; return its number of rounds."""
    staff = [volume_search.Deputy() for _ in range(deputies)]
    for job in jobs:
        staff[volume_search.deputy_of(job.job, deputies)].put(job)
    search = volume_search.VolumeSearch(m, len(jobs), hint or volume_search.Hint())
    volumes = volume_search.Volumes(_solve(search, staff))
    fair = _fair(jobs, m)
    assert [volumes.of(job) for job in jobs] == fair
    assert volumes.epoch_volumes.total_volume == sum(fair)
    assert search.rounds <= _rounds_max(len(jobs))
    return search.rounds


def _rounds_max(n: int) -> float:
    """Return a bound on rounds; 20000 random cases of up to 120 jobs took at most 10 without a hint."""
    return 8 + 2 * math.log2(n + 1)


def _random_case(seed: int) -> tuple[list[JobEvent], int]:
    choose = random.Random(f"volumes {seed}")
    n = choose.choice((0, 1, 2, 3, 5, 9, 20, 40, 120))
    m = choose.choice((n - 1, n, n + 1, n + 2, 2 * n + 1, 10 * n, 1000 * n, 2**40, n // 2))
    m = max(1, m)
    priority = _PRIORITIES[choose.choice(list(_PRIORITIES))]
    most = choose.choice((1, 2, 5, m, 2**40))
    demand = choose.choice(
        (lambda: most, lambda: choose.randint(1, most), lambda: 1 << choose.randint(0, 40))
    )
    standing = choose.choice((lambda: 0.0, choose.random, lambda: float(choose.randint(-2, 2))))
    ids = choose.sample(range(2**60), n)
    return [_job(job, priority(choose), demand(), standing()) for job in ids], m


@pytest.mark.parametrize("batch", range(_BATCHES))
def test_volumes_are_those_of_the_local_rule(batch: int) -> None:
    size = _CASES // _BATCHES
    for seed in range(batch * size, (batch + 1) * size):
        jobs, m = _random_case(seed)
        try:
            _assert_fair(jobs, m, deputies=1 + seed % 3)
        except AssertionError as error:
            raise AssertionError(f"case {seed}: {error}") from error


def test_random_cases_show_all_kinds_of_outcomes() -> None:
    kinds = set()
    for seed in seeds(300):
        jobs, m = _random_case(seed)
        total = sum(_fair(jobs, m))
        kinds.add((len(jobs) > m, len(jobs) == m, total < m))
    assert kinds >= {(True, False, False), (False, True, False), (False, False, True), (False, False, False)}


@pytest.mark.parametrize("kind", _PRIORITIES)
def test_thousands_of_jobs_take_few_rounds(kind: str) -> None:
    choose = random.Random(kind)
    draw = _PRIORITIES[kind]
    jobs = [_job(job, draw(choose), choose.choice((20_000, choose.randint(1, 9)))) for job in range(3000)]
    _assert_fair(jobs, 10_000)


def test_identical_jobs_do_not_cost_rounds() -> None:
    few = _assert_fair([_job(job, 1.5, 100) for job in range(10)], 25)
    many = _assert_fair([_job(job, 1.5, 100) for job in range(20_000)], 50_001)
    assert many <= few + 4


def test_different_events_at_the_same_alpha_do_not_cost_rounds() -> None:
    """All caps of 5000 different jobs are reached at alpha = 3."""
    jobs = [_job(job, float(job), 3 * job) for job in range(1, 5001)]
    demand = sum(job.demand for job in jobs)
    for m in (demand - 1, demand, demand + 1, demand - 2500):
        _assert_fair(jobs, m)
        search = volume_search.VolumeSearch(m, len(jobs), volume_search.Hint())
        deputy = volume_search.Deputy()
        for job in jobs:
            deputy.put(job)
        for _ in range(5):
            if isinstance(search.question, section_search.AlphaQuestion):
                search.take(deputy.answer(search.question))
        assert not isinstance(search.question, section_search.AlphaQuestion)


def test_a_root_where_all_shares_are_whole_leaves_nothing_over() -> None:
    for n in (1, 2, 10, 500):
        _assert_fair([_job(job, 2.0, 100 * n) for job in range(n)], 7 * n)
        _assert_fair([_job(job, 2.0, 100 * n) for job in range(n)], 7 * n + 1)


@pytest.mark.parametrize("seed", seeds(20))
def test_what_is_left_from_the_last_epoch_saves_rounds_and_never_changes_the_outcome(seed: int) -> None:
    choose = random.Random(f"epochs {seed}")
    m = choose.choice((20, 300, 5000))
    priority = _PRIORITIES[choose.choice(list(_PRIORITIES))]
    deputy, hint = volume_search.Deputy(), volume_search.Hint()
    jobs: dict[int, JobEvent] = {}
    for _ in range(25):
        for job in {choose.randrange(400) for _ in range(choose.choice((1, 1, 3, 60)))}:
            old = jobs.pop(job, None)
            deputy.drop(job)
            new = None
            if old is None or choose.random() < 0.5:
                new = jobs[job] = _job(job, priority(choose), choose.randint(1, m), choose.random())
                deputy.put(new)
            hint.replace(old, new)
        volumes = volume_search.Volumes(_solve(volume_search.VolumeSearch(m, len(jobs), hint), [deputy]))
        live = list(jobs.values())
        assert [volumes.of(job) for job in live] == _fair(live, m)


@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1.0, 1e300])
def test_a_hint_that_is_far_off_is_harmless(alpha: float) -> None:
    choose = random.Random(1)
    jobs = [_job(job, choose.random() + 0.01, choose.randint(1, 50)) for job in range(300)]
    _assert_fair(jobs, 2000, hint=volume_search.Hint(alpha=alpha, slope=1.0, missing=-5.0))


def test_a_second_epoch_takes_no_more_rounds_than_the_first() -> None:
    choose = random.Random(2)
    tree = TreeOfDeputies(2000)
    for job in range(1500):
        tree.change(_job(job, choose.random() + 0.01, 2000))
    tree.balance()
    first = tree.costs.rounds
    tree.change(_job(9, 0.7, 2000))
    tree.balance()
    assert tree.costs.rounds <= first


@pytest.mark.parametrize("kind", ["uniform", "extreme", "ends", "equal"])
def test_no_message_grows_with_the_number_of_jobs(kind: str) -> None:
    choose = random.Random(kind)
    for n, m in ((1, 3), (10, 40), (100, 250), (1000, 2500), (10_000, 25_000), (10_000, 2500)):
        tree = TreeOfDeputies(40, pes=m)
        for job in range(n):
            priority, demand = _PRIORITIES[kind](choose), choose.randint(1, 2**40)
            tree.change(_job(2**59 + job, priority, demand, choose.random()))
        tree.balance()
        assert tree.costs.longest_bytes <= _LONGEST_BYTES


def _ordered(one: volume_search.AnyAnswer) -> object:
    """Return an answer with its samples sorted, so that their order does not matter."""
    if isinstance(one, section_search.AlphaAnswer):
        return [
            (part.count, part.used, section_search.unpack(part.slope), sorted(part.samples))
            for part in one.sections
        ]
    return [(part.count, sorted(part.samples)) for part in one.sections], one.floors


@pytest.mark.parametrize("seed", seeds(20))
def test_answers_do_not_depend_on_who_merges_what_first(seed: int) -> None:
    choose = random.Random(f"merge {seed}")
    jobs = [
        _job(job, choose.choice((choose.random() + 0.1, 1.0)), choose.randint(1, 99)) for job in range(500)
    ]
    one, parts = volume_search.Deputy(), [volume_search.Deputy() for _ in range(9)]
    for job in jobs:
        one.put(job)
        choose.choice(parts).put(job)
    search = volume_search.VolumeSearch(2000, len(jobs), volume_search.Hint())
    while (question := search.question) is not None:
        whole = one.answer(question)
        answers = [part.answer(question) for part in parts]
        while len(answers) > 1:
            choose.shuffle(answers)
            answers.append(volume_search.merged(answers.pop(), answers.pop()))
        assert _ordered(answers[0]) == _ordered(whole)
        search.take(whole)


@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(0, 3)), min_size=1, max_size=300), st.data())
def test_the_selected_key_has_the_wanted_rank(values: list[tuple[float, int]], data: st.DataObject) -> None:
    keys = [(0.0, priority, demand, splitmix64(job)) for job, (priority, demand) in enumerate(values)]
    wanted = data.draw(st.integers(1, len(keys)))
    selection = section_search.KeySelection(wanted, data.draw(st.lists(st.sampled_from(keys), max_size=8)))
    left = keys
    while not selection.is_over:
        question = selection.next_question()
        assert isinstance(question, section_search.KeysQuestion)
        left = section_search.keys_within(question, left)
        selection.take(section_search.key_answer(question.pivots, left))
    assert selection.threshold == sorted(keys, reverse=True)[wanted - 1]


@given(st.integers(-(2**900), 2**900), st.integers(0, 900))
def test_packed_integers_are_the_same_again(value: int, shift: int) -> None:
    assert section_search.unpack(section_search.pack(value << shift)) == value << shift


@given(st.floats(1e-100, 1e100))
def test_scaled_priorities_are_exact(priority: float) -> None:
    assert Fraction(section_search.scaled(priority), 2**400) == Fraction(priority)


@given(st.floats(1e-100, 1e100), st.integers(1, 2**40), st.integers(-2, 2), st.integers(1, 2**41))
def test_floors_are_exact_next_to_whole_numbers(priority: float, whole: int, off: int, cap: int) -> None:
    alpha = whole / Fraction(priority) * (1 + Fraction(off, 2**60))
    share = volume_search.Share(section_search.pack(alpha.numerator), section_search.pack(alpha.denominator))
    assert share.floor(priority, cap) == max(1, min(cap, math.floor(alpha * Fraction(priority))))


def test_jobs_are_hashed_as_in_the_local_rule() -> None:
    ids = [0, 1, 2, 77, 2**62, 2**64 - 1]
    assert [splitmix64(job) for job in ids] == _splitmix64(np.array(ids, dtype=np.uint64)).tolist()


def test_a_question_is_only_about_jobs_still_in_doubt() -> None:
    """The second question finds, at a deputy, the events that the first one did not settle."""
    deputy = volume_search.Deputy()
    for job in range(1, 101):
        deputy.put(_job(job, float(job), 1000))
    ends = (1, 20.0), (1, 2.0)
    first = deputy.answer(section_search.AlphaQuestion(1000, (0, 1.0), ends, None))
    second = deputy.answer(section_search.AlphaQuestion(1000, ends[0], (), ends[1]))
    assert isinstance(first, section_search.AlphaAnswer)
    assert isinstance(second, section_search.AlphaAnswer)
    # 1/p for p = 3..19 lies between the cuts; 1/20 and 1/2 are the cuts.
    assert [section.count for section in first.sections] == [80, 17, 101]
    assert [section.count for section in second.sections] == [17]


def test_a_question_is_only_about_keys_above_its_low_end_and_up_to_its_high_end() -> None:
    keys = [(0.0, float(priority), 1, 0) for priority in range(10)]
    assert section_search.keys_within(section_search.KeysQuestion(keys[2], (), keys[5]), keys) == keys[3:6]
    assert section_search.keys_within(section_search.KeysQuestion(None, (), keys[5]), keys) == keys[:6]
    assert section_search.keys_within(section_search.KeysQuestion(keys[2], (), None), keys) == keys[3:]


def test_events_are_told_from_pivots_that_round_to_the_same_float() -> None:
    """The float 0.05 is a little more than 1/20."""
    deputy = volume_search.Deputy()
    deputy.put(_job(1, 20.0, 1000))
    first = deputy.answer(section_search.AlphaQuestion(1000, (0, 1.0), ((0.05, 1.0),), None))
    assert isinstance(first, section_search.AlphaAnswer)
    assert [section.count for section in first.sections] == [1, 1]
