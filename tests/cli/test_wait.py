"""`wait` prints the replies of jobs that were handed in before."""

import json
import threading
from pathlib import Path

import pytest
from unread_output import code_without_reader
from waiting import DEADLINE_S

from mallob_py.cli import main as main_module
from mallob_py.service import client
from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store.directory import JobDirectory


def wait(tmp_path: Path, *identities: str) -> int:
    return main_module.main(["wait", "--api-dir", str(tmp_path / "api"), *identities])


def test_a_job_that_has_ended_is_told_at_once(
    tmp_path: Path, directory: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory.path / "out" / "u.a.json").write_text('{"result": {"resultcode": 10}}')
    assert wait(tmp_path, "u.a") == 0
    assert json.loads(capsys.readouterr().out)["result"]["resultcode"] == 10


@pytest.mark.parametrize("command", ["wait", "explain", "logs"])
def test_who_leaves_out_the_number_of_a_name_is_told_the_last_one(
    command: str, tmp_path: Path, directory: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("u.f-1795664199060942-1", "u.f-1795664204233548", "u.fold-1795664299999999"):
        (directory.path / "out" / f"{name}.json").write_text("{}")
    assert main_module.main([command, "--api-dir", str(tmp_path / "api"), "u.f"]) == 2
    told = capsys.readouterr().err
    assert told.endswith(
        "neither live nor ended; the last job with a name like this is u.f-1795664204233548\n"
    )
    assert main_module.main([command, "--api-dir", str(tmp_path / "api"), "u.g"]) == 2
    assert capsys.readouterr().err.endswith("neither live nor ended\n")


def test_the_reply_of_a_live_job_is_awaited_and_not_an_older_one(
    tmp_path: Path, directory: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory.path / "out" / "u.a.json").write_text('{"answer": "old"}')
    client.submit(tmp_path / "api", {"user": "u", "name": "a"})
    codes: list[int] = []
    waiter = threading.Thread(target=lambda: codes.append(wait(tmp_path, "u.a")))
    waiter.start()
    (incoming,) = directory.take()
    assert capsys.readouterr().out == ""
    directory.reply(incoming.internal_id, "u.a", Reply(b'{"answer": "new"}'))
    waiter.join(DEADLINE_S)
    assert codes == [0]
    assert json.loads(capsys.readouterr().out) == {"answer": "new"}


def test_one_error_among_the_replies_gives_exit_code_2(
    tmp_path: Path, directory: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory.path / "out" / "u.a.json").write_text('{"error": {"field": "files", "message": "empty"}}')
    (directory.path / "out" / "u.b.json").write_text('{"result": {}}')
    assert wait(tmp_path, "u.a", "u.b") == 2
    assert capsys.readouterr().out.count("{\n") == 3


def test_answers_may_be_s_and_v_lines(
    tmp_path: Path, directory: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory.path / "out" / "u.a.json").write_text('{"result": {"resultcode": 10, "solution": [1]}}')
    (directory.path / "out" / "u.b.json").write_text('{"result": {"resultcode": 20, "solution": []}}')
    assert wait(tmp_path, "u.b", "--output-format", "sat") == 20
    assert capsys.readouterr().out == "s UNSATISFIABLE\n"
    assert wait(tmp_path, "u.a", "u.b", "--output-format", "sat") == 0
    assert capsys.readouterr().out == "c u.a\ns SATISFIABLE\nv 1 0\nc u.b\ns UNSATISFIABLE\n"


@pytest.mark.parametrize("variables", [1, 100_000])
@pytest.mark.parametrize("env", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_the_exit_code_of_a_job_does_not_depend_on_a_reader(
    tmp_path: Path, directory: JobDirectory, variables: int, env: dict[str, str]
) -> None:
    found = {"result": {"resultcode": 10, "solution": list(range(1, variables + 1))}}
    failed = {"error": {"field": "", "message": "damaged"}, "warnings": list(range(variables))}
    for name, reply in (("a", found), ("b", failed)):
        (directory.path / "out" / f"u.{name}.json").write_text(json.dumps(reply))
    command = ["wait", "--api-dir", str(tmp_path / "api"), "--output-format"]
    assert code_without_reader(*command, "sat", "u.a", env=env) == 10
    assert code_without_reader(*command, "sat", "u.b", env=env) == 2
    assert code_without_reader(*command, "json", "u.b", env=env) == 2


@pytest.mark.parametrize("content", [b"\xff", b"{", b"[1]", b"[" * 200_000])
def test_what_is_no_reply_is_one_line(
    tmp_path: Path, directory: JobDirectory, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory.path / "out" / "u.a.json").write_bytes(content)
    assert wait(tmp_path, "u.a") == 2
    error = capsys.readouterr().err
    assert "u.a.json is" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("identity", ["u.unknown", "nodot", "u.a/../../b", "u." + "x" * 300])
def test_a_job_that_never_was_is_one_line(
    tmp_path: Path, directory: JobDirectory, identity: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wait(tmp_path, identity) == 2
    assert capsys.readouterr().err.count("\n") == 1
