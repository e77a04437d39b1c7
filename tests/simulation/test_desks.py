"""Desks of clients in virtual time: files that wait, users, turns, inputs, full disks, lost clients."""

from typing import Any

import pytest
from seeds import seeds

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.job_life import JobState
from mallob_py.protocol.stimuli import WorkerAnswered
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.desks import DeskFolders, DeskPlan, FileTerms
from mallob_py.simulation.plan import draw_plan, with_changes, with_desks
from mallob_py.simulation.scenario import Scenario


class Played:
    """A simulated cluster with the desks of its clients."""

    def __init__(self, size: int = 2, plan: DeskPlan | None = None, **settings: Any) -> None:
        self.cluster = Cluster(size, 1, Config(**settings), desks=plan or DeskPlan())
        assert isinstance(self.cluster.folders, DeskFolders)
        self.desks = self.cluster.folders

    def file(self, job: int, rank: int = 0, **fields: Any) -> None:
        self.desks.hand_in(job, rank, FileTerms(**fields), {})

    def play_until_one_is_given_up(self, jobs: range) -> None:
        """Submit jobs, and play until one of them is given up and waits to begin again."""
        for job in jobs:
            self.file(job)
        while not any(self.state(job) is JobState.AGAIN for job in jobs):
            self.play(0.05)
            assert self.cluster.now < 100.0

    def play(self, seconds: float) -> None:
        self.cluster.run(until_s=self.cluster.now + seconds)

    def find(self, job: int) -> None:
        """Let the job's root find a result."""
        place, worker = self.cluster.running(job)[0]
        self.cluster.tell(place, WorkerAnswered(worker, b"result"))

    def state(self, job: int) -> JobState:
        desk = self.desks.desk_of(job)
        assert desk is not None
        return desk.machine.jobs[job].state

    def outcomes(self) -> dict[int, Outcome]:
        return {job: ended.outcome for job, ended in self.desks.ended.items()}


def test_a_job_begins_after_the_one_that_it_waits_for_and_at_its_time() -> None:
    played = Played()
    played.file(1, after=(2,))
    played.file(2)
    played.file(3, arrives_s=5.0)
    played.play(1.0)
    assert [played.state(job) for job in (1, 2, 3)] == [JobState.HELD, JobState.AT_PE, JobState.HELD]
    played.find(2)
    played.play(1.0)
    assert [played.state(job) for job in (1, 3)] == [JobState.AT_PE, JobState.HELD]
    played.play(4.0)
    assert played.state(3) is JobState.AT_PE


def test_a_job_that_needs_a_result_fails_with_those_that_need_its_own() -> None:
    played = Played()
    played.file(1)
    played.file(2, needs=(1,))
    played.file(3, needs=(2,), arrives_s=1e9)
    played.play(1.0)
    played.cluster.interrupt(1)
    played.play(1.0)
    assert played.outcomes() == {1: Outcome.INTERRUPTED, 2: Outcome.FAILED, 3: Outcome.FAILED}


def test_a_job_is_interrupted_wherever_it_is() -> None:
    """The job is held, read, in line, at its PE, or waits for its next turn."""
    played = Played(1, DeskPlan(window=2, residents=0))
    for job in range(1, 15):
        played.file(job)
    played.file(15, after=(99,))
    played.play(1.0)
    played.file(16, reads_s=100.0)
    states: dict[int, JobState] = {}
    while not {JobState.HELD, JobState.AT_PE, JobState.AGAIN, JobState.READING} <= set(states.values()):
        played.play(0.1)
        states = {job: played.state(job) for job in range(1, 17)}
        assert played.cluster.now < 100.0
    for job in states:
        played.cluster.interrupt(job)
    played.play(1.0)
    assert set(played.outcomes().values()) == {Outcome.INTERRUPTED}
    assert len(played.outcomes()) == 16
    assert not played.cluster.processes


def test_of_jobs_that_lose_all_when_given_up_only_some_are() -> None:
    played = Played(1, DeskPlan(window=2, residents=0))
    for job in range(1, 15):
        played.file(job)
    played.play(200.0)
    assert 10 < played.desks.given_up < 30


def test_a_user_s_limit_holds_while_jobs_are_given_up_and_come_again() -> None:
    played = Played(1, DeskPlan(window=2, residents=0, limits={"a": 1}))
    for job in range(1, 4):
        played.file(job, user="a")
    played.file(9, user="b")
    most = 0
    for _ in range(200):
        played.play(0.1)
        desk = played.desks.desk_of(1)
        assert desk is not None
        at_work = [desk.machine.jobs[job].user for job in desk.machine.line.at_work()]
        most = max(most, at_work.count("a"))
    assert most == 1


def test_all_pes_know_which_jobs_are_of_one_user() -> None:
    played = Played(2)
    for job, user in ((1, "a"), (2, "a"), (3, "b")):
        played.file(job, user=user)
    played.play(1.0)
    for pe in played.cluster.pes:
        users = {job: event.user for job, event in pe.balancer.jobs.items()}
        assert users[1] == users[2] != users[3]


def test_of_revisions_that_cannot_begin_anew_as_many_run_as_there_are_pes() -> None:
    played = Played(2, DeskPlan(window=2, residents=0))
    for job in range(1, 5):
        played.file(job, is_lasting=True)
    played.file(9)
    played.play(3.0)
    states = [played.state(job) for job in range(1, 5)]
    assert states.count(JobState.AT_PE) == 2
    assert states.count(JobState.PLACELESS) == 2
    assert played.state(9) is JobState.AT_PE
    running = [job for job in range(1, 5) if played.state(job) is JobState.AT_PE]
    played.cluster.interrupt(running[0])
    played.play(1.0)
    assert [played.state(job) for job in range(1, 5) if job not in running].count(JobState.AT_PE) == 1


def test_an_input_that_stalls_takes_no_other_job_s_place() -> None:
    played = Played(1, DeskPlan(window=1))
    played.file(1, reads_s=30.0, stalls=True)
    played.file(2)
    played.play(5.0)
    assert played.state(2) is JobState.QUEUED
    played.play(10.0)
    assert (played.state(1), played.state(2)) == (JobState.READING, JobState.AT_PE)
    played.play(20.0)
    assert played.state(1) is JobState.AT_PE


def test_a_client_that_is_lost_while_the_disk_is_full_has_its_jobs_answered_once_by_its_heir() -> None:
    played = Played(3)
    played.file(1)
    played.file(2, after=(1,))
    played.play(1.0)
    played.desks.fill_disk(0, 50.0)
    played.find(1)
    played.play(1.0)
    assert played.outcomes() == {}
    assert played.state(2) is JobState.AT_PE
    played.cluster.die(0)
    played.play(10.0)
    assert played.outcomes() == {}
    assert (played.state(1), played.state(2)) == (JobState.AT_PE, JobState.HELD)
    played.find(1)
    played.play(60.0)
    played.find(2)
    played.play(1.0)
    assert played.outcomes() == {1: Outcome.RESULT, 2: Outcome.RESULT}
    assert list(played.outcomes()) == [1, 2]


def test_a_job_that_rests_for_its_next_turn_goes_on_at_the_heir_of_its_client() -> None:
    played = Played(2, DeskPlan(window=3, residents=0))
    played.play_until_one_is_given_up(range(1, 31))
    played.cluster.die(0)
    played.play(10.0)
    assert all(played.state(job) in (JobState.AT_PE, JobState.AGAIN, JobState.QUEUED) for job in range(1, 31))
    for job in range(1, 31):
        played.cluster.interrupt(job)
    played.play(5.0)
    assert set(played.outcomes()) == set(range(1, 31))


def test_a_job_that_arrives_while_its_clients_rank_hangs_begins_soon_after() -> None:
    played = Played()
    played.file(1, arrives_s=0.0053)
    played.play(0.005)
    played.cluster.hang(0, for_s=0.0005)
    played.play(0.0007)
    assert played.state(1) is JobState.HELD
    played.desks.check_rest(set())  # the turn is late, since the rank hung
    played.play(0.01)
    assert played.state(1) is JobState.AT_PE


def test_the_system_ends_with_jobs_in_all_states_and_answers_none_of_them() -> None:
    """Jobs without a reply stay in the journal and run again after the next start."""
    played = Played(2, DeskPlan(window=2, residents=0))
    for job in range(1, 6):
        played.file(job, reads_s=0.5 * job)
    played.file(7, after=(1,))
    played.play(6.0)
    played.cluster.end(0)
    played.play(60.0)
    assert played.outcomes() == {}
    assert not any(played.cluster.is_there(address) for address in (0, 1))


@pytest.mark.parametrize("seed", seeds(24))
def test_a_random_life_with_desks_ends_well(seed: int) -> None:
    Scenario(with_desks(draw_plan(5000 + seed))).run()


@pytest.mark.parametrize("seed", seeds(24))
def test_a_random_life_with_desks_ends_well_where_clients_are_lost_and_join(seed: int) -> None:
    Scenario(with_changes(with_desks(draw_plan(6000 + seed)))).run()


def test_a_drain_waits_for_a_worker_that_is_still_to_have_its_description() -> None:
    """A former fault: the rank was drained while the worker began, and the worker's work was lost with the
    rank.
    """
    Scenario(with_changes(with_desks(draw_plan(100)))).run()
