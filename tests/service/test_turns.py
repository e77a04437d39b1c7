"""Whose turn it is, as the parts of a client work together: what waits ages, what is held does not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mallob_py.protocol.effects import Outcome, Spent
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.runtime.world.mpi import Crash
from mallob_py.service.endings import Endings, early_statistics
from mallob_py.service.jobs.bookkeeping import JobBook, JobState, LiveJob, LiveJobs
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.jobs.job_file import InputUse, JobFile, parse_job
from mallob_py.service.jobs.reply import JobStatistics
from mallob_py.service.turns import JobQueue, Turns

AGEING_S = 60.0


def silent(_message: str) -> None:
    pass


class Client:
    """One with a single PE, its turns and its endings; what these tell others is lost."""

    set_back: Mock

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = LiveJobs()
        self.queue = JobQueue(1, AGEING_S, window=1)
        self.running = RunningJobs(folder, None, silent)
        rank: Any = SimpleNamespace(now=lambda: 0.0, log=Mock())
        self.book = JobBook()
        self.turns = Turns(rank, self.jobs, self.queue, None, self.running, 0, [0])
        self.endings = Endings(
            *(rank, Mock(), Mock(), self.jobs, self.book, Mock(), self.turns, self.running, Mock(), Mock())
        )

    def take(self, job: int, accepted_s: float, since_s: float) -> LiveJob:
        """`since_s`: when its file was handed in."""
        content = json.dumps({"user": "u", "name": f"n{job}", "application": "NOOP"}).encode()
        file = parse_job(content, {"NOOP": InputUse.NONE})
        assert isinstance(file, JobFile)
        live = LiveJob(job, file, accepted_s, since_s)
        self.jobs.add(live)
        self.book.admit(job, file.identity, file.arrival_s, file.dependencies)
        return live

    def begun(self) -> list[int]:
        """One after the other, as each makes room for the next."""
        order = []
        while (job := self.turns.next()) is not None:
            order.append(job)
            self.queue.drop(job)
        return order


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def test_a_held_job_does_not_age(client: Client) -> None:
    """It was held for its time or for others: it waits for a PE from then on only."""
    held = client.take(1, accepted_s=0.0, since_s=0.0)
    later = client.take(2, accepted_s=95.0, since_s=95.0)
    client.turns.wait(later, 95.0)
    client.turns.wait(held, 100.0)
    assert client.begun() == [2, 1]


def test_a_job_that_is_not_held_has_waited_since_it_was_handed_in(client: Client) -> None:
    early = client.take(1, accepted_s=50.0, since_s=10.0)  # the service was busy, or not there
    other = client.take(2, accepted_s=40.0, since_s=40.0)
    client.turns.wait(other, 40.0)
    client.turns.wait(early, 50.0)
    assert client.begun() == [1, 2]


def test_the_end_of_a_job_clears_it_of_blame(client: Client) -> None:
    """Else its place in the file would name it at each crash to come, or nobody else could have that."""
    live = client.take(1, accepted_s=0.0, since_s=0.0)
    client.running.begin(1, 0.0)
    client.endings.end_early(live, Outcome.INTERRUPTED, JobStatistics(), 1.0)
    assert RunningJobs(client.folder, Crash.OF_ITSELF, silent).blamed == {}


@pytest.fixture
def express(client: Client) -> Client:
    """There are no residents: a job that has had its turn makes room for one that waits."""
    client.queue = JobQueue(1, AGEING_S, window=1, residents_per_pe=0)
    rank: Any = SimpleNamespace(now=lambda: 0.0, log=Mock(), set_back=Mock())
    client.turns = Turns(rank, client.jobs, client.queue, None, client.running, 0, [0])
    client.set_back = rank.set_back
    return client


def test_a_job_that_had_its_turn_is_set_back_and_begins_again_for_twice_as_long(express: Client) -> None:
    first, second = (express.take(job, accepted_s=0.0, since_s=0.0) for job in (1, 2))
    express.turns.wait(first, 0.0)
    assert express.turns.next() == 1
    express.turns.had_turn(first)
    express.turns.turn(0.0)
    assert not express.set_back.called
    express.turns.wait(second, 1.0)
    assert express.turns.next() is None
    assert express.turns.deadline_s <= 1.0
    express.turns.turn(1.0)
    express.set_back.assert_called_once_with(1)
    express.turns.given_up(first, Spent(0.5, 0.25, 0.2, 1, 0), False, 1.0)
    assert (first.state, first.last_turn_s, first.is_sought) == (JobState.QUEUED, 0.25, False)
    assert [express.turns.next(), express.turns.next()] == [2, 1]
    express.turns.given_up(first, Spent(0.5, 0.75, 0.6, 1, 0), False, 2.0)
    assert first.last_turn_s == 0.5
    statistics = early_statistics(first, 2.0)
    assert (statistics.used_pe_s, statistics.used_wallclock_s, statistics.used_cpu_s) == (0.75, 1.5, 0.6)


def test_a_wallclock_limit_ends_a_job_that_waits_to_begin_again(express: Client) -> None:
    live = express.take(1, accepted_s=0.0, since_s=0.0)
    live.terms = JobTerms(wallclock_limit_s=3.0)
    express.turns.wait(live, 0.0)
    express.turns.next()
    express.turns.given_up(live, Spent(0.5, 0.25, 0.2, 1, 0), False, 1.0)
    assert express.turns.deadline_s == 3.5
    assert express.turns.turn(3.4) == []
    assert express.turns.turn(3.5) == [live]
    assert express.turns.turn(9.0) == []


def test_a_time_limit_does_not_end_a_job_that_waits_to_begin_again(express: Client) -> None:
    live = express.take(1, accepted_s=0.0, since_s=0.0)
    live.terms = JobTerms(time_limit_s=3.0)
    express.turns.wait(live, 0.0)
    express.turns.next()
    express.turns.given_up(live, Spent(0.5, 0.25, 0.2, 1, 0, 0.25), False, 1.0)
    assert express.turns.turn(100.0) == []
    assert early_statistics(live, 100.0).used_turns_s == 0.25


def test_a_revision_is_not_set_back_and_a_further_one_waits(express: Client) -> None:
    """The one PE is its own; a job that can begin anew has a turn beside it."""
    revision, further, other = (express.take(job, accepted_s=0.0, since_s=0.0) for job in (1, 2, 3))
    revision.is_incremental = further.is_incremental = True
    express.turns.wait(revision, 0.0)
    assert express.turns.next() == 1
    assert express.turns.terms(revision) is not None
    express.turns.had_turn(revision)
    express.turns.wait(further, 0.0)
    assert express.turns.next() == 2
    assert express.turns.terms(further) is None
    assert further.state is JobState.QUEUED
    express.turns.wait(other, 0.0)
    assert express.turns.next() == 3
    assert express.turns.terms(other) is not None
    express.turns.turn(0.0)
    assert not express.set_back.called
    express.turns.ended(1)
    express.turns.ended(3)
    assert express.turns.next() == 2
    assert express.turns.terms(further) is not None
