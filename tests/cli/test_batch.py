import json
import sys
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["TRACE", "--policy", "fcfs", "--policy", "easy:depth=10"],
        ["TRACE", "--policy", "fcfs", "easy:depth=10"],
        ["--policy", "fcfs", "easy:depth=10", "TRACE"],
        ["-p", "fcfs", "TRACE", "--policy=easy:depth=10"],
        ["--policy=fcfs", "easy:depth=10", "TRACE"],
        ["TRACE", "-p", "fcfs;easy:depth=10"],
    ],
)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_all_policies_that_are_named_are_played(
    trace: str, arguments: list[str], jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [trace if word == "TRACE" else word for word in arguments]
    assert main(["batch", "simulate", *words, "--json", "--jobs", jobs]) == 0
    assert [one["policy"] for one in json.loads(capsys.readouterr().out)] == ["fcfs", "easy:depth=10"]


def test_a_share_of_the_jobs_can_be_malleable_and_resizes_can_cost_time(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def makespan_s(*arguments: str) -> float:
        assert main(["batch", "simulate", trace, "-p", "fair", "--json", *arguments]) == 0
        (metrics,) = json.loads(capsys.readouterr().out)
        return float(metrics["makespan_s"])

    everything = ("--malleable", "100%", "--malleable-range", "0.5:1")
    assert makespan_s() == 15
    # The first job shrinks for the second, and grows again when the second has ended.
    assert makespan_s(*everything) < 15
    assert makespan_s(*everything, "--resize-cost", "0:100", "--speedup", "amdahl:0.1") > 15
    assert main(["batch", "simulate", trace, "-p", "fair", *everything]) == 0
    assert capsys.readouterr().out.startswith("small.swf, 100% malleable: 3 jobs, 4 nodes\n")


def test_only_the_first_jobs_and_another_order_of_events(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", "simulate", trace, "--first", "2", "--order", "pyss", "-p", "easy", "--json"]) == 0
    (metrics,) = json.loads(capsys.readouterr().out)
    assert metrics["jobs"] == 2


def test_as_json_there_are_all_metrics(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "simulate", trace, "--policy", "easy", "--json", "--nodes", "8"]) == 0
    (metrics,) = json.loads(capsys.readouterr().out)
    assert (metrics["policy"], metrics["jobs"], metrics["wait_s"]) == ("easy", 3, 0.0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--policy", "quick"], "no policy 'quick'"),
        (["--policy", "easy", "quick"], "no policy 'quick'"),
        (["--partition", "7"], "there are no jobs"),
        (["--partition", "7", "--policy", "easy"], "there are no jobs"),
        (["--malleable", "150%"], "--malleable: '150%' is not a share such as 50%"),
        (["--malleable", "50%", "--malleable-range", "2:4"], "--malleable-range: '2:4' is not multiples"),
        (["--malleable-range", "0.5:4"], "--malleable-range is for malleable jobs; give --malleable as well"),
        (["--speedup", "power:0.2"], "--speedup is for malleable jobs; give --malleable as well"),
        (["--speedup", "quick"], "--speedup: 'quick' is not linear"),
        (["--resize-cost", "1:2:3"], "--resize-cost: '1:2:3' should be seconds"),
        (["--order", "any"], "--order: 'any' is none of batch, pyss, elastisim"),
        (["--policy"], "-p/--policy: expected one argument"),
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
    assert names == {
        *("jobs.csv", "allocations.csv", "schedule.json", "schedule.swf"),
        *("utilisation.svg", "gantt.svg"),
    }
    page = (folder / "index.html").read_text()
    assert page.count("<td>easy:depth=10,extra=no</td>") == 2
    # energy [kWh]: 48 node-seconds at 360 W
    assert "<td>0.005</td>" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<img") == 6
    capsys.readouterr()


def test_without_matplotlib_a_line_says_how_to_get_charts(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mallob_py.batch.pictures", None)
    assert main(["batch", "simulate", trace, "--policy", "easy", "--output", str(tmp_path)]) == 0
    assert "no charts: matplotlib is missing (pip install 'mallob-py[plot]')\n" in capsys.readouterr().err
    assert "<img" not in (tmp_path / "index.html").read_text()


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
        "mallob-py: the largest job has size 9, more than the machine (4 nodes): "
        "its header has only MaxNodes, "
        "and sizes of jobs count processors: give --cores-per-node, or --nodes (such as 9)\n"
        "mallob-py: jobs left out: 1 without processors, 1 without run time, "
        "2 larger than the machine (4 nodes)\n"
    )


def test_what_is_strange_about_the_machine_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cores.swf"
    path.write_text(
        "; MaxNodes: 4\n; MaxProcs: 32\n"
        + "".join(
            f"{number} {20 * number} -1 10 {8 * number} -1 -1 -1 10 -1 1 1 1 1 1 1 -1 -1\n"
            for number in range(1, 5)
        )
    )
    assert main(["batch", "simulate", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("cores.swf: 4 jobs, 4 nodes\n")
    assert told.err == (
        "mallob-py: a node has 8 processors (MaxProcs 32, MaxNodes 4): taken as --cores-per-node 8\n"
    )
    assert main(["batch", "simulate", str(path), "--nodes", "1", "--cores-per-node", "8"]) == 0
    assert "--nodes 1 is a smaller machine than the trace's, which has 4\n" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--idle-watts", "--busy-watts"])
def test_power_is_a_number_of_watts(trace: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "simulate", trace, option, "-3"]) == 2
    assert "'-3' is not a number of watts" in capsys.readouterr().err
