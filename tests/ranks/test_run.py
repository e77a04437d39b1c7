"""`mallob-py run` as a user runs it: any application, one job, its result as JSON."""

import json
import os
import pty
import re
import signal
from pathlib import Path

import pytest
from running import DEADLINE_S, mpiexec, needs_mpiexec, run, started

pytestmark = needs_mpiexec

FORMULA = "p cnf 3 2\n1 -2 0\n-3 0\n"
CONTRADICTION = "p cnf 1 2\n1 0\n-1 0\n"


def formula(folder: Path, text: str) -> Path:
    path = folder / "a.cnf"
    path.write_text(text)
    return path


def test_a_job_of_any_application_is_run_and_its_result_printed_as_a_service_would_reply() -> None:
    done = run("run", "NOOP", "-n", 2)
    assert (done.code, done.err) == (0, "")
    reply = json.loads(done.out)
    assert (reply["application"], reply["result"]["resultstring"]) == ("NOOP", "DONE")
    assert reply["stats"]["max_volume"] in (1, 2), "by who was first: it, or the first balancing"
    alone = json.loads(run("run", "NOOP", "-n", 1).out)
    assert alone["stats"]["max_volume"] == 1


@pytest.mark.parametrize(("text", "code"), [(FORMULA, 10), (CONTRADICTION, 20)])
def test_the_exit_code_is_what_the_application_declares(text: str, code: int, tmp_path: Path) -> None:
    done = run("run", "SAT", "-n", 1, formula(tmp_path, text))
    assert done.code == code == json.loads(done.out)["result"]["resultcode"]


def test_settings_are_keys_of_the_configuration_as_json_or_text(tmp_path: Path) -> None:
    settings = ["--set", "seed=3", "--set", 'solvers=["ergo"]', "--set", "content-mode=text"]
    given = ["--configuration", '{"seed": 1, "sharing": false}']
    reply = json.loads(run("run", "SAT", "-n", 1, *given, *settings, formula(tmp_path, FORMULA)).out)
    assert reply["configuration"] == {
        "seed": 3,
        "sharing": False,
        "solvers": ["ergo"],
        "content-mode": "text",
    }
    assert reply["result"]["solver"].startswith("ergo")


def test_a_result_file_may_be_named_by_a_path_from_here(tmp_path: Path) -> None:
    formula(tmp_path, CONTRADICTION)
    done = run("run", "SAT", "-n", 1, "--set", "proof=a.lrat", "a.cnf", cwd=tmp_path)
    assert done.code == 20
    assert (tmp_path / "a.lrat").read_text().endswith(" 0 3 4 0\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.cnf", "a.lrat"]


def test_without_a_result_in_time_it_says_so() -> None:
    done = run("run", "SLEEP", "-n", 2, "--time-limit", "500ms")
    assert done.code == 1
    result = json.loads(done.out)["result"]
    assert (result["resultstring"], result["outcome"]) == ("UNKNOWN", "time-limit")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: APPLICATION (see"),
        (["UTS", "-n", 1, "--set", "dept=13"], "unknown key 'dept'; known are type, shape, depth"),
        (["noop"], "SLEEP, SMT, UTS); did you mean 'NOOP'?"),
        (["NOOP", "--set", "seed"], "--set: 'seed' is not of the form KEY=VALUE"),
        (["NOOP", "-n", 1, "/nonexistent"], "files: NOOP takes no input"),
        (["SAT", "-n", 1, "/nonexistent"], "/nonexistent: no such file"),
        (["SAT", "-n", 1, "--set", "sed=3", "x"], "unknown key 'sed'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[object], message: str) -> None:
    done = run("run", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_an_application_that_cannot_be_imported_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MALLOB_PY_APPS", "X=nowhere:X")
    done = run("run", "X", "-n", 1)
    assert (done.code, done.out) == (2, "")
    assert done.err == "mallob-py: X cannot be imported: ModuleNotFoundError: No module named 'nowhere'\n"


IDLE = """
from mallob_bags.queens import QueensApplication, QueensBag

class IdleBag(QueensBag):
    def process(self, count):
        return 0

class Idle(QueensApplication):
    name = "IDLE"
    rehearsal = None

    def first_bag(self, payload, configuration):
        bag = super().first_bag(payload, configuration)
        bag.__class__ = IdleBag
        return bag
"""


def test_a_bag_that_does_not_do_what_it_must_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "idle_bag.py").write_text(IDLE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MALLOB_PY_APPS", "IDLE=idle_bag:Idle")
    done = run("run", "IDLE", "-n", 1, "--set", "n=8")
    assert (done.code, done.out) == (2, "")
    assert done.err == "mallob-py run: process(1) has done no task of a bag that is not empty\n"


def test_under_mpiexec_all_ranks_take_part() -> None:
    done = run("run", "NOOP", prefix=[mpiexec(), "-n", "2"])
    assert done.code == 0, done.err
    assert json.loads(done.out)["result"]["resultstring"] == "DONE"


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (["SLEEP"], rb"2 workers"),
        (["QUEENS", "--set", "n=25"], rb"workers?, [\d.]+[kMGT] tasks, [\d.]+[kMG]/s"),
    ],
)
def test_a_terminal_is_told_how_the_job_is_getting_on_and_ctrl_c_ends_it(job: list[str], told: bytes) -> None:
    ours, theirs = pty.openpty()
    with started("run", *job, "-n", "2", stderr=theirs) as (process, _):
        os.close(theirs)
        shown = b""
        while not re.search(told, shown):
            shown += os.read(ours, 1000)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=DEADLINE_S)
    os.close(ours)
    assert process.returncode == 128 + signal.SIGINT
    if job == ["SLEEP"]:
        assert out == ""
    else:  # a bag replies with its result so far, marked as incomplete
        result = json.loads(out)["result"]
        assert (result["outcome"], result["complete"]) == ("interrupted", False)


def test_workers_of_a_bag_write_down_what_they_lend(tmp_path: Path) -> None:
    folder = tmp_path / "loans"
    reply = json.loads(run("run", "QUEENS", "-n", 2, "--set", "n=10", "--log-loans", folder).out)
    entries = [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]
    (end,) = [entry for entry in entries if entry["what"] == "finished"]
    assert end["done"] == reply["result"]["tasks"]


BROKEN_BAG = """
from mallob_bags.queens import QueensApplication, QueensBag

class Broken(QueensApplication):
    name = "BROKEN"

    def bag_from_bytes(self, data, payload, configuration):
        raise ValueError("nobody understands these bytes")

class Lazy(QueensApplication):
    name = "LAZY"

    def first_bag(self, payload, configuration):
        bag = super().first_bag(payload, configuration)
        bag.process = lambda count: 0
        return bag
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("BROKEN", "ValueError: nobody understands these bytes"),
        ("LAZY", "process(1) has done no task of a bag that is not empty"),
    ],
)
def test_a_bag_that_cannot_work_ends_its_job_with_the_reason(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_bag.py").write_text(BROKEN_BAG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MALLOB_PY_APPS", f"{name}=broken_bag:{name.capitalize()}")
    done = run("run", name, "-n", 2, "--set", "n=25")
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
