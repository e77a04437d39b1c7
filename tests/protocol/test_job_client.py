"""A job's life at its client: demand, budgets, limits, statistics. The system is a single PE, which the test
drives.
"""

import math
from typing import Any

import pytest

from mallob_py.protocol import stimuli
from mallob_py.protocol.balancing import Balancer
from mallob_py.protocol.client import ClientJob
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import FetchDescription, JobEnded, JobSought, Log, Outcome, Send, StartWorker
from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.messages import DemandChanged, Description, Used, WorkerFailed
from mallob_py.protocol.pe import PE
from mallob_py.protocol.progress import Progress
from mallob_py.simulation.check import check_invariants
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import RandomDelays

_DESCRIPTION = Description(1, b"x")


class Alone:
    """One PE that is the whole cluster, and a clock."""

    def __init__(self, **settings: Any) -> None:
        self.pe = PE(0, 1, Config(**settings))
        self.now = 0.0
        self.ended: dict[int, JobEnded] = {}
        self.started: list[StartWorker] = []

    def collect(self) -> None:
        for effect in self.pe.take_effects():
            if isinstance(effect, JobEnded):
                assert effect.job not in self.ended
                self.ended[effect.job] = effect
            elif isinstance(effect, StartWorker):
                self.started.append(effect)

    def submit(self, job: int, **parameters: Any) -> None:
        self.pe.handle(stimuli.JobSubmitted(job, stimuli.JobParameters(**parameters), _DESCRIPTION), self.now)
        self.collect()

    def start(self) -> None:
        """Report that the process requested last runs."""
        self.pe.handle(stimuli.WorkerStarted(self.started[-1].worker), self.now)
        self.collect()

    def wait_until(self, when_s: float) -> None:
        """Let time pass, with a tick at each deadline."""
        while (deadline := self.pe.deadline_s) <= when_s:
            self.now = max(self.now, deadline)
            self.pe.handle(stimuli.Tick(), self.now)
            self.collect()
        self.now = when_s


def test_the_wallclock_limit_ends_the_job_at_the_very_deadline() -> None:
    alone = Alone()
    alone.submit(1, wallclock_limit_s=10.0)
    alone.now = 3.0
    alone.start()
    alone.wait_until(12.999)
    assert not alone.ended
    alone.wait_until(13.0)
    assert alone.ended[1].outcome is Outcome.WALLCLOCK_LIMIT
    assert alone.ended[1].stats.wallclock_s == 10.0
    assert alone.ended[1].stats.response_s == 13.0


def test_the_cpu_limit_counts_all_cores_of_a_worker() -> None:
    alone = Alone(threads=4)
    alone.submit(1, cpu_limit_s=10.0)
    alone.start()
    alone.wait_until(2.4)
    assert not alone.ended
    alone.wait_until(2.5)
    assert alone.ended[1].outcome is Outcome.CPU_LIMIT
    assert alone.ended[1].stats.pe_s == pytest.approx(10.0)


def test_the_cpu_limit_counts_all_workers_though_the_root_ran_before_the_first_volume_was_known() -> None:
    cluster = Cluster(4, delays=RandomDelays(process_start_s=(0.001, 0.001), message_s=(0.01, 0.01)))
    cluster.submit(1, cpu_limit_s=20.0)
    cluster.run(until_s=60.0)
    stats = cluster.ended[1].stats
    assert stats.started_s is not None
    assert stats.balanced_s is not None
    assert stats.started_s < stats.balanced_s
    assert cluster.ended[1].outcome is Outcome.CPU_LIMIT
    assert stats.pe_s == pytest.approx(20.0)


def test_the_limit_that_is_reached_first_ends_the_job() -> None:
    alone = Alone()
    alone.submit(1, cpu_limit_s=10.0, wallclock_limit_s=5.0)
    alone.start()
    alone.wait_until(100.0)
    assert alone.ended[1].outcome is Outcome.WALLCLOCK_LIMIT


def test_a_job_without_limits_wants_no_tick() -> None:
    alone = Alone()
    alone.submit(1)
    alone.start()
    alone.wait_until(1000.0)
    assert not alone.ended
    assert alone.pe.client.deadline_s == math.inf


def test_no_budget_is_used_before_the_process_runs() -> None:
    alone = Alone()
    alone.submit(1, cpu_limit_s=10.0, wallclock_limit_s=10.0)
    alone.wait_until(1000.0)
    assert not alone.ended
    alone.pe.handle(stimuli.JobInterrupted(1), alone.now)
    alone.collect()
    stats = alone.ended[1].stats
    assert (stats.pe_s, stats.wallclock_s, stats.started_s) == (0.0, 0.0, None)
    assert stats.response_s == 1000.0


def test_a_waiting_job_uses_no_budget() -> None:
    """Two jobs share one PE: the job of lower priority is suspended while the other runs."""
    alone = Alone()
    alone.submit(1, cpu_limit_s=10.0)
    alone.start()
    alone.wait_until(4.0)
    alone.submit(2, priority=1000.0, wallclock_limit_s=50.0)
    alone.wait_until(5.0)
    assert [effect.job for effect in alone.started] == [1, 2]
    alone.start()
    alone.wait_until(54.0)
    assert not alone.ended
    alone.wait_until(58.0)
    assert alone.ended[2].outcome is Outcome.WALLCLOCK_LIMIT
    assert alone.pe.client.jobs[1].pe_s < 8.0
    alone.wait_until(70.0)
    assert alone.ended[1].outcome is Outcome.CPU_LIMIT
    assert alone.ended[1].stats.pe_s == pytest.approx(10.0)


def test_a_time_limit_counts_while_a_job_has_a_pe_and_a_wallclock_limit_all_the_time() -> None:
    alone = Alone()
    alone.submit(1, time_limit_s=10.0)
    alone.start()
    alone.wait_until(4.0)
    alone.submit(2, priority=1000.0, wallclock_limit_s=50.0)
    alone.wait_until(5.0)
    alone.start()
    alone.wait_until(54.0)
    assert not alone.ended
    alone.wait_until(70.0)
    assert alone.ended[1].outcome is Outcome.TIME_LIMIT
    stats = alone.ended[1].stats
    assert stats.turns_s == pytest.approx(10.0)
    assert stats.turns_s == pytest.approx(stats.pe_s)
    assert stats.wallclock_s > 50.0


@pytest.mark.parametrize(
    ("limit", "outcome"), [("time_limit_s", Outcome.TIME_LIMIT), ("cpu_limit_s", Outcome.CPU_LIMIT)]
)
def test_a_limit_does_not_count_while_no_pe_has_the_root_of_a_job(limit: str, outcome: Outcome) -> None:
    """The root's process is lost, and the host gives no process for a while."""
    alone = Alone()
    alone.submit(1, **{limit: 10.0})
    alone.start()
    alone.now = 4.0
    alone.pe.handle(stimuli.HostRests(30.0), alone.now)
    alone.pe.handle(stimuli.WorkerLost(alone.started[-1].worker, "no memory"), alone.now)
    alone.collect()
    alone.wait_until(29.0)
    assert not alone.ended
    assert alone.pe.client.jobs[1].turns_s_until(alone.now) == pytest.approx(4.0)
    alone.wait_until(31.0)
    alone.start()
    alone.wait_until(50.0)
    assert alone.ended[1].outcome is outcome
    stats = alone.ended[1].stats
    assert (stats.turns_s, stats.pe_s) == (pytest.approx(10.0), pytest.approx(10.0))


def test_a_time_limit_is_no_multiple_of_the_workers_of_a_job() -> None:
    cluster = Cluster(4)
    cluster.submit(1, time_limit_s=10.0)
    cluster.run(until_s=60.0)
    stats = cluster.ended[1].stats
    assert cluster.ended[1].outcome is Outcome.TIME_LIMIT
    assert (stats.wallclock_s, stats.turns_s) == (pytest.approx(10.0), pytest.approx(10.0))
    assert stats.pe_s > 35.0


def test_a_job_whose_process_runs_first_when_its_pe_is_anothers_uses_no_budget() -> None:
    alone = Alone(slice_s=0.0)
    alone.submit(1, cpu_limit_s=10.0)
    (process,) = alone.started
    alone.submit(2, priority=1000.0)
    alone.wait_until(1.0)
    assert alone.pe.balancer.volume(1) == 0
    alone.pe.handle(stimuli.WorkerStarted(process.worker), alone.now)
    alone.wait_until(100.0)
    assert not alone.ended
    assert alone.pe.client.jobs[1].pe_s_until(alone.now, 1) == 0.0


def test_it_is_told_once_that_a_pe_is_sought_for_a_job() -> None:
    pe = PE(0, 1, Config())
    pe.handle(stimuli.JobSubmitted(1, stimuli.JobParameters(), Description(3, b"abc")), 0.0)
    pe.handle(stimuli.JobSubmitted(2, stimuli.JobParameters(), Description(3, b"abc")), 0.0)
    for now in (0.5, 1.0, 1.5, 2.0):
        pe.handle(stimuli.Tick(), now)
    sought = [effect.job for effect in pe.take_effects() if isinstance(effect, JobSought)]
    assert sought == [1, 2]


@pytest.mark.parametrize("size", [1, 2])
def test_that_a_pe_is_sought_is_told_before_any_worker_can_be_started(size: int) -> None:
    """Otherwise a job that kills this rank at once would not be recorded as having been at work."""
    pe = PE(0, size, Config())
    for job in range(1, size + 1):  # job 1 is placed on this PE
        pe.handle(stimuli.JobSubmitted(job, stimuli.JobParameters(), _DESCRIPTION), 0.0)
    news = [effect for effect in pe.take_effects() if not isinstance(effect, Log)]
    assert JobSought(size) in news
    first = next(
        number
        for number, effect in enumerate(news)
        if (isinstance(effect, StartWorker) and effect.job == size) or isinstance(effect, Send)
    )
    assert news.index(JobSought(size)) < first


def test_a_failure_of_the_application_is_the_job_s_reason() -> None:
    alone = Alone()
    alone.submit(1)
    alone.pe.handle(stimuli.Received(0, WorkerFailed(1, 0, "ValueError: no")), 1.0)
    alone.collect()
    assert (alone.ended[1].outcome, alone.ended[1].reason) == (Outcome.FAILED, "ValueError: no")


def test_a_job_whose_root_gets_no_description_ends_with_the_reason() -> None:
    pe = PE(0, 1, Config(losses_max=1))
    pe.handle(stimuli.JobSubmitted(1, stimuli.JobParameters(), Description(10_000)), 0.0)
    for now in (1.0, 2.0):
        pe.handle(stimuli.Tick(), now)
        effects = pe.take_effects()
        assert any(isinstance(effect, FetchDescription) for effect in effects)
        assert not any(isinstance(effect, JobEnded) for effect in effects)
        pe.handle(stimuli.DescriptionMissing(1, "no space left", Fault.HOST), now)
    (ended,) = [effect for effect in pe.take_effects() if isinstance(effect, JobEnded)]
    assert ended.outcome is Outcome.FAILED
    assert ended.reason == "no PE could start the job in 2 attempts; last error: no space left"


def test_an_unknown_job_cannot_be_interrupted() -> None:
    alone = Alone()
    alone.pe.handle(stimuli.JobInterrupted(1), 0.0)
    assert not alone.pe.effects
    alone.submit(1)
    alone.pe.handle(stimuli.JobInterrupted(1), 0.0)
    alone.pe.handle(stimuli.JobInterrupted(1), 0.0)
    assert [type(effect) for effect in alone.pe.effects].count(JobEnded) == 1


def test_statistics_tell_when_the_job_was_balanced_scheduled_and_started() -> None:
    alone = Alone()
    alone.now = 5.0
    alone.submit(1)
    alone.wait_until(7.0)
    alone.start()
    alone.pe.handle(stimuli.WorkerAnswered(alone.started[-1].worker, b"yes"), 9.0)
    alone.collect()
    stats = alone.ended[1].stats
    assert stats.balanced_s == pytest.approx(Config().unannounced_max_s)
    assert (stats.scheduled_s, stats.started_s) == (0.0, 2.0)
    assert (stats.response_s, stats.wallclock_s, stats.pe_s, stats.max_volume) == (4.0, 2.0, 2.0, 1)
    assert alone.ended[1].body == b"yes"


def test_the_memory_of_a_job_is_that_of_the_worker_that_needed_most() -> None:
    cluster = Cluster(4)
    cluster.submit(1)
    cluster.run(until_s=0.2)
    for (rank, worker), peak_bytes in zip(sorted(cluster.running(1)), (300, 500, 400, 0), strict=True):
        cluster.tell(rank, stimuli.WorkerUsed(worker, 0.0, peak_bytes))
    cluster.run(until_s=0.3)
    rank, worker = sorted(cluster.running(1))[0]
    cluster.tell(rank, stimuli.WorkerAnswered(worker, b"yes", 450))
    cluster.run(until_s=0.4)
    assert cluster.ended[1].stats.peak_memory_bytes == 500


def test_the_cpu_time_of_a_job_is_that_of_all_its_workers_and_late_news_of_it_do_no_harm() -> None:
    cluster = Cluster(4)
    cluster.submit(1)
    cluster.run(until_s=0.2)
    workers = sorted(cluster.running(1))
    for _ in range(2):
        for rank, worker in workers:
            cluster.tell(rank, stimuli.WorkerUsed(worker, 0.5, 0))
    cluster.run(until_s=0.3)
    rank, worker = workers[0]
    cluster.tell(rank, stimuli.WorkerAnswered(worker, b"yes", cpu_s=0.25))
    rank, worker = workers[1]
    cluster.tell(rank, stimuli.WorkerUsed(worker, 0.5, 0))
    cluster.run(until_s=0.4)
    stats = cluster.ended[1].stats
    assert stats.cpu_s == pytest.approx(4.25)
    assert stats.pe_s == pytest.approx(4 * 0.3, rel=0.2)


def test_the_memory_needed_for_the_result_counts_and_late_news_of_it_do_no_harm() -> None:
    alone = Alone()
    alone.submit(1)
    alone.start()
    worker = alone.started[-1].worker
    alone.pe.handle(stimuli.WorkerUsed(worker, 0.0, 300), 1.0)
    alone.pe.handle(stimuli.WorkerAnswered(worker, b"yes", 450), 2.0)
    alone.pe.handle(stimuli.WorkerUsed(worker, 0.0, 900), 2.0)
    alone.pe.handle(stimuli.Received(0, Used(1, 0.0, 900)), 2.0)
    alone.collect()
    assert alone.ended[1].stats.peak_memory_bytes == 450


@pytest.mark.parametrize(
    ("max_demand", "wanted", "given"), [(0, 3, 3), (0, 99, 8), (5, 99, 5), (5, 0, 1), (5, -7, 1), (99, 99, 8)]
)
def test_a_demand_is_kept_between_one_and_what_the_user_allows(
    max_demand: int, wanted: int, given: int
) -> None:
    cluster = Cluster(8)
    cluster.submit(1, max_demand=max_demand)
    cluster.run(until_s=0.1)
    cluster.tell(0, stimuli.Received(0, DemandChanged(1, wanted)))
    cluster.run(until_s=0.2)
    assert cluster.pes[3].balancer.volume(1) == given


def test_progress_is_heard_of_the_root_alone() -> None:
    cluster = Cluster(2)
    cluster.submit(1)
    cluster.run(until_s=0.1)
    for rank, pe in enumerate(cluster.pes):
        worker = pe.workers.active
        assert worker is not None
        cluster.tell(rank, stimuli.WorkerProgresses(worker.number, Progress(7.0 + worker.index)))
    cluster.run(until_s=0.2)
    progression = cluster.pes[0].client.jobs[1].progression
    assert progression is not None
    assert progression.last == Progress(7.0)


def test_the_log_tells_the_steps_of_a_job_in_order() -> None:
    pe = PE(0, 1, Config())
    pe.handle(stimuli.JobSubmitted(1, stimuli.JobParameters(), _DESCRIPTION), 0.0)
    pe.handle(stimuli.Tick(), 0.5)
    pe.handle(stimuli.WorkerStarted(0), 1.0)
    pe.handle(stimuli.WorkerAnswered(0, b"yes"), 2.0)
    events = [
        effect.event for effect in pe.effects if isinstance(effect, Log) and effect.fields.get("job") == 1
    ]
    steps = ["submitted", "balanced", "scheduled", "started", "ended"]
    assert [event for event in events if event in steps] == sorted(
        (event for event in events if event in steps), key=lambda event: events.index(event)
    )
    assert events[0] == "submitted"
    assert set(steps) <= set(events)


def test_a_job_that_is_over_in_its_first_moment_is_never_announced() -> None:
    cluster = Cluster(8)
    cluster.submit(1)
    cluster.run(until_s=0.0)
    (rank, worker), *others = cluster.processes
    assert not others
    cluster.run(until_s=0.0002)
    cluster.tell(rank, stimuli.WorkerStarted(worker))
    cluster.run(until_s=0.0003)
    cluster.tell(rank, stimuli.WorkerAnswered(worker, b"yes"))
    assert cluster.ended[1].outcome is Outcome.RESULT
    cluster.settle()
    assert {pe.balancer.epoch for pe in cluster.pes} == {0}
    check_invariants(cluster)


def test_a_job_that_found_no_idle_pe_on_the_spot_is_announced_all_the_same() -> None:
    cluster = Cluster(2)
    cluster.submit(1, max_demand=1)
    cluster.submit(2, max_demand=1)
    cluster.settle()
    assert cluster.pes[1].balancer.image.volumes == {1: 1, 2: 1}
    check_invariants(cluster)


def test_nothing_of_an_ended_job_is_kept() -> None:
    alone = Alone()
    for job in range(50):
        alone.submit(job)
        alone.pe.handle(stimuli.JobInterrupted(job), alone.now)
        alone.wait_until(alone.now + 1.0)
    assert not alone.pe.client.jobs
    assert not alone.pe.client._turnover.unseen
    assert not alone.pe.balancer.jobs
    assert not alone.pe.workers.suspended
    assert alone.pe.workers.active is None


@pytest.mark.parametrize(("delay_s", "grows_s"), [(None, 0.1), (0.5, 0.5)])
def test_a_job_may_have_its_own_delay_before_it_grows(delay_s: float | None, grows_s: float) -> None:
    alone = Alone(growth_delay_s=0.1, unannounced_max_s=0.0)
    alone.submit(1, growth_delay_s=delay_s)
    alone.wait_until(1.0)
    alone.start()
    assert alone.pe.client.next_announcement() == 1.0 + grows_s


@pytest.mark.parametrize(("ran_s", "delays_s"), [(0.002, [0.0003] * 4 + [0.006] * 2), (0.1, [0.0003] * 6)])
def test_a_job_grows_later_if_the_last_ones_of_its_client_were_brief(
    ran_s: float, delays_s: list[float]
) -> None:
    alone = Alone(unannounced_max_s=0.0, turnover_max_s=0.0)
    for job, delay_s in enumerate(delays_s):
        alone.submit(job)
        alone.start()
        assert alone.pe.client.next_announcement() - alone.now == pytest.approx(delay_s)
        alone.wait_until(alone.now + ran_s)
        alone.pe.handle(stimuli.JobInterrupted(job), alone.now)
        alone.wait_until(alone.now + 1.0)


def _volumes(cluster: Cluster) -> dict[int, int]:
    cluster.run(until_s=cluster.now + 1.0)
    check_invariants(cluster)
    return {job: cluster.pes[5].balancer.volume(job) or 0 for job in cluster.pes[5].balancer.jobs}


def test_running_jobs_go_on_with_other_priorities_and_bounds() -> None:
    cluster = Cluster(8)
    for job in (1, 2):
        cluster.submit(job, rank=job)
    assert _volumes(cluster) == {1: 4, 2: 4}
    cluster.folders.tell(1, stimuli.TermsChanged(1, 3.0, 0))
    assert _volumes(cluster) == {1: 6, 2: 2}
    cluster.folders.tell(1, stimuli.TermsChanged(1, 3.0, 1))
    assert _volumes(cluster) == {1: 1, 2: 7}
    cluster.folders.tell(1, stimuli.TermsChanged(1, 1.0, 5))
    assert _volumes(cluster) == {1: 4, 2: 4}
    cluster.folders.tell(2, stimuli.TermsChanged(2, 1.0, 2))
    assert _volumes(cluster) == {1: 5, 2: 2}


def test_a_lifted_bound_gives_a_job_what_its_application_wants_and_no_more() -> None:
    cluster = Cluster(8)
    cluster.submit(1, max_demand=2)
    cluster.run(until_s=1.0)
    cluster.tell(0, stimuli.Received(0, DemandChanged(1, 5)))
    assert _volumes(cluster) == {1: 2}
    cluster.folders.tell(1, stimuli.TermsChanged(1, 1.0, 0))
    assert _volumes(cluster) == {1: 5}


def test_terms_of_a_job_that_is_not_published_go_with_its_first_event() -> None:
    alone = Alone(unannounced_max_s=1.0)
    alone.submit(1)
    alone.pe.handle(stimuli.TermsChanged(1, 7.0, 1), alone.now)
    assert not alone.pe.client.jobs[1].is_published
    alone.wait_until(2.0)
    assert alone.pe.balancer.jobs[1].priority == 7.0


def test_terms_that_are_no_news_are_not_published() -> None:
    alone = Alone()
    alone.submit(1)
    alone.wait_until(1.0)
    version = alone.pe.client.jobs[1].version
    alone.pe.handle(stimuli.TermsChanged(1, 1.0, 0), alone.now)
    assert alone.pe.client.jobs[1].version == version


def test_an_unknown_job_has_no_terms() -> None:
    alone = Alone()
    alone.pe.handle(stimuli.TermsChanged(1, 1.0, 0), alone.now)
    assert not alone.pe.effects
    assert alone.pe.balancer.next_deadline() == math.inf


class _Counted:
    """A counter of the calls of a method."""

    def __init__(self, owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def counting(*arguments: Any) -> Any:
            self.calls += 1
            return original(*arguments)

        monkeypatch.setattr(owner, name, counting)


def test_an_epoch_and_a_deadline_cost_nothing_for_jobs_that_go_on_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Alone(slice_s=0.0)
    for job in range(1, 301):
        alone.submit(job, cpu_limit_s=10.0, wallclock_limit_s=20.0)
    alone.wait_until(1.0)
    looks = _Counted(Balancer, "volume", monkeypatch)
    deadlines = _Counted(ClientJob, "deadline", monkeypatch)
    for _ in range(100):
        alone.start()
        alone.wait_until(alone.now + 10.0)
    assert len(alone.ended) == 100
    assert looks.calls < 100 * 30
    assert deadlines.calls < 100 * 30


def test_deadlines_that_change_all_the_time_are_not_all_remembered() -> None:
    alone = Alone()
    alone.submit(1, cpu_limit_s=1e6)
    alone.start()
    for change in range(1000):
        alone.submit(2 + change, priority=1000.0)
        alone.wait_until(alone.now + 0.1)
        alone.pe.handle(stimuli.JobInterrupted(2 + change), alone.now)
        alone.collect()
        alone.wait_until(alone.now + 0.1)
    assert len(alone.pe.client._due) < 200


def test_a_job_that_waited_before_its_submission_comes_first() -> None:
    alone = Alone()
    alone.now = 50.0
    alone.submit(1)
    alone.start()
    alone.submit(2, waiting_since_s=40.0)
    alone.submit(3, waiting_since_s=20.0)
    alone.submit(4, waiting_since_s=30.0)
    alone.wait_until(51.0)
    for _ in range(3):
        alone.pe.handle(stimuli.JobInterrupted(alone.started[-1].job), alone.now)
        alone.collect()
        alone.wait_until(alone.now + 1.0)
    assert [effect.job for effect in alone.started] == [1, 3, 4, 2]


def test_a_job_that_grows_late_still_ends_at_its_limit() -> None:
    alone = Alone(growth_delay_s=5.0)
    alone.submit(1, wallclock_limit_s=10.0)
    alone.start()
    alone.wait_until(100.0)
    assert alone.ended[1].outcome is Outcome.WALLCLOCK_LIMIT
