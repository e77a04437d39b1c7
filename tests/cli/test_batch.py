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
