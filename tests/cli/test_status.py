"""What `status` says about a service that runs, has died or never was."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mallob_py.cli import main as main_module
from mallob_py.service.status_file import (
    STATUS_FILE_NAME,
    JobStatus,
    ServiceStatus,
    read_status,
    remove_status,
    write_status,
)
from mallob_py.service.tallies import Totals

JOB = JobStatus(7, "alice", "sort", "active", priority=0.5, volume=3, demand=4, elapsed_s=12.25)


def run(api_dir: Path, *arguments: str) -> int:
    return main_module.main(["status", "--api-dir", str(api_dir), *arguments])


def test_live_jobs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, ServiceStatus(time.time(), ranks=2, pes=4, busy=3, jobs=(JOB,)))
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "3 of 4 PEs busy, 1 jobs" in printed
    assert "alice" in printed


def test_an_idle_service_has_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, ServiceStatus(time.time(), ranks=2, pes=4, busy=0))
    assert run(tmp_path) == 0
    assert capsys.readouterr().out == "0 of 4 PEs busy, 0 jobs\n"


def test_json_has_all_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, ServiceStatus(time.time(), ranks=2, pes=4, busy=3, jobs=(JOB,)))
    assert run(tmp_path, "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["jobs"][0]["demand"] == 4
    assert {"time", "ranks", "pes", "busy", "jobs"} <= set(status)


def test_without_a_service_the_exit_code_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 1
    assert "no service is running" in capsys.readouterr().err


def test_a_service_that_was_killed_leaves_a_stale_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(tmp_path, ServiceStatus(time.time() - 100, ranks=2, pes=4, busy=3))
    assert run(tmp_path) == 1
    assert "last sign of life is 100 s old" in capsys.readouterr().err


def test_a_status_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / STATUS_FILE_NAME).write_text('{"time": 1')
    assert read_status(tmp_path) is None
    remove_status(tmp_path)
    remove_status(tmp_path)
    assert not (tmp_path / STATUS_FILE_NAME).exists()


def test_the_clients_of_a_service_make_one_status(tmp_path: Path) -> None:
    (tmp_path / "jobs.1").mkdir()
    other = JobStatus(8, "bob", "route", "running", volume=1, client=1)
    first, second = Totals({"result": 2}), Totals({"result": 1, "failed": 1})
    write_status(tmp_path, ServiceStatus(time.time(), 2, 4, 3, (JOB,), clients=2, totals=first))
    write_status(tmp_path, ServiceStatus(time.time(), 2, 4, 3, (other,), clients=2, totals=second), client=1)
    status = read_status(tmp_path)
    assert status is not None
    assert [job.identity for job in status.jobs] == ["alice.sort", "bob.route"]
    assert status.totals.replies == {"result": 3, "failed": 1}
    assert status.job("bob.route", client=1) == other
    assert status.job("bob.route", client=0) is None


def test_what_a_client_of_an_earlier_service_left_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "jobs.1").mkdir()
    write_status(tmp_path, ServiceStatus(time.time() - 100, 2, 4, 3, (JOB,), clients=2), client=1)
    write_status(tmp_path, ServiceStatus(time.time(), 2, 4, 3, clients=2))
    status = read_status(tmp_path)
    assert status is not None
    assert status.jobs == ()
