from __future__ import annotations

import json
from pathlib import Path

import pytest

from mallob_py.cli.main import main

TRACE = "; MaxNodes: 4\n" + "".join(
    f"{number} {at} -1 {run} {size} -1 -1 {size} {run} -1 1 1 1 1 1 1 -1 -1\n"
    for number, (at, size, run) in enumerate([(0, 2, 10), (1, 4, 5), (2, 1, 8)], 1)
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "small.swf"
    path.write_text(TRACE)
    return str(path)


def test_policies_stand_side_by_side(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "simulate", trace, "--policy", "fcfs easy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "small.swf: 3 jobs, 4 nodes"
    assert [line.split()[:2] for line in lines[-2:]] == [["fcfs", "3"], ["easy", "3"]]


def test_as_json_there_are_all_metrics(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "simulate", trace, "--policy", "easy", "--json", "--nodes", "8"]) == 0
    (metrics,) = json.loads(capsys.readouterr().out)
    assert (metrics["policy"], metrics["jobs"], metrics["wait_s"]) == ("easy", 3, 0.0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--policy", "quick"], "no policy 'quick'"),
        (["--partition", "7"], "there are no jobs"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    trace: str, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", "simulate", trace, *arguments]) == 2
    complaint = capsys.readouterr().err
    assert error in complaint
    assert complaint.count("\n") == 1


def test_a_missing_trace_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "simulate", "/nowhere.swf"]) == 2
    assert capsys.readouterr().err == "mallob-py batch simulate: /nowhere.swf: No such file or directory\n"


def test_each_policy_has_a_folder_and_all_have_one_page(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    policies = "easy easy:depth=10,extra=no easy"
    arguments = ["--output", str(folder), "--busy-watts", "360", "--idle-watts", "0"]
    assert main(["batch", "simulate", trace, "--policy", policies, *arguments]) == 0
    assert {path.name for path in folder.iterdir()} == {
        "easy",
        "easy-depth-10-extra-no",
        "easy-2",
        "index.html",
    }
    names = {path.name for path in (folder / "easy").iterdir()}
    assert {"jobs.csv", "allocations.csv", "schedule.json", "schedule.swf"} <= names
    page = (folder / "index.html").read_text()
    assert page.count("<td>easy:depth=10,extra=no</td>") == 2
    # 48 node-seconds at 360 W
    assert "<td>0.005</td>" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    capsys.readouterr()


def test_jobs_that_are_left_out_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "some.swf"
    rows = [(1, 10, 2), (2, 0, 2), (3, 5, 9), (4, 5, 8), (5, 1, 0)]
    path.write_text(
        "; MaxNodes: 4\n"
        + "".join(
            f"{number} {number} -1 {run} {size} -1 -1 {size} {run} -1 1 1 1 1 1 1 -1 -1\n"
            for number, run, size in rows
        )
    )
    assert main(["batch", "simulate", str(path), "--json"]) == 0
    assert capsys.readouterr().err == (
        "mallob-py: jobs left out: 1 without processors, 1 without run time, "
        "2 larger than the machine (4 nodes)\n"
    )


@pytest.mark.parametrize("option", ["--idle-watts", "--busy-watts"])
def test_power_is_a_number_of_watts(trace: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "simulate", trace, option, "-3"]) == 2
    assert "'-3' is not a number of watts" in capsys.readouterr().err
