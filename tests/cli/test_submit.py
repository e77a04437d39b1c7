"""`submit` and `interrupt` say to the service what the command line said, through files only."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S

from mallob_py.cli import CommandError, options
from mallob_py.cli import main as main_module
from mallob_py.cli.client_options import SubmitOptions
from mallob_py.cli.submit import make_job
from mallob_py.service import client
from mallob_py.service.status_file import JobStatus, ServiceStatus, write_status


def job_of(*arguments: str) -> dict[str, Any]:
    parsed = options.parse("submit", arguments, {})
    assert isinstance(parsed, SubmitOptions)
    return make_job(parsed)


@pytest.fixture
def formula(tmp_path: Path) -> Path:
    path = tmp_path / "sorter.cnf.gz"
    path.write_bytes(b"")
    return path


@pytest.fixture
def api_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of a service that seems to run."""
    for folder in ("in", "out"):
        (tmp_path / "api" / "jobs.0" / folder).mkdir(parents=True)
    monkeypatch.setattr(client, "service_is_running", lambda api_dir, client=0: True)
    return tmp_path / "api"


@contextlib.contextmanager
def answering(api_dir: Path, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[list[Any]]:
    """A service of one job: takes the first file of `in/` and writes the answer to it."""
    taken: list[dict[str, Any]] = []

    def serve() -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            for path in (api_dir / "jobs.0" / "in").glob("[!~]*.json"):
                job = json.loads(path.read_bytes())
                taken.append(job)
                reply = answer(job)
                name = f"{path.name}.error.json" if "error" in reply else f"{job['user']}.{job['name']}.json"
                hidden = api_dir / "jobs.0" / "out" / f"~{name}"
                hidden.write_text(json.dumps(reply))
                hidden.rename(hidden.with_name(name))
                return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield taken
    finally:
        thread.join()


def test_inputs_are_named_by_absolute_path_and_the_name_is_made_up(formula: Path) -> None:
    first, second = job_of(str(formula)), job_of(str(formula))
    assert first["files"] == [str(formula)]
    assert first["name"].startswith("sorter-")
    assert first["name"] != second["name"]
    assert first["user"]
    assert set(first) == {"files", "name", "user"}


def test_options_become_fields(formula: Path) -> None:
    job = job_of(
        *(str(formula), "--name", "n", "--user", "u", "--priority", "2", "--wallclock-limit", "5m"),
        *("--cpu-limit", "1.5h", "--max-demand", "3", "--application", "SAT"),
    )
    limits = {"wallclock-limit": "5m", "cpu-limit": "90m", "max-demand": 3}
    assert job == {
        **{"files": [str(formula)], "name": "n", "user": "u", "priority": 2.0, "application": "SAT"},
        **limits,
    }


def test_a_job_file_is_handed_over_but_for_the_options_given(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"user": "u", "name": "n", "literals": [1, 0], "priority": 1.0}))
    assert job_of(str(path), "--priority", "3") == {
        **{"user": "u", "name": "n", "literals": [1, 0]},
        "priority": 3.0,
    }


@pytest.mark.parametrize("content", ["[]", "{", ""])
def test_a_job_file_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(content)
    with pytest.raises(CommandError, match="not a job file"):
        job_of(str(path))


@pytest.mark.parametrize("name", ["absent.cnf", "absent.json"])
def test_a_missing_file_is_said_at_once(name: str) -> None:
    with pytest.raises(CommandError, match=f"{name}: no such file|{name}: No such file"):
        job_of(name)


def test_an_application_without_input_needs_no_file() -> None:
    job = job_of("--application", "SLEEP", "--user", "u")
    assert "files" not in job
    assert job["name"].startswith("SLEEP-")


def test_without_waiting_the_path_of_the_reply_is_printed(
    api_dir: Path, formula: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(formula), "--api-dir", str(api_dir), "--user", "u", "--name", "n"]
    assert main_module.main(["submit", *arguments]) == 0
    assert capsys.readouterr().out == f"{api_dir}/jobs.0/out/u.n.json\n"
    (dropped,) = (api_dir / "jobs.0" / "in").iterdir()
    assert json.loads(dropped.read_bytes())["files"] == [str(formula)]


def test_waiting_prints_the_reply(api_dir: Path, formula: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(api_dir, lambda job: {**job, "result": {"resultcode": 10}}):
        assert main_module.main(["submit", str(formula), "--wait", "--api-dir", str(api_dir)]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["resultcode"] == 10


def test_an_error_reply_gives_exit_code_2(
    api_dir: Path, formula: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(api_dir, lambda job: {"error": {"field": "files", "message": "empty"}}):
        assert main_module.main(["submit", str(formula), "--wait", "--api-dir", str(api_dir)]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "empty"


def test_an_api_dir_that_no_service_has_used_is_one_line(
    tmp_path: Path, formula: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_module.main(["submit", str(formula), "--api-dir", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_interrupt_finds_a_user_with_dots_among_the_live_jobs(
    api_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobStatus(1, "a.b", "c", "active")
    write_status(api_dir, ServiceStatus(time.time(), ranks=1, pes=1, busy=1, jobs=(job,)))
    with answering(api_dir, lambda job: {"result": {"resultcode": 0}}) as taken:
        assert main_module.main(["interrupt", "a.b.c", "--api-dir", str(api_dir)]) == 0
    assert taken == [{"user": "a.b", "name": "c", "interrupt": True}]
    assert "a.b.c has ended" in capsys.readouterr().out


def test_interrupting_an_unknown_job_is_an_error(api_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(api_dir, lambda job: {"error": {"field": "name", "message": "no live job u.n"}}):
        assert main_module.main(["interrupt", "u.n", "--api-dir", str(api_dir)]) == 2
    assert capsys.readouterr().err == "mallob-py interrupt: no live job u.n\n"


def test_interrupt_without_a_service_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["interrupt", "u.n", "--api-dir", str(tmp_path)]) == 2
    assert "no service is running" in capsys.readouterr().err
