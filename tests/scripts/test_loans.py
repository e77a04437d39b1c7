"""Logs of loans tell whether each bag was counted once, and which loans are open."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import loans
import msgspec
import pytest
from seeds import seeds

from mallob_py.simulation.bags import BagCluster, draw_plan

_SCRIPTS = Path(__file__).parents[2] / "scripts"


OPENED = {"t": 0.0, "what": "opened", "account": 0}
LENT = {"t": 0.1, "what": "lent", "account": 0, "loan": 7}
BORROWED = {"t": 0.2, "what": "opened", "account": 7}
TOLD = {"t": 0.3, "what": "told", "account": 7, "seq": 1, "done": 5, "own": 5, "final": True}
TAKEN = {"t": 0.4, "what": "taken", "account": 0, "loan": 7, "seq": 1, "done": 5}
FINISHED = {"t": 0.5, "what": "finished", "account": 0, "done": 6, "own": 1}


def logs_of(seed: int) -> list[list[dict[str, Any]]]:
    cluster = BagCluster(draw_plan(seed), is_logged=True)
    cluster.run()
    assert cluster.logs is not None
    return [[json.loads(msgspec.json.encode(entry)) for entry in log] for log in cluster.logs]


def test_random_lives_add_up() -> None:
    lent = 0
    for seed in seeds(30):
        logs = logs_of(seed)
        assert list(loans.problems(logs)) == [], f"seed {seed}"
        lent += sum(entry["what"] == "lent" for log in logs for entry in log)
    assert lent > 100


def test_a_loan_that_is_taken_in_once_more_is_found_in_a_random_life() -> None:
    logs = next(logs for logs in map(logs_of, range(30)) if any(map(_taken, logs)))
    log = next(filter(_taken, logs))
    log.insert(log.index(_taken(log)[0]), _taken(log)[0])
    assert any("was merged 2 times" in problem for problem in loans.problems(logs))


def _taken(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in log if entry["what"] == "taken"]


@pytest.mark.parametrize(
    ("root", "borrower", "problem"),
    [
        ([OPENED, LENT, TAKEN, FINISHED], [BORROWED, TOLD], None),
        ([OPENED, LENT, TAKEN, TAKEN, FINISHED | {"done": 11}], [BORROWED, TOLD], "was merged 2 times"),
        (
            [OPENED, LENT, TAKEN | {"done": 4}, FINISHED | {"done": 5}],
            [BORROWED, TOLD],
            "nobody had reported",
        ),
        ([OPENED, TAKEN, FINISHED], [BORROWED, TOLD], "nobody had lent it"),
        (
            [OPENED, LENT, TAKEN, FINISHED | {"done": 7}],
            [BORROWED, TOLD],
            "7 tasks done, but its entries add up to 6",
        ),
        (
            [OPENED, LENT, TAKEN, FINISHED],
            [BORROWED, TOLD | {"own": 4}],
            "5 tasks done, but its entries add up to 4",
        ),
        (
            [OPENED | {"done": 3}, FINISHED | {"done": 4}],
            [],
            "began with 3 tasks done, which no root had reported",
        ),
    ],
)
def test_what_does_not_add_up_is_told(
    root: list[dict[str, Any]], borrower: list[dict[str, Any]], problem: str | None
) -> None:
    found = list(loans.problems([root, borrower]))
    assert found == [] if problem is None else problem in found[0]


def test_open_loans_are_drawn_with_what_their_borrowers_have_told() -> None:
    onward = {"t": 0.25, "what": "lent", "account": 7, "loan": 9}
    logs = [[OPENED, LENT], [BORROWED, onward, TOLD | {"final": False}]]
    assert loans.open_loans(logs) == [(0, 7), (7, 9)]
    drawn = loans.dot(logs)
    assert "0 -> 7;" in drawn
    assert '7 [label="7\\n5 tasks done"];' in drawn
    assert '9 [label="9\\nnot arrived"];' in drawn
    assert loans.open_loans([[OPENED, LENT, TAKEN]]) == []


def test_the_command_reads_a_folder_and_passes_over_a_line_that_was_cut_off(tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(_SCRIPTS / "loans.py"), str(tmp_path), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run().returncode == 2
    for name, log in (("1.a", [OPENED, LENT, TAKEN, FINISHED]), ("1.b", [BORROWED, TOLD])):
        text = "".join(f"{json.dumps(entry)}\n" for entry in log)
        (tmp_path / f"{name}.jsonl").write_text(text + '{"t": 0.6, "wh')
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 workers, 1 loans, 0 open; the job ended with 6 tasks; 0 problems\n"
    assert run("--dot").stdout.startswith("digraph loans {")
