"""The desk's machine with all parts of a client: waiting jobs age, held jobs do not."""

import heapq
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from mallob_py.protocol.effects import JobGivenUp, JobRests, Outcome, Spent
from mallob_py.protocol.job_life import JobState
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.runtime.world.mpi import Crash
from mallob_py.service import JobFileError
from mallob_py.service.desk_machine import DeskMachine, DeskSetting
from mallob_py.service.endings import Endings, early_statistics
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.jobs.job_file import InputUse, JobFile, parse_job
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.jobs.reply import JobStatistics
from mallob_py.service.parts import Parts

AGEING_S = 60.0


def silent(_message: str) -> None:
    pass


class Client:
    """A client on a single PE, with its machine and its endings; their messages are dropped."""

    def __init__(self, folder: Path, residents_per_pe: int | None = None, threads: int = 1) -> None:
        self.folder = folder
        self.begun: list[int] = []
        self.at_limit: list[int] = []
        self.hands: Any = Mock()
        self.hands.now = lambda: 0.0
        self.hands.begin = lambda job, now: self.begun.append(job.id)
        self.hands.end_at_limit = lambda job, now: self.at_limit.append(job.id)
        self.running = RunningJobs(folder, None, silent)
        self.hands.is_suspect = lambda job: False
        setting = DeskSetting(1, AGEING_S, residents_per_pe, window=1, threads=threads)
        self.machine = DeskMachine(self.hands, setting)
        parts = Parts(Mock(), Mock(), self.machine, Mock(), self.running, Mock())
        self.status = Mock()
        self.endings = Endings(parts, self.status)

    def take(self, job: int, accepted_s: float, since_s: float, arrival_s: float = 0.0) -> LiveJob:
        """Accept a job whose file was submitted at `since_s`."""
        content = json.dumps({"user": "u", "name": f"n{job}", "application": "NOOP"}).encode()
        file = parse_job(content, {"NOOP": InputUse.NONE})
        assert isinstance(file, JobFile)
        live = LiveJob(job, msgspec.structs.replace(file, arrival_s=arrival_s), accepted_s, since_s)
        self.machine.admit(live, "")
        return live

    def turn(self, now: float) -> list[int]:
        """Return the jobs that begin."""
        self.begun.clear()
        self.machine.turn(now)
        return list(self.begun)

    def give_up(self, job: LiveJob, spent: Spent, now: float) -> None:
        self.machine.was_given_up(JobGivenUp(job.id, spent), False, now)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def test_a_held_job_does_not_age(client: Client) -> None:
    """A job held until its arrival time, or for other jobs, begins to age only when it may begin."""
    client.take(3, accepted_s=0.0, since_s=0.0)
    assert client.turn(0.0) == [3]
    client.take(1, accepted_s=0.0, since_s=0.0, arrival_s=100.0)
    client.take(2, accepted_s=95.0, since_s=95.0)
    assert client.turn(95.0) == []
    assert client.turn(100.0) == []
    client.machine.answer(client.machine.jobs[3], "result")
    assert client.turn(101.0) == [2]
    client.machine.answer(client.machine.jobs[2], "result")
    assert client.turn(101.0) == [1]


def test_a_job_that_is_not_held_has_waited_since_it_was_handed_in(client: Client) -> None:
    client.take(1, accepted_s=40.0, since_s=40.0)
    client.take(2, accepted_s=50.0, since_s=10.0)  # handed in earlier: the service was busy or absent
    assert client.turn(50.0) == [2]


def test_the_end_of_a_job_clears_it_of_blame(client: Client) -> None:
    """Otherwise the job's place in the crash record would name the job at each later crash, and no other job
    could use the place.
    """
    live = client.take(1, accepted_s=0.0, since_s=0.0)
    client.running.begin(1, 0.0)
    client.endings.end_early(live, Outcome.INTERRUPTED, JobStatistics(), 1.0)
    assert RunningJobs(client.folder, Crash.OF_ITSELF, silent).blamed == {}


def test_a_job_whose_file_is_lost_is_told_of_as_failed(client: Client) -> None:
    live = client.take(1, accepted_s=0.0, since_s=0.0)
    client.endings.lose(live, JobFileError("", "cannot be read"), 1.0)
    (call,) = client.status.job_ended.call_args_list
    assert (call.args[:2], call.kwargs["error"]) == ((live, Outcome.FAILED), "cannot be read")


@pytest.fixture
def express(tmp_path: Path) -> Client:
    """Return a client without residents: a job that has had its turn makes room for a waiting job."""
    return Client(tmp_path, residents_per_pe=0)


def test_a_job_that_had_its_turn_is_set_back_and_begins_again_for_twice_as_long(express: Client) -> None:
    machine = express.machine
    first = express.take(1, accepted_s=0.0, since_s=0.0)
    assert express.turn(0.0) == [1]
    assert machine.terms(first, False, 0.0) is not None
    machine.had_turn(JobRests(1))
    express.turn(0.0)
    assert not express.hands.set_back.called
    second = express.take(2, accepted_s=1.0, since_s=1.0)
    assert express.turn(1.0) == []
    express.hands.set_back.assert_called_once_with(1)
    express.give_up(first, Spent(0.5, 0.25, 0.2, 1, 0), 1.0)
    assert (first.state, first.last_turn_s, first.is_sought) == (JobState.AGAIN, 0.25, False)
    assert express.turn(1.0) == [2, 1]
    assert first.parameters()["turn_s"] == 0.5
    assert first.parameters()["user"] == second.parameters()["user"] > 0
    assert machine.terms(second, False, 1.0) is not None
    assert machine.terms(first, False, 1.0) is not None
    express.give_up(first, Spent(0.5, 0.75, 0.6, 1, 0), 2.0)
    assert first.last_turn_s == 0.5
    statistics = early_statistics(first, 2.0)
    assert (statistics.used_pe_s, statistics.used_wallclock_s, statistics.used_cpu_s) == (0.75, 1.5, 0.6)


@pytest.mark.parametrize("threads", [1, 8])
def test_the_work_that_may_be_lost_is_counted_in_time_of_pes(threads: int, tmp_path: Path) -> None:
    express = Client(tmp_path, residents_per_pe=0, threads=threads)
    first = express.take(1, accepted_s=0.0, since_s=0.0)
    express.turn(0.0)
    express.machine.terms(first, False, 0.0)
    express.machine.had_turn(JobRests(1))
    second = express.take(2, accepted_s=1.0, since_s=1.0)
    express.turn(1.0)
    express.give_up(first, Spent(0.5, 4.0 * threads, 4.0 * threads, 1, 0), 1.0)
    express.turn(1.0)
    express.machine.terms(second, False, 1.0)
    express.machine.had_turn(JobRests(2))
    express.take(3, accepted_s=1.0, since_s=1.0)
    express.turn(1.0)
    assert express.machine.line.set_back_due_s() == pytest.approx(1.0 + (4.0 - 0.5) / 0.05)


def test_ends_of_limits_of_answered_jobs_are_forgotten(client: Client) -> None:
    jobs = client.machine.jobs
    client.take(1, accepted_s=0.0, since_s=0.0)
    deadlines: list[tuple[float, int]] = []
    for job in range(1000):
        heapq.heappush(deadlines, (86_400.0 - job, job))
        jobs.forget_gone(deadlines)
    assert len(deadlines) < 100
    assert (86_399.0, 1) in deadlines
    assert deadlines[0] == min(deadlines)


def given_up(express: Client, terms: JobTerms, spent: Spent) -> LiveJob:
    """Give up a job, which then waits: another job has the only place for jobs given up before."""
    live = express.take(1, accepted_s=0.0, since_s=0.0)
    live.terms = terms
    express.turn(0.0)
    express.machine.terms(live, False, 0.0)
    express.give_up(live, spent, 1.0)
    return live


def test_a_wallclock_limit_ends_a_job_that_waits_to_begin_again(express: Client) -> None:
    given_up(express, JobTerms(wallclock_limit_s=3.0), Spent(0.5, 0.25, 0.2, 1, 0))
    express.turn(1.0)  # the job may begin again; its input is being read
    express.turn(1.2)  # other clients hear of the user's jobs
    assert express.machine.deadline_s == 3.5
    express.turn(3.4)
    assert express.at_limit == []
    express.turn(3.5)
    express.turn(9.0)
    assert express.at_limit == [1]


def test_a_time_limit_does_not_end_a_job_that_waits_to_begin_again(express: Client) -> None:
    live = given_up(express, JobTerms(time_limit_s=3.0), Spent(0.5, 0.25, 0.2, 1, 0, 0.25))
    express.turn(100.0)
    assert express.at_limit == []
    assert early_statistics(live, 100.0).used_turns_s == 0.25


def test_a_revision_is_not_set_back_and_a_further_one_waits(express: Client) -> None:
    """A further revision waits for the first one's end; a job that can begin again gets a turn before it."""
    machine = express.machine
    revision = express.take(1, accepted_s=0.0, since_s=0.0)
    assert express.turn(0.0) == [1]
    assert machine.terms(revision, True, 0.0) is not None
    machine.had_turn(JobRests(1))
    further = express.take(2, accepted_s=0.0, since_s=0.0)
    assert express.turn(0.0) == [2]
    assert machine.terms(further, True, 0.0) is None
    assert further.state is JobState.PLACELESS
    other = express.take(3, accepted_s=0.0, since_s=0.0)
    assert express.turn(0.0) == [3]
    assert machine.terms(other, False, 0.0) is not None
    express.turn(0.0)
    assert not express.hands.set_back.called
    machine.answer(revision, "result")
    machine.answer(other, "result")
    assert express.turn(0.0) == [2]
    assert machine.terms(further, True, 0.0) is not None


def test_the_place_that_a_lasting_job_leaves_is_taken_at_once(client: Client) -> None:
    """A resident takes no place of the window, so a job can begin without any other event."""
    lasting = client.take(1, accepted_s=0.0, since_s=0.0)
    client.take(2, accepted_s=0.0, since_s=1.0)
    assert client.turn(1.0) == [1]
    assert client.machine.terms(lasting, True, 1.0) is not None
    assert client.machine.deadline_s <= 1.0
    assert client.turn(1.0) == [2]
