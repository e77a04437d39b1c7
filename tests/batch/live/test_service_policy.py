"""Policies over the jobs of one service: who begins, and how many workers each may have."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from seeds import seeds

from mallob_py.batch.live.service_policy import SHOWN_MAX, ServicePolicy
from mallob_py.batch.policy import Action, Start, View
from mallob_py.batch.registry import PolicyTextError, policy_for, policy_names, policy_of
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.service import JobFileError
from mallob_py.service.jobs.job_file import InputUse, JobFile, parse_job

PES = 8
LIVE = [name for name in policy_names() if not getattr(policy_of(name), "shares_nodes", False)]


def request(workers: int = 0, low: int = 0, high: int = 0, required_s: float = 60.0) -> JobTerms:
    return JobTerms(workers=workers, min_workers=low, max_demand=high, required_time_s=required_s)


def rigid(workers: int, required_s: float = 60.0) -> JobTerms:
    return request(workers, workers, workers, required_s)


class Table:
    """Jobs with the bounds that they were told."""

    def __init__(self, policy: str) -> None:
        self.complaints: list[str] = []
        self.policy = ServicePolicy(policy_of(policy), PES, self.complaints.append)
        self.bounds: dict[int, int] = {}
        self.now_s = 0.0

    def ask(self, job: int, terms: JobTerms) -> None:
        self.policy.ask(job, "u", terms, self.now_s)

    def end(self, job: int) -> None:
        self.policy.ended(job)
        self.bounds.pop(job, None)

    def decide(self, after_s: float = 1.0) -> dict[int, int]:
        self.now_s += after_s
        while self.policy.next_deadline() <= self.now_s:
            begun = self.policy.decide(self.now_s)
            self.bounds.update(self.policy.changes())
            for job in begun:
                assert job not in self.bounds
                self.bounds[job] = self.policy.bound(job)
            assert sum(self.bounds.values()) <= PES
        return self.bounds


def test_by_easy_a_short_job_overtakes_and_one_that_would_delay_the_first_does_not() -> None:
    table = Table("easy")
    table.ask(10, rigid(6, 100.0))
    table.ask(7, rigid(4, 100.0))
    table.ask(9, rigid(2, 200.0))
    table.ask(8, rigid(2, 50.0))
    assert table.decide() == {10: 6, 9: 2}, "9 leaves 7 the four that it needs at 100 s"
    table.end(9)
    assert table.decide() == {10: 6, 8: 2}
    table.end(10)
    assert table.decide() == {8: 2, 7: 4}


def test_jobs_shrink_for_one_that_begins_and_grow_when_it_has_ended() -> None:
    table = Table("fair")
    table.ask(1, request())
    assert table.decide() == {1: 8}
    table.ask(2, request(low=2))
    assert table.decide() == {1: 4, 2: 4}
    table.ask(3, rigid(6))
    assert table.decide() == {1: 4, 2: 4}, "the others cannot leave it six"
    table.end(2)
    assert table.decide() == {1: 2, 3: 6}
    table.end(3)
    assert table.decide() == {1: 8}


def test_a_bound_that_changes_before_its_job_has_been_handed_to_the_pes_is_no_news() -> None:
    table = Table("fair")
    table.ask(1, request())
    assert table.policy.decide(1.0) == [1]
    table.ask(2, request())
    while table.policy.next_deadline() <= 2.0:
        table.policy.decide(2.0)
    assert table.policy.changes() == {}
    assert table.policy.bound(1) == 4
    table.policy.ended(2)
    table.policy.decide(3.0)
    assert table.policy.changes() == {1: 8}


def test_a_job_that_says_nothing_prefers_one_worker_and_one_with_a_max_demand_that() -> None:
    table = Table("easy")
    table.ask(1, request())
    table.ask(2, request(high=3))
    table.ask(3, request(workers=2, high=3))
    table.ask(4, request(high=100))
    assert table.decide() == {1: 1, 2: 3, 3: 2}
    for job in (1, 2, 3):
        table.end(job)
    assert table.decide() == {4: 8}


def job_file(**fields: Any) -> JobFile:
    whole = {"user": "u", "name": "j", "application": "NOOP"}
    whole |= {key.replace("_", "-"): value for key, value in fields.items()}
    file = parse_job(json.dumps(whole).encode(), {"NOOP": InputUse.NONE})
    assert isinstance(file, JobFile)
    return file


def test_jobs_that_the_policy_knows_too_little_of_or_can_never_begin_are_refused() -> None:
    policy = Table("easy").policy
    policy.check(job_file(required_time="5m"))
    policy.check(job_file(wallclock_limit=3, min_workers=8))
    with pytest.raises(JobFileError, match="required-time: missing: --policy easy has to know"):
        policy.check(job_file())
    with pytest.raises(JobFileError, match="min-workers: is 9, but there are 8 PEs"):
        policy.check(job_file(required_time=1, min_workers=9))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"workers": 1, "min_workers": 2}, "workers: is 1, below min-workers 2"),
        ({"workers": 5, "max_demand": 4}, "workers: is 5, above max-demand 4"),
        ({"min_workers": 5, "max_demand": 4}, "min-workers: is 5, above max-demand 4"),
        ({"required_time": "soon"}, "required-time: "),
    ],
)
def test_numbers_of_workers_that_contradict_each_other_are_refused(
    fields: dict[str, Any], error: str
) -> None:
    with pytest.raises(JobFileError, match=error):
        job_file(**fields)


def test_policies_that_share_nodes_are_refused_with_the_names_of_those_that_fit() -> None:
    with pytest.raises(PolicyTextError, match=r"policy sd needs nodes that jobs share.*these fit: .*easy"):
        policy_for("sd")


def test_very_many_that_wait_begin_in_their_order_and_few_are_shown() -> None:
    table = Table("fcfs")
    for job in range(3 * SHOWN_MAX):
        table.ask(job, rigid(8))
    table.end(1)
    table.end(SHOWN_MAX + 1)
    left = [job for job in range(3 * SHOWN_MAX) if job not in (1, SHOWN_MAX + 1)]
    for job in left[: SHOWN_MAX + 10]:
        assert table.decide() == {job: 8}
        table.end(job)


def test_pes_that_are_lost_are_given_to_nobody_and_come_back() -> None:
    table = Table("easy")
    table.ask(1, rigid(2))
    assert table.decide() == {1: 2}
    table.policy.resize(4)
    table.ask(2, rigid(4))
    table.ask(3, rigid(2))
    assert table.decide() == {1: 2}
    table.end(1)
    assert table.decide() == {2: 4}
    table.policy.resize(PES)
    assert table.decide() == {2: 4, 3: 2}


class Broken:
    name = "broken"
    wants_all_arrivals = True

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Iterable[Action]:
        yield from (Start(job.id, job.nodes) for job in list(view.queue))
        raise ZeroDivisionError("oops")


def test_a_policy_that_raises_is_told_once_and_what_it_has_begun_stays_begun() -> None:
    complaints: list[str] = []
    policy = ServicePolicy(Broken(), PES, complaints.append)
    for job in range(3):
        policy.ask(job, "u", rigid(1), 0.0)
        assert list(policy.decide(float(job))) == [job]
    assert complaints == ["policy broken: ZeroDivisionError: oops"]


@pytest.mark.parametrize("policy", [*LIVE, "elastic:cooldown-s=5", "fair:by=user"])
@pytest.mark.parametrize("seed", seeds(8))
def test_bounds_fit_into_the_pes_and_every_job_begins_in_the_end(policy: str, seed: int) -> None:
    draw = random.Random(seed)
    table = Table(policy)
    waiting: set[int] = set()
    for number in range(150):
        job = 1000 - number
        low = draw.randint(0, PES)
        high = draw.choice((0, draw.randint(max(1, low), 2 * PES)))
        workers = draw.choice((0, draw.randint(low, high or PES)))
        table.ask(job, request(workers, low, high, draw.choice((1.0, 60.0, 600.0))))
        waiting.add(job)
        if table.bounds and draw.random() < 0.6:
            table.end(draw.choice(sorted(table.bounds)))
        if draw.random() < 0.1:
            withdrawn = draw.choice(sorted(waiting))
            table.end(withdrawn)
        table.decide(draw.choice((0.0, 3.0, 70.0)))
        waiting -= table.bounds.keys()
        waiting &= table.policy._numbers.keys()
    for _ in range(3000):
        if not waiting:
            break
        if table.bounds:
            table.end(draw.choice(sorted(table.bounds)))
        table.decide(70.0)
        waiting -= table.bounds.keys()
    assert not waiting
    assert not table.complaints
