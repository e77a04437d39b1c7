"""`submit` and `interrupt` write the job files that the command line describes."""

import array
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S, poll_until

from mallob_py.cli import CommandError, options
from mallob_py.cli import main as main_module
from mallob_py.cli.client_options import SubmitOptions
from mallob_py.cli.jobs import make_jobs
from mallob_py.cli.option_sources import OptionError
from mallob_py.service import JobFileError, client
from mallob_py.service.jobs.job_file import InputUse, parse_job
from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus, write_status


def job_of(*arguments: str) -> dict[str, Any]:
    parsed = options.parse("submit", arguments, {})
    assert isinstance(parsed, SubmitOptions)
    (job,) = make_jobs(parsed)
    return job


@pytest.fixture
def formula(tmp_path: Path) -> Path:
    path = tmp_path / "sorter.cnf.gz"
    path.write_bytes(b"")
    return path


@pytest.fixture
def api_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the api folder of a service that seems to run."""
    for folder in ("in", "out"):
        (tmp_path / "api" / "jobs.0" / folder).mkdir(parents=True)
    monkeypatch.setattr(client, "service_is_running", lambda api_dir, client=0: True)
    return tmp_path / "api"


@contextlib.contextmanager
def answering(
    api_dir: Path, answer: Callable[[dict[str, Any]], dict[str, Any]], jobs: int = 1
) -> Iterator[list[Any]]:
    """Serve `jobs` jobs meanwhile: take the files from `in/` and write the replies that `answer` returns."""
    taken: list[dict[str, Any]] = []

    def serve() -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            for path in (api_dir / "jobs.0" / "in").glob("[!~]*.json"):
                job = json.loads(path.read_bytes())
                path.unlink()
                taken.append(job)
                reply = answer(job)
                name = f"{path.name}.error.json" if "error" in reply else f"{job['user']}.{job['name']}.json"
                hidden = api_dir / "jobs.0" / "out" / f"~{name}"
                hidden.write_text(json.dumps(reply))
                hidden.rename(hidden.with_name(name))
                if len(taken) == jobs:
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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_job_file_is_handed_over_but_for_the_options_given(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    content = json.dumps({"user": "u", "name": "n", "literals": [1, 0], "priority": 1.0})
    path.write_text(content, encoding=encoding)
    assert job_of(str(path), "--priority", "3") == {
        **{"user": "u", "name": "n", "literals": [1, 0]},
        "priority": 3.0,
    }


@pytest.mark.parametrize("content", ["[]", "{", ""])
def test_a_job_file_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(content)
    with pytest.raises(CommandError, match="a job file"):
        job_of(str(path))


def test_a_field_that_stands_twice_in_a_job_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"user": "u", "name": "n", "literals": [1, 0], "time-limit": 1, "time-limit": 2}')
    with pytest.raises(CommandError, match="time-limit: given twice"):
        job_of(str(path))


@pytest.mark.parametrize("name", ["absent.cnf", "absent.json"])
def test_a_missing_file_is_said_at_once(name: str) -> None:
    with pytest.raises(CommandError, match=f"{name}: no such file|{name}: No such file"):
        job_of(name)


def test_an_application_without_input_needs_no_file() -> None:
    job = job_of("--application", "SLEEP", "--user", "u")
    assert "files" not in job
    assert job["name"].startswith("SLEEP-")


def test_without_waiting_the_name_of_the_job_is_printed(
    api_dir: Path, formula: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(formula), "--api-dir", str(api_dir), "--user", "u", "--name", "n"]
    assert main_module.main(["submit", *arguments]) == 0
    assert capsys.readouterr().out == "u.n\n"
    (dropped,) = (api_dir / "jobs.0" / "in").iterdir()
    assert json.loads(dropped.read_bytes())["files"] == [str(formula)]


def test_waiting_prints_the_reply(api_dir: Path, formula: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(api_dir, lambda job: {**job, "result": {"resultcode": 10}}):
        assert main_module.main(["submit", str(formula), "--wait", "--api-dir", str(api_dir)]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["resultcode"] == 10


def test_paths_in_a_job_file_start_at_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the same name also lies in the working folder of the user and the service."""
    folder, elsewhere = tmp_path / "jobs", tmp_path / "elsewhere"
    for place in (folder, elsewhere):
        place.mkdir()
        (place / "f.cnf").write_text("p cnf 0 0\n")
    job_file = folder / "job.json"
    wishes = {"core": "core.cnf", "seed": 1}
    job_file.write_text(json.dumps({"files": ["f.cnf", "/data/g"], "configuration": wishes}))
    monkeypatch.chdir(elsewhere)
    job = job_of("../jobs/job.json")
    assert job["files"] == [str(folder / "f.cnf"), "/data/g"]
    assert job["configuration"] == wishes, "results have a folder of their own"
    job_file.write_text(json.dumps({"file": "../elsewhere/f.cnf"}))
    assert job_of(str(job_file))["file"] == str(elsewhere / "f.cnf")
    job_file.write_text(json.dumps({"files": ["absent.cnf"]}))
    with pytest.raises(CommandError, match=f"{folder}/absent.cnf: No such file"):
        job_of(str(job_file))


def test_nonsense_in_a_job_file_is_for_the_service_to_say(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"files": [1, "", None], "configuration": {"core": True}}))
    assert job_of(str(path))["files"] == [1, "", None]


def test_each_file_is_a_job(
    tmp_path: Path, api_dir: Path, formula: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({"name": "n", "literals": [1, 0]}))
    arguments = [str(formula), str(job_file), "--api-dir", str(api_dir), "--user", "u", "--priority", "2"]
    assert main_module.main(["submit", *arguments]) == 0
    first, second = capsys.readouterr().out.split()
    assert first.startswith("u.sorter-")
    assert second == "u.n"
    dropped = [json.loads(path.read_bytes()) for path in (api_dir / "jobs.0" / "in").iterdir()]
    assert [job["priority"] for job in dropped] == [2.0, 2.0]
    assert {"files", "literals"} < {field for job in dropped for field in job}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no FILE is given"),
        (["--application", "SAT"], "no FILE is given"),
        (["a.cnf", "b.cnf", "--name", "n"], "--name is for one job, but 2 FILEs"),
        (["a.cnf", "--projection", "1"], "--solutions, which is missing"),
        (["a.cnf", "b.cnf", "--proof", "p"], "--proof is for one formula"),
        (["a.json", "--core", "c"], "--core is for one formula"),
        (["a.cnf", "--proof", "./a.cnf"], "would be overwritten"),
        (["x" * 300], "File name too long"),
        (["/dev/null/f.cnf"], "Not a directory"),
        (["/dev/null", "--name", "a/b"], "must not contain '/'"),
    ],
)
def test_what_cannot_be_submitted_is_one_line(
    api_dir: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_module.main(["submit", "--api-dir", str(api_dir), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not list((api_dir / "jobs.0" / "in").iterdir())


def test_names_are_made_of_odd_and_long_file_names(tmp_path: Path) -> None:
    for name in ("~x.cnf", "a\nb.cnf", "ü" * 120 + ".cnf", ".hidden", "my formula.cnf"):
        path = tmp_path / name
        path.write_text("")
        job = job_of(str(path), "--user", "u")
        assert job["name"].split() == [job["name"]]  # one word of a shell
        assert parse_job(json.dumps(job).encode(), {"SAT": InputUse.REQUIRED})


def test_the_wishes_of_solve_become_configuration(formula: Path, tmp_path: Path) -> None:
    job = job_of(
        *(str(formula), "--portfolio", "c", "--seed", "3", "--solutions", "all", "--projection", "1,2"),
        *("--configuration", '{"sharing": false}'),
    )
    wishes = {"portfolio": "c", "seed": 3, "solutions": "all", "projection": [1, 2]}
    assert job["configuration"] == wishes | {"sharing": False}
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({"configuration": {"seed": 1, "sharing": False}}))
    assert job_of(str(job_file), "--seed", "2")["configuration"] == {"seed": 2, "sharing": False}


@pytest.mark.parametrize(
    ("result", "code", "lines"),
    [
        ({"resultcode": 10, "solution": [1, -2]}, 10, ["s SATISFIABLE", "v 1 -2 0"]),
        ({"resultcode": 20, "solution": []}, 20, ["s UNSATISFIABLE"]),
        ({"resultcode": 0, "solution": []}, 0, ["s UNKNOWN"]),
        (
            {"resultcode": 10, "solution": [1, 0, -1, 0], "solutions": 2},
            10,
            ["s SATISFIABLE", "v 1 0", "v -1 0"],
        ),
        (
            {"resultcode": 10, "solution": "BQ==", "solution-format": "base64", "variables": 3},
            10,
            ["s SATISFIABLE", "v 1 -2 3 0"],
        ),
    ],
)
def test_answers_have_the_form_of_the_competitions(
    api_dir: Path,
    formula: Path,
    capsys: pytest.CaptureFixture[str],
    result: dict[str, Any],
    code: int,
    lines: list[str],
) -> None:
    arguments = [str(formula), "--api-dir", str(api_dir), "--output-format", "sat"]
    with answering(api_dir, lambda job: {**job, "result": result}):
        assert main_module.main(["submit", *arguments]) == code
    assert capsys.readouterr().out.splitlines() == lines


def test_a_model_beside_the_reply_is_read(
    api_dir: Path, formula: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").write_bytes(array.array("i", range(1, 100)).tobytes())
    result = {"resultcode": 10, "solution-file": str(tmp_path / "model"), "solution-size": 99}
    arguments = [str(formula), "--api-dir", str(api_dir), "--output-format", "sat"]
    with answering(api_dir, lambda job: {**job, "result": result}):
        assert main_module.main(["submit", *arguments]) == 10
    _, *values = capsys.readouterr().out.splitlines()
    assert [int(word) for line in values for word in line.split()[1:]] == [*range(1, 100), 0]
    assert max(map(len, values)) <= 78


def test_results_are_brought_to_where_they_were_asked_for(
    api_dir: Path, formula: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, target = tmp_path / "results", tmp_path / "proof.lrat"
    results.mkdir()
    target.write_text("of an older answer")

    def unsat(job: dict[str, Any]) -> dict[str, Any]:
        written = results / job["configuration"]["proof"]
        written.write_text("the proof")
        return {**job, "result": {"resultcode": 20, "result-files": {"proof": str(written)}}}

    arguments = ["submit", str(formula), "--api-dir", str(api_dir), "--proof", str(target)]
    with answering(api_dir, unsat) as taken:
        assert main_module.main(arguments) == 0
    assert list(taken[0]["configuration"]) == ["proof"]
    assert target.read_text() == "the proof"
    assert not list(results.iterdir())
    assert json.loads(capsys.readouterr().out)["result"]["result-files"] == {"proof": str(target)}
    with answering(api_dir, lambda job: {**job, "result": {"resultcode": 10, "solution": [1]}}) as again:
        assert main_module.main([*arguments, "--output-format", "sat"]) == 10
    assert not target.exists(), "this answer has no proof"
    assert again[0]["configuration"]["proof"] != taken[0]["configuration"]["proof"]


def test_an_error_beside_answers_is_told_on_standard_error(
    api_dir: Path, formula: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        str(formula),
        "--api-dir",
        str(api_dir),
        "--output-format",
        "sat",
        "--user",
        "u",
        "--name",
        "n",
    ]
    with answering(api_dir, lambda job: {"error": {"field": "files", "message": "empty"}}):
        assert main_module.main(["submit", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "mallob-py submit: u.n: files: empty\n"


def test_who_leaves_while_waiting_is_told_that_the_job_goes_on(
    api_dir: Path, formula: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "wait", interrupted)
    arguments = [str(formula), "--api-dir", str(api_dir), "--wait", "--user", "u", "--name", "n"]
    assert main_module.main(["submit", *arguments]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mallob-py submit: u.n goes on;")
    assert f"mallob-py wait --api-dir {api_dir} u.n" in line


@pytest.mark.parametrize("is_refused", [False, True])
def test_waiting_for_the_end_of_a_chain_ends(
    tmp_path: Path, is_refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
    path = tmp_path / "end.json"
    path.write_text(
        json.dumps({"user": "u", "name": "e", "incremental": True, "precursor": "u.p", "done": True})
    )
    codes: list[int] = []
    arguments = ["submit", str(path), "--wait", "--api-dir", str(tmp_path / "api")]
    waiter = threading.Thread(target=lambda: codes.append(main_module.main(arguments)))
    waiter.start()
    (incoming,) = poll_until(directory.take)
    if is_refused:
        directory.refuse(incoming, JobFileError("precursor", "u.p: never seen", "u.e"))
    else:
        directory.end_chain(1, incoming.internal_id)
    waiter.join(DEADLINE_S)
    directory.close()
    assert codes == [2 if is_refused else 0]
    output = capsys.readouterr().out
    assert "never seen" in output if is_refused else output == "u.e: the chain of u.p has ended\n"


def test_waiting_for_a_quiet_interruption_of_no_job_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
    path = tmp_path / "end.json"
    path.write_text(json.dumps({"user": "u", "name": "n", "interrupt": True, "quiet": True}))
    codes: list[int] = []
    arguments = ["submit", str(path), "--wait", "--api-dir", str(tmp_path / "api")]
    waiter = threading.Thread(target=lambda: codes.append(main_module.main(arguments)), daemon=True)
    waiter.start()
    (incoming,) = poll_until(directory.take)
    directory.dismiss(incoming.internal_id)
    waiter.join(DEADLINE_S)
    directory.close()
    assert codes == [0]
    assert capsys.readouterr().out == "u.n: no such job is live\n"


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


def test_interrupt_takes_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
    client.submit(tmp_path / "api", {"user": "a.b", "name": "c"})
    (job,) = poll_until(directory.take)
    codes: list[int] = []
    arguments = ["interrupt", "--api-dir", str(tmp_path / "api")]
    caller = threading.Thread(
        target=lambda: codes.append(main_module.main([*arguments, f"{job.internal_id}"]))
    )
    caller.start()
    (interruption,) = poll_until(directory.take)
    assert isinstance(interruption.data, bytes)
    assert json.loads(interruption.data) == {"user": "a.b", "name": "c", "interrupt": True}
    directory.reply(job.internal_id, "a.b.c", Reply(b'{"result": {"resultcode": 0}}'))
    caller.join(DEADLINE_S)
    assert codes == [0]
    assert "a.b.c has ended" in capsys.readouterr().out
    assert main_module.main([*arguments, "77"]) == 2
    assert "no live job has the id 77" in capsys.readouterr().err
    directory.close()


def test_interrupting_an_unknown_job_is_an_error(api_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(api_dir, lambda job: {"error": {"field": "name", "message": "no live job u.n"}}):
        assert main_module.main(["interrupt", "u.n", "--api-dir", str(api_dir)]) == 2
    assert capsys.readouterr().err == "mallob-py interrupt: no live job u.n\n"


def test_of_several_jobs_all_that_live_are_interrupted(
    api_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(job: dict[str, Any]) -> dict[str, Any]:
        if job["name"] == "gone":
            return {"error": {"field": "name", "message": "no live job u.gone"}}
        return {"result": {"resultcode": 0}}

    with answering(api_dir, reply, jobs=3) as taken:
        arguments = ["u.first", "u.gone", "u.last", "--api-dir", str(api_dir)]
        assert main_module.main(["interrupt", *arguments]) == 2
    assert {job["name"] for job in taken} == {"first", "gone", "last"}
    printed = capsys.readouterr()
    assert printed.err == "mallob-py interrupt: no live job u.gone\n"
    assert "u.first has ended" in printed.out
    assert "u.last has ended" in printed.out


def test_interrupt_without_a_service_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["interrupt", "u.n", "--api-dir", str(tmp_path)]) == 2
    assert "no service is running" in capsys.readouterr().err


def test_a_sweep_is_a_job_for_each_combination(formula: Path) -> None:
    parsed = options.parse("submit", [str(formula), "--set", "seed=1..2", "--set", "mode=a,b"], {})
    assert isinstance(parsed, SubmitOptions)
    jobs = make_jobs(parsed)
    assert [job["configuration"] for job in jobs] == [
        {"seed": seed, "mode": mode} for seed in (1, 2) for mode in ("a", "b")
    ]
    assert len({job["name"] for job in jobs}) == 4
    assert parsed.output_format == "table"
    assert not parsed.waits


def test_one_setting_is_one_job_whose_name_is_kept(formula: Path) -> None:
    job = job_of(str(formula), "--set", "seed=7", "--name", "a", "--configuration", '{"seed": 1, "x": 2}')
    assert job["name"] == "a"
    assert job["configuration"] == {"seed": 7, "x": 2}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--set", "a=1..1000", "--set", "b=1..1000"],
            "--set makes 1000000 jobs; at most 100000 are possible",
        ),
        (["--set", "a=1,2", "--proof", "p"], "--proof is for one job, but --set makes 2"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(arguments: list[str], complaint: str, formula: Path) -> None:
    with pytest.raises(OptionError, match=complaint):
        options.parse("submit", [str(formula), *arguments], {})


def test_a_sweeps_answers_are_one_table(
    api_dir: Path, formula: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(job: dict[str, Any]) -> dict[str, Any]:
        result = {"resultcode": 1, "resultstring": "DONE", "value": job["configuration"]["n"] ** 2}
        return job | {"result": result, "stats": {"time": {"processing": 1.0}, "max_volume": 1}}

    arguments = [
        "submit",
        str(formula),
        "--api-dir",
        str(api_dir),
        "--set",
        "n=3",
        "--output-format",
        "table",
    ]
    with answering(api_dir, answer):
        assert main_module.main(arguments) == 0
    header, _, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[:3] == ["n", "answer", "value"]
    assert row[:3] == ["3", "DONE", "9"]


def test_what_is_open_in_the_shell_alone_is_no_input_of_a_service(formula: Path, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(CommandError, match="open in this shell alone"):
            job_of(f"/dev/fd/{read_end}")
    finally:
        os.close(read_end)
        os.close(write_end)
    with open(formula) as file:
        assert job_of(f"/dev/fd/{file.fileno()}")["files"] == [str(formula)]


def test_what_a_job_comes_after_is_added_to_its_dependencies(formula: Path, tmp_path: Path) -> None:
    assert job_of(str(formula), "--after", "a.b", "--after=c.d")["dependencies"] == ["a.b", "c.d"]
    file = tmp_path / "job.json"
    file.write_text('{"user": "u", "name": "n", "literals": [1, 0], "dependencies": ["a.b"]}')
    assert job_of(str(file), "--after", "c.d")["dependencies"] == ["a.b", "c.d"]
    assert "dependencies" not in job_of(str(formula))
    assert job_of(str(file), "--after-ok", "c.d")["after-ok"] == ["c.d"]
    with pytest.raises(OptionError, match="--after"):
        job_of(str(formula), "--after", "nouser.")


def test_a_job_that_comes_after_one_that_nobody_has_handed_in_is_told_and_handed_in(
    api_dir: Path, formula: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = api_dir / "jobs.0"
    (box / "out" / "u.replied.json").write_text("{}")
    (box / ".finished").write_text("v.other\t\nu.ended\tresult\n")
    (box / "in" / "any").write_text('{"user": "u", "name": "waits"}')
    os.mkfifo(box / "in" / "pipe")
    (box / "journal").mkdir(exist_ok=True)
    (box / "journal" / "7.job.some").write_text('{"user": "u", "name": "runs"}')
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text('{"user": "u", "name": "first"}')
    second.write_text('{"user": "u", "name": "second", "dependencies": ["u.first", "u.waits", "/../x", 3]}')
    known = [f"--after=u.{name}" for name in ("replied", "ended", "waits", "runs")]
    assert main_module.main(["submit", "--api-dir", str(api_dir), str(first), str(second), *known]) == 0
    assert "nobody" not in capsys.readouterr().err
    late = ["--after", "u.replie", "--after-ok", "u.other"]
    assert main_module.main(["submit", "--api-dir", str(api_dir), str(formula), *late]) == 0
    told = capsys.readouterr()
    assert "nobody has handed in u.other, u.replie yet" in told.err
    assert told.out
    second.write_text('{"user": "u", "name": "third", "dependencies": "u.x", "after-ok": 7}')
    assert main_module.main(["submit", "--api-dir", str(api_dir), str(second)]) == 0
    assert "nobody" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("n=x", "--set n: 'x' is not a whole number"),
        ("n=1.5", "--set n: '1.5' is not a whole number"),
        ("n=6..0", "a range that ends before it begins"),
    ],
)
def test_settings_that_the_application_cannot_take_are_refused_at_once(setting: str, message: str) -> None:
    with pytest.raises((CommandError, OptionError), match=re.escape(message)):
        job_of("--application", "QUEENS", "--set", setting)


@pytest.mark.parametrize("value", ["x", 1.5])
def test_what_a_job_file_configures_is_checked_as_what_is_set(value: object, tmp_path: Path) -> None:
    file = tmp_path / "queens.json"
    file.write_text(json.dumps({"application": "QUEENS", "configuration": {"n": value, "other": {"n": 1}}}))
    with pytest.raises(
        CommandError, match=re.escape(f"{file}: configuration: n: '{value}' is not a whole number")
    ):
        job_of(str(file))
    assert job_of(str(file), "--set", "n=8")["configuration"] == {"n": 8, "other": {"n": 1}}


def test_settings_become_what_the_application_declares_or_stay_json(tmp_path: Path) -> None:
    formula = tmp_path / "a.cnf"
    formula.touch()
    settings = ("--set", "projection=[1, 2]", "--set", "seed=7", "--set", "further=yes")
    configuration = job_of(str(formula), *settings)["configuration"]
    assert configuration == {"projection": [1, 2], "seed": 7, "further": "yes"}
    (tmp_path / "b.wcnf").touch()
    assert job_of(str(tmp_path / "b.wcnf"), "--sharing", "No")["configuration"] == {"sharing": False}
    with pytest.raises(OptionError, match="'never' is neither true nor false"):
        job_of(str(tmp_path / "b.wcnf"), "--sharing", "never")


def test_a_file_as_standard_input_is_taken_by_its_name(
    formula: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.path.realpath
    monkeypatch.setattr(
        os.path, "realpath", lambda path: str(formula) if path == "/dev/stdin" else real(path)
    )
    job = job_of("-")
    assert job["files"] == [str(formula)]
    assert job["name"].startswith("stdin-")
