"""A client's status: all running jobs, some waiting jobs, the last ended jobs, and the numbers of all
jobs.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.messages import Description
from mallob_py.protocol.pe import PE
from mallob_py.protocol.placement import Placement
from mallob_py.protocol.rank_messages import RankNews, RankUse
from mallob_py.protocol.rank_reports import RankReports
from mallob_py.protocol.stimuli import JobParameters, JobSubmitted, Tick, WorkerStarted, WorkerUsed
from mallob_py.service.desk_machine import DeskMachine, DeskSetting
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.jobs.job_file import InputUse, JobFile, parse_job
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.jobs.reply import JobStatistics
from mallob_py.service.parts import Parts
from mallob_py.service.telemetry import status_writer
from mallob_py.service.telemetry.status import HostStatus, UserStatus
from mallob_py.service.telemetry.status_writer import ENDED_MAX, GROUPS_MAX, OTHERS_MAX, StatusWriter


def file_of(name: str, **fields: Any) -> JobFile:
    import json

    content = json.dumps({"user": "u", "name": name, "application": "NOOP"} | fields).encode()
    job = parse_job(content, {"NOOP": InputUse.NONE, "READ": InputUse.REQUIRED})
    assert isinstance(job, JobFile)
    return job


class Client:
    """A client that has taken in jobs, with a PE."""

    def __init__(self, folder: Path) -> None:
        self.pe = PE(0, 1, Config())
        self.node = SimpleNamespace(
            present=SimpleNamespace(number=1),
            placement=Placement((1,)),
            pe=self.pe,
            config=Config(),
            reports=RankReports(0, "h", 7, 4),
        )
        hands: Any = Mock(now=lambda: 0.0, is_suspect=lambda job: False, replied=lambda identity: None)
        self.machine = DeskMachine(hands, DeskSetting(1, 60.0))
        self.jobs = self.machine.jobs
        running = RunningJobs(folder, None, lambda message: None)
        rank: Any = SimpleNamespace(node=self.node, pool=Mock(**{"pid_of.return_value": os.getpid()}))
        parts = Parts(rank, Mock(), self.machine, Mock(), running, Mock())
        self.writer = StatusWriter(parts, folder, 0, 1)

    def take(self, job: int, **fields: Any) -> None:
        file = file_of(f"n{job}", **fields)
        self.machine.admit(LiveJob(job, file, 0.0, 0.0), "")

    def run(self, job: int) -> None:
        self.machine.turn(0.0)
        self.machine.terms(self.jobs[job], False, 0.0)
        parameters = JobParameters(priority=2.0, max_demand=1)
        self.pe.handle(JobSubmitted(job, parameters, Description(0, b"")), 0.0)
        self.pe.handle(Tick(), 1.0)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def test_what_a_job_asks_for_and_waits_for_is_told(client: Client) -> None:
    client.take(
        1, priority=3.0, dependencies=["u.x", "u.y"], arrival=50, **{"cpu-limit": "9s", "max-demand": 4}
    )
    (job,) = client.writer.status(10.0).jobs
    assert (job.state, job.priority, job.max_demand, job.cpu_limit_s) == ("held", 3.0, 4, 9.0)
    assert (job.waits_for, job.waits_for_count, job.arrives_in_s) == (("u.x", "u.y"), 2, 40.0)


def test_what_the_pe_knows_of_a_job_is_told(client: Client) -> None:
    client.take(1)
    client.run(1)
    client.pe.handle(WorkerStarted(0), 2.0)
    client.pe.handle(WorkerUsed(0, 1.5, 300), 3.0)
    status = client.writer.status(12.0)
    (job,) = status.jobs
    assert (job.state, job.volume, job.demand, job.demand_bound) == ("running", 1, 1, 1)
    assert (job.running_s, job.pe_s, job.cpu_s, job.peak_memory_bytes) == (10.0, 10.0, 1.5, 300)
    assert job.root_is_placed
    assert (status.busy, status.states) == (1, {"running": 1})
    assert status.users == {"u": UserStatus(1, 1, 1, None, 1.0)}


def test_how_far_an_input_is_read_is_told(client: Client, tmp_path: Path) -> None:
    formula = tmp_path / "formula"
    formula.write_bytes(bytes(100))
    client.take(1, application="READ", files=[str(formula)])
    client.machine.turn(0.0)
    client.machine.reads(client.jobs[1], 1.0)
    with formula.open("rb", buffering=0) as file:
        file.read(30)
        (job,) = client.writer.status(4.0).jobs
    assert (job.state, job.reading_s, job.read_bytes, job.input_bytes) == ("reading", 3.0, 30, 100)
    (job,) = client.writer.status(4.0).jobs
    assert (job.read_bytes, job.input_bytes) == (0, 0)


def test_setting_the_clock_does_not_change_how_long_the_service_is_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unix_s in (1e9, 1e9 - 3600.0):
        monkeypatch.setattr(status_writer.time, "time", lambda unix_s=unix_s: unix_s)
        status = client.writer.status(12.0)
        assert (status.time, status.started) == (unix_s, unix_s - 12.0)


def test_the_list_is_bounded_has_all_that_run_and_all_are_counted(client: Client) -> None:
    count = 3 * OTHERS_MAX
    for job in range(1, count):
        client.take(job, arrival=1e9)
    client.take(count)
    client.run(count)
    status = client.writer.status(1.0)
    assert len(status.jobs) == OTHERS_MAX + 1
    assert status.jobs[0].id == count
    assert status.states == {"running": 1, "held": count - 1}
    assert status.job_count == count
    assert status.users["u"].jobs == count


def test_groups_are_counted_with_those_of_their_jobs_that_run(client: Client) -> None:
    assert client.writer.status(1.0).groups == ()
    for job in (1, 2):
        client.take(job, group="g")
    client.take(3, group="g", user="v")
    client.take(4)
    client.run(1)
    status = client.writer.status(5.0)
    groups = {(one.user, one.name): (one.jobs, one.running, one.waiting) for one in status.groups}
    assert groups == {("u", "g"): (2, 1, 1), ("v", "g"): (1, 0, 1)}
    assert all(abs(status.time - one.since - 5.0) < 0.5 for one in status.groups)
    assert {job.id: job.group for job in status.jobs} == {1: "g", 2: "g", 3: "g", 4: ""}
    for job in (2, 3):
        client.machine.answer(client.jobs[job], "result")
    assert [(one.user, one.jobs) for one in client.writer.status(6.0).groups] == [("u", 1)]


def test_the_last_groups_that_began_are_listed(client: Client) -> None:
    for job in range(1, 2 * GROUPS_MAX):
        client.take(job, group=f"g{job}", arrival=1e9)
    groups = client.writer.status(1.0).groups
    assert (len(groups), groups[0].name) == (GROUPS_MAX, f"g{2 * GROUPS_MAX - 1}")


def test_an_ended_or_refused_job_is_told_with_its_group(client: Client) -> None:
    client.writer.job_ended(LiveJob(1, file_of("a", group="g"), 0.0, 0.0), Outcome.RESULT, JobStatistics())
    client.writer.refused(2, "u", "b", "priority: is 0", "g")
    assert [job.group for job in client.writer.status(1.0).ended] == ["g", "g"]


def test_the_last_ended_jobs_are_kept(client: Client) -> None:
    for job in range(3 * ENDED_MAX):
        statistics = JobStatistics(total_s=1.0, used_pe_s=4.0, used_cpu_s=3.0, max_volume=2)
        client.writer.job_ended(LiveJob(job, file_of(f"n{job}"), 0.0, 0.0), Outcome.RESULT, statistics, "SAT")
    bad = LiveJob(-1, file_of("bad"), 0.0, 0.0)
    client.writer.job_ended(bad, Outcome.FAILED, JobStatistics(), error="x" * 10_000)
    client.writer.refused(-2, "", "file\udcff.json", "user: is missing")
    ended = client.writer.status(1.0).ended
    assert len(ended) == ENDED_MAX
    assert (ended[-3].result, ended[-3].pe_s, ended[-3].cpu_s) == ("SAT", 4.0, 3.0)
    assert len(ended[-2].error) < 1000
    assert (ended[-1].outcome, ended[-1].name) == ("refused", "file\\udcff.json")
    client.writer.write(1.0)


def test_hosts_are_put_together_from_what_their_ranks_tell(client: Client) -> None:
    client.node.reports.of_ranks = {
        2: RankNews("b", 12, 4, 1, ("no process can be started",)),
        0: RankNews("a", 10, 1, 1, use=RankUse(5, 0.5, 70, 80)),
        1: RankNews("b", 11, 4, 4, ("short of memory", "no process can be started")),
    }
    assert client.writer.status(1.0).hosts == (
        HostStatus("a", (0,), 1, 1, uses=(RankUse(5, 0.5, 70, 80),)),
        HostStatus(
            *("b", (1, 2), 8, 5, ("short of memory", "no process can be started")),
            uses=(RankUse(), RankUse()),
        ),
    )


def test_a_rank_tells_how_it_is_only_when_that_has_changed() -> None:
    reporter = RankReports(1, "h", 7, 4)
    reporter.send_to(0)
    first = reporter.news(1, ())
    assert first is not None
    assert (first.pes, first.busy, first.troubles) == (4, 1, ())
    assert reporter.news(1, ()) is None
    assert reporter.news(1, ("short of memory",)) is not None
    assert reporter.news(2, ("short of memory",)) is not None
    assert reporter.news(2, ("short of memory",)) is None
