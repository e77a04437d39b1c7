"""`explain` finds a job wherever it is: live, handed in, ended, by name or by number."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mallob_py.cli import main as main_module
from mallob_py.service.telemetry.status import EndedJob, JobStatus, ServiceStatus, write_status

LIVE = JobStatus(7, "alice", "sort", "running", volume=4, demand=4, root_is_placed=True, running_s=1.0)


@pytest.fixture
def api_dir(tmp_path: Path) -> Path:
    for folder in ("in", "out", "journal"):
        (tmp_path / "jobs.0" / folder).mkdir(parents=True)
    return tmp_path


def has_status(api_dir: Path, **fields: Any) -> None:
    known: dict[str, Any] = {"jobs": (LIVE,), "states": {"running": 1}}
    write_status(api_dir, ServiceStatus(time.time(), 2, 4, 4, **(known | fields)))


def has_reply(api_dir: Path) -> None:
    reply = {"result": {"resultstring": "SAT", "outcome": "result"}}
    (api_dir / "jobs.0" / "out" / "bob.route.json").write_text(json.dumps(reply))


def run(api_dir: Path, job: str) -> int:
    return main_module.main(["explain", job, "--api-dir", str(api_dir)])


@pytest.mark.parametrize("job", ["alice.sort", "7"])
def test_a_live_job_is_explained(api_dir: Path, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    has_status(api_dir)
    assert run(api_dir, job) == 0
    assert "alice.sort (id 7) is running with 4 of 4 workers" in capsys.readouterr().out


@pytest.mark.parametrize("job", ["bob.route", "3"])
def test_an_ended_job_is_explained(api_dir: Path, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    has_reply(api_dir)
    has_status(api_dir, ended=(EndedJob(3, "bob", "route", "result", time.time()),))
    assert run(api_dir, job) == 0
    printed = capsys.readouterr().out
    assert "its result is SAT" in printed
    assert "bob.route.json" in printed


def test_an_ended_job_is_explained_without_a_service(
    api_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    has_reply(api_dir)
    assert run(api_dir, "bob.route") == 0
    assert "its result is SAT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ({"running": 1}, "has not listed it yet"),
        ({"running": 1, "queued": 5000}, "waits among 5001 live jobs"),
        (None, "No service is running"),
    ],
)
def test_a_job_that_the_status_does_not_list_has_been_handed_in(
    api_dir: Path, states: dict[str, int] | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (api_dir / "jobs.0" / "in" / "a.json").write_text(json.dumps({"user": "carol", "name": "new"}))
    if states is not None:
        has_status(api_dir, states=states)
    assert run(api_dir, "carol.new") == 0
    printed = capsys.readouterr().out
    assert "carol.new is handed in and has no reply yet." in printed
    assert text in printed


@pytest.mark.parametrize("job", ["u.unknown", "99", "nothing"])
def test_an_unknown_job_is_one_line(api_dir: Path, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    has_status(api_dir)
    assert run(api_dir, job) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
