import json
from pathlib import Path

import pytest

from mallob_py.cli.main import main

#: jobs for 4 nodes: job 2 needs all nodes, jobs 3 and 4 could overtake it
JOBS = [(0, 2, 10), (1, 4, 5), (2, 1, 8), (2, 1, 9)]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "small.swf"
    path.write_text(
        "; MaxNodes: 4\n"
        + "".join(
            f"{number} {at} -1 {run} {size} -1 -1 {size} {run} -1 1 1 1 1 1 1 -1 -1\n"
            for number, (at, size, run) in enumerate(JOBS, 1)
        )
    )
    return str(path)


def explained(trace: str, job: int, capsys: pytest.CaptureFixture[str], policy: str = "easy") -> list[str]:
    assert main(["batch", "explain", trace, str(job), "--policy", policy]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_head_waits_for_nodes_and_says_who_overtook_it(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = explained(trace, 2, capsys)
    assert lines[1] == "submitted at 2 s, started at 11 s on 4 nodes after 9 s, ended at 16 s"
    assert lines[3] == (
        "at 2 s (2 decisions until 3 s): too few nodes were free: needs 4, 1 to 2 free, 1 job runs"
    )
    assert lines[4] == "    the job is the head of the queue; by estimates the head gets its nodes at 11 s"
    assert lines[5:] == [
        "    started meanwhile: job 3",
        "at 11 s: started, 4 nodes free (ended then: jobs 1, 3)",
        "submitted later and started earlier: job 3",
    ]


def test_a_job_that_would_delay_the_head_is_told_so(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(explained(trace, 4, capsys))
    assert "enough nodes were free, but earlier jobs have their turn first: needs 1, 1 free" in text
    assert "would end at 12 s by its estimate, which may delay the head" in text


def test_a_reservation_is_told(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "    the job has a reservation for 11 s" in explained(trace, 2, capsys, "conservative")


def test_a_job_that_starts_at_once_has_nothing_to_explain(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained(trace, 1, capsys)[2:] == ["", "at 1 s: started, 4 nodes free"]


def test_a_job_that_is_not_there_is_one_line(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "explain", trace, "77"]) == 2
    assert capsys.readouterr().err == "mallob-py batch explain: there is no job 77 (or it was left out)\n"


@pytest.mark.parametrize("policy", ["fair", "elastic", "agreement"])
def test_policies_that_see_what_their_actions_bring_are_explained(
    trace: str, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--malleable", "1", "--resize-cost", "1", "--order", "pyss"]
    assert main(["batch", "simulate", trace, "--policy", policy, *arguments, "--json"]) == 0
    (metrics,) = json.loads(capsys.readouterr().out)
    starts_s = list[float]()
    for job in range(1, 5):
        assert main(["batch", "explain", trace, str(job), "--policy", policy, *arguments]) == 0
        words = capsys.readouterr().out.splitlines()[1].replace(",", "").split()
        starts_s.append(float(words[6]) - float(words[2]))
    assert sum(starts_s) / 4 == pytest.approx(metrics["wait_s"])
