"""More jobs than PEs, in simulated clusters: their turns, their PE-seconds, their workers."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from mallob_py.protocol.config import Balancing, Config
from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.messages import AnyMessage, Offer
from mallob_py.protocol.stimuli import Drain
from mallob_py.simulation.cluster import Cluster


class Watched:
    """A cluster, with the time for which each job has run."""

    def __init__(self, size: int, seed: int = 0, hosts: int = 1, **settings: Any) -> None:
        self.cluster = Cluster(size, seed, Config(**settings), observe=self._observe, hosts=hosts)
        self.created: Counter[int] = Counter()
        self.left: Counter[int] = Counter()
        self.started_s: dict[int, float] = {}
        self._worked_s: dict[int, float] = defaultdict(float)
        self._since: dict[int, tuple[int, float]] = {}

    def _observe(self, now: float, rank: int, event: str, fields: dict[str, Any]) -> None:
        if event in ("started", "resumed"):
            self._since[rank] = fields["job"], now
            self.started_s.setdefault(fields["job"], now)
        elif event == "idle" and rank in self._since:
            job, since_s = self._since.pop(rank)
            self._worked_s[job] += now - since_s
        elif event == "left":
            self.left[fields["job"]] += 1
        elif event == "adopted" and fields["created"]:
            self.created[fields["job"]] += 1

    def worked_s(self) -> dict[int, float]:
        """Return for how long the processes of each job have run so far."""
        worked_s = dict(self._worked_s)
        for job, since_s in self._since.values():
            worked_s[job] = worked_s.get(job, 0.0) + self.cluster.now - since_s
        return worked_s

    def play(self, seconds: float) -> dict[int, float]:
        """Let time pass; return for how long the processes of each job run meanwhile."""
        before = self.worked_s()
        self.cluster.run(until_s=self.cluster.now + seconds)
        return {job: worked_s - before.get(job, 0.0) for job, worked_s in self.worked_s().items()}


def _endless(watched: Watched, jobs: Sequence[int], **parameters: Any) -> None:
    for job in jobs:
        watched.cluster.submit(job, job % watched.cluster.size, **parameters)
        watched.cluster.run(until_s=watched.cluster.now + 0.1)


@pytest.mark.parametrize(("size", "jobs"), [(1, 3), (4, 5), (4, 8), (16, 21)])
def test_jobs_that_go_on_and_on_get_equal_pe_seconds(size: int, jobs: int) -> None:
    watched = Watched(size)
    _endless(watched, range(jobs))
    watched.play(15.0)
    worked = watched.play(30.0)
    assert sum(worked.values()) > 0.97 * 30.0 * size
    for job in range(jobs):
        assert worked[job] == pytest.approx(30.0 * size / jobs, rel=0.05, abs=0.5)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(("size", "jobs"), [(4, 5), (4, 6), (4, 7), (4, 9), (16, 21)])
def test_on_one_host_no_job_is_off_by_more_than_a_slice_in_5_s(size: int, jobs: int, leaves: bool) -> None:
    watched = Watched(size)
    _endless(watched, range(jobs), leaves=leaves)
    watched.play(15.0)
    for _ in range(6):
        worked = watched.play(5.0)
        for job in range(jobs):
            assert worked[job] == pytest.approx(5.0 * size / jobs, abs=Config().slice_s)


def test_a_new_job_runs_within_50_ms_and_the_others_get_equal_parts_of_the_rest() -> None:
    watched = Watched(4)
    _endless(watched, range(4))
    watched.play(5.0)
    before = watched.worked_s()
    for new in range(100, 120):
        watched.cluster.submit(new, new % 4)
        came_s = watched.cluster.now
        watched.play(0.05)
        assert watched.started_s[new] - came_s < 0.05
        watched.cluster.interrupt(new)
        watched.play(0.45)
    worked = {job: worked_s - before[job] for job, worked_s in watched.worked_s().items() if job < 4}
    assert sum(worked.values()) > 0.98 * (10.0 * 4 - 20 * 0.05)
    for worked_s in worked.values():
        assert worked_s == pytest.approx(sum(worked.values()) / 4, rel=0.05)


def test_brief_jobs_of_one_user_leave_the_long_job_of_another_user_its_share() -> None:
    watched = Watched(1)
    watched.cluster.submit(0, user=1)
    watched.play(1.0)
    long_s, began_s, new = watched.worked_s()[0], watched.cluster.now, 1
    watched.cluster.submit(new, user=2)
    while watched.cluster.now < began_s + 30.0:
        watched.play(0.02)
        if watched.worked_s().get(new, 0.0) >= 0.1:
            watched.cluster.interrupt(new)
            new += 1
            watched.cluster.submit(new, user=2)
    assert watched.worked_s()[0] - long_s > 0.4 * 30.0


def test_a_job_that_rests_goes_on_with_the_process_that_it_had() -> None:
    watched = Watched(4)
    _endless(watched, range(8))
    watched.play(15.0)
    created = watched.created.copy()
    watched.play(15.0)
    assert watched.created == created


def test_all_know_where_the_root_is_of_each_job_that_takes_turns() -> None:
    watched = Watched(4)
    _endless(watched, range(6))
    watched.play(5.0)
    pes = watched.cluster.pes
    records = [record for pe in pes for record in pe.client.jobs.values()]
    running = {record.job: record.root_pe for record in records if record.root_pe >= 0}
    assert len(running) == 4, "the others rest"
    for pe in pes:
        told = {job: event.root for job, event in pe.balancer.jobs.items()}
        assert told.items() >= running.items()
        assert min(told.values()) >= 0


def test_a_root_whose_workers_leave_in_order_rests_with_its_process_too() -> None:
    watched = Watched(2)
    for job in range(4):
        watched.cluster.submit(job, job % 2, leaves=True)
    watched.play(10.0)
    created = watched.created.copy()
    watched.play(20.0)
    assert watched.created == created


@pytest.mark.parametrize("hosts", [1, 4])
def test_of_a_job_that_saves_no_two_roots_are_kept(hosts: int) -> None:
    """Two kept roots would both continue and do the same work."""
    watched = Watched(4, hosts=hosts)
    for job in range(5):
        watched.cluster.submit(job, job % 4, leaves=True)
    for _ in range(100):
        watched.play(0.2)
        processes = Counter(process.job for process in watched.cluster.processes.values())
        assert max(processes.values()) == 1, processes
    assert sum(watched.created.values()) > 5


def test_priorities_and_bounds_hold_over_time() -> None:
    watched = Watched(4)
    _endless(watched, (0, 1, 2))
    _endless(watched, (3,), priority=3.0)
    _endless(watched, (4,), priority=10.0, max_demand=1)
    watched.play(15.0)
    worked = watched.play(40.0)
    assert [round(worked[job] / 40.0, 1) for job in range(5)] == [0.5, 0.5, 0.5, 1.5, 1.0]


def test_a_cpu_limit_counts_what_a_job_has_used_and_a_wallclock_limit_runs_while_it_rests() -> None:
    watched = Watched(1)
    watched.cluster.submit(1, cpu_limit_s=3.0)
    watched.cluster.submit(2, wallclock_limit_s=3.0)
    watched.cluster.submit(3)
    watched.play(12.0)
    used, timed = watched.cluster.ended[1], watched.cluster.ended[2]
    assert (used.outcome, timed.outcome) == (Outcome.CPU_LIMIT, Outcome.WALLCLOCK_LIMIT)
    assert used.stats.pe_s == pytest.approx(3.0)
    assert used.stats.wallclock_s > 6.0
    assert timed.stats.wallclock_s == pytest.approx(3.0)
    assert timed.stats.pe_s < 1.6


@pytest.mark.parametrize("seed", range(6))  # with each seed, some jobs are given up
def test_no_time_limit_counts_the_rests_of_a_job(seed: int) -> None:
    """Each of many jobs on few PEs gets its whole time limit, however jobs come, rest, are given up and go
    on.
    """
    watched = Watched(1 + seed % 4, seed)
    choose, jobs = random.Random(seed), range(12)
    limits_s = [choose.choice((0.3, 1.0, 2.5)) for _ in jobs]
    for job in jobs:
        terms = {"time_limit_s": limits_s[job], "max_demand": 1 + job % 2}
        watched.cluster.submit(job, job % watched.cluster.size, choose.random() < 0.5, **terms)
        watched.play(choose.choice((0.0, 0.2)))
    for _ in range(40):
        watched.cluster.set_back(choose.choice(jobs))
        watched.play(1.0)
    assert watched.cluster.folders.given_up
    for job in jobs:
        ended = watched.cluster.ended[job]
        assert ended.outcome is Outcome.TIME_LIMIT
        assert ended.stats.turns_s == pytest.approx(limits_s[job])
        assert job % 2 or ended.stats.pe_s == pytest.approx(limits_s[job], abs=0.05)
    assert max(one.stats.wallclock_s for one in watched.cluster.ended.values()) > 4.0


def test_a_job_that_rests_can_be_interrupted_and_nothing_is_left_of_it() -> None:
    watched = Watched(1)
    _endless(watched, (1, 2))
    watched.play(3.0)
    (resting,) = (job for job in (1, 2) if watched.cluster.pes[0].balancer.volume(job) == 0)
    watched.cluster.interrupt(resting)
    watched.play(0.1)
    assert watched.cluster.ended[resting].outcome is Outcome.INTERRUPTED
    assert {process.job for process in watched.cluster.processes.values()} == {3 - resting}


def test_no_message_differs_while_there_are_no_more_jobs_than_pes() -> None:
    def messages(**settings: Any) -> list[tuple[float, int, int, AnyMessage]]:
        cluster = Cluster(8, 5, Config(**settings))
        sent: list[tuple[float, int, int, AnyMessage]] = []
        cluster.hold(lambda source, dest, message: sent.append((cluster.now, source, dest, message)) or False)
        for job in range(8):
            cluster.submit(job, job % 3, max_demand=job % 4)
            cluster.run(until_s=cluster.now + 0.5)
        for job in range(0, 8, 2):
            cluster.interrupt(job)
            cluster.run(until_s=cluster.now + 0.5)
        return sent

    assert messages() == messages(slice_s=0.0)


def test_where_volumes_are_computed_together_jobs_wait_in_order() -> None:
    watched = Watched(2, balancing=Balancing.DISTRIBUTED)
    _endless(watched, (1, 2, 3))
    watched.play(5.0)
    assert watched.worked_s().keys() == {1, 2}


def _given_up(leaves: bool) -> Watched:
    """Return a cluster with three jobs on one PE, where the second job has been given up twice."""
    watched = Watched(1)
    for job in (1, 2, 3):
        watched.cluster.submit(job, leaves=leaves, cpu_limit_s=5.0 if job == 2 else 0.0)
    watched.play(3.0)
    for count in (1, 2):
        watched.cluster.set_back(2)
        watched.play(3.0)
        assert watched.cluster.folders.given_up == count
    return watched


@pytest.mark.parametrize("leaves", [False, True])
def test_a_job_that_is_given_up_begins_anew_and_what_it_had_counts(leaves: bool) -> None:
    watched = _given_up(leaves)
    assert watched.created[2] == 3
    assert {process.job for process in watched.cluster.processes.values()} == {1, 2, 3}
    watched.play(12.0)
    used = watched.cluster.ended[2]
    assert used.outcome is Outcome.CPU_LIMIT
    assert used.stats.pe_s == pytest.approx(5.0)
    assert used.stats.wallclock_s > 13.0
    assert {process.job for process in watched.cluster.processes.values()} == {1, 3}


def test_a_root_that_saves_does_so_before_its_job_is_given_up() -> None:
    events: list[str] = []
    cluster = Cluster(1, observe=lambda now, rank, event, fields: events.append(event))
    for job in (1, 2):
        cluster.submit(job, leaves=True)
    cluster.run(until_s=3.0)
    (resting,) = (job for job in (1, 2) if cluster.pes[0].balancer.volume(job) == 0)
    cluster.set_back(resting)
    cluster.run(until_s=3.1)
    assert [event for event in events if event in ("leaving", "left", "given up")] == [
        "leaving",
        "left",
        "given up",
    ]


def test_a_job_that_is_to_be_given_up_goes_on_where_no_others_want_its_place() -> None:
    watched = Watched(1)
    _endless(watched, (1, 2))
    watched.play(3.0)
    (running,) = (job for job in (1, 2) if watched.cluster.pes[0].balancer.volume(job))
    watched.cluster.set_back(running)
    watched.cluster.interrupt(3 - running)
    watched.play(3.0)
    _endless(watched, (4,))
    watched.play(3.0)
    assert watched.cluster.folders.given_up == 0
    assert watched.created[running] == 1


def test_who_was_asked_before_a_job_was_given_up_is_no_root_of_it() -> None:
    """A PE asked before is no root; it will hear that the job has ended, and end its worker."""
    cluster = Cluster(2)
    for job in (1, 2, 3, 4, 5):
        cluster.submit(job)
    cluster.run(until_s=3.0)
    (resting, *_) = (job for job in (1, 2, 3, 4, 5) if cluster.pes[0].balancer.volume(job) == 0)
    cluster.set_back(resting)
    client = cluster.pes[0].client
    while not cluster.folders.given_up or resting not in client.jobs:
        cluster.run(until_s=cluster.now + 0.0001)
    record = client.jobs[resting]
    record.seats.fit(1, cluster.pes[0].balancer.epoch, cluster.now)
    client.receive_offer(1, Offer(resting, 0, 12345, epoch=1), cluster.now)
    assert record.root_pe == -1


def test_roots_that_rest_on_a_drained_rank_save_their_jobs_before_it_leaves() -> None:
    watched = Watched(2, leavers_max=1)
    for job in range(8):
        watched.cluster.submit(job, job % 2, leaves=True)
    watched.play(10.0)
    cluster = watched.cluster
    resting = {process.job for (rank, _), process in cluster.processes.items() if rank == 1}
    assert len(resting) > 2
    left = watched.left.copy()
    cluster.tell(1, Drain())
    while not cluster.pes[1].is_drained:
        watched.play(0.01)
    assert resting <= (watched.left - left).keys()
    assert not any(rank == 1 for rank, _ in cluster.processes)
