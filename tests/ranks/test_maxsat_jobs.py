"""MaxSAT as a user meets it: `solve` with output as in the evaluations, and the service."""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import subprocess
from pathlib import Path

from running import COMMAND, DEADLINE_S, environment, needs_mpiexec, run, serving

pytestmark = needs_mpiexec
SMALL = "c small\nh 1 2 0\n5 -1 0\n3 -2 0\n4 3 -2 0\n"


def hard_formula(folder: Path) -> Path:
    """Nobody finds the optimum within the time of a test."""
    choose = random.Random(7)
    lines = []
    for _ in range(2500):
        clause = [v * choose.choice((1, -1)) for v in choose.sample(range(1, 201), 3)]
        lines.append(f"{choose.randint(1, 50)} {' '.join(map(str, clause))} 0")
    path = folder / "hard.wcnf"
    path.write_text("\n".join(lines))
    return path


def check_best(out: str, path: Path) -> None:
    """The `o` line tells what the `v` line costs."""
    cost = int(re.findall(r"^o (\d+)$", out, re.MULTILINE)[-1])
    (bits,) = re.findall(r"^v ([01]+)$", out, re.MULTILINE)
    paid = 0
    for line in path.read_text().splitlines():
        weight, *literals = map(int, line.split()[:-1])
        paid += weight * all((bits[abs(literal) - 1] == "1") != (literal > 0) for literal in literals)
    assert paid == cost


def test_an_optimum_is_told_as_in_the_evaluations(tmp_path: Path) -> None:
    path = tmp_path / "small.wcnf"
    path.write_text(SMALL)
    done = run("solve", "-n", "2", "--quiet", path)
    assert (done.code, done.out) == (30, "o 3\ns OPTIMUM FOUND\nv 011\n"), done.err


def test_at_the_time_limit_the_best_is_told(tmp_path: Path) -> None:
    path = hard_formula(tmp_path)
    done = run("solve", "-n", "2", "--time-limit", "3", path)
    assert (done.code, done.answer) == (10, "s SATISFIABLE"), done.err
    check_best(done.out, path)


def test_after_a_signal_the_best_is_told(tmp_path: Path) -> None:
    path = hard_formula(tmp_path)
    ours, theirs = pty.openpty()
    command = [*COMMAND, "solve", "-n", "2", str(path)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, env=environment("maxsat"))
    os.close(theirs)
    shown = b""
    try:
        while b"cost " not in shown:
            shown += os.read(ours, 1 << 16)
        process.send_signal(signal.SIGTERM)
        with open(ours, "rb", closefd=False, buffering=0) as terminal:
            while True:
                try:
                    data = terminal.read(1 << 16)
                except OSError:
                    break
                if not data:
                    break
                shown += data
        assert process.wait(DEADLINE_S) == 10
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    out = shown.decode().replace("\r\n", "\n")
    assert "s SATISFIABLE" in out
    check_best(out, path)


def test_a_line_that_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.wcnf"
    path.write_text("h 1 0\n1.5 2 0\n")
    done = run("solve", "-n", "1", "--quiet", path)
    assert done.code == 2
    assert "wrong.wcnf, line 2: '1.5': a weight has to be a whole number" in done.err


def test_proofs_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "small.wcnf"
    path.write_text(SMALL)
    done = run("solve", "-n", "1", "--proof", tmp_path / "p", path)
    assert done.code == 2
    assert "--proof is not for MAXSAT" in done.err


def test_a_service_tells_the_optimum_and_at_a_limit_the_best(tmp_path: Path) -> None:
    small = tmp_path / "small.wcnf"
    small.write_text(SMALL)
    hard = hard_formula(tmp_path)
    with serving(tmp_path, ranks=3) as service:
        result = service.ask("small", application="MAXSAT", files=[str(small)])["result"]
        assert (result["resultstring"], result["cost"]) == ("OPTIMUM FOUND", 3)
        assert result["solution"] == [-1, 2, 3]
        result = service.ask("hard", application="MAXSAT", files=[str(hard)], wallclock_limit="2s")["result"]
        assert (result["resultstring"], result["complete"]) == ("SATISFIABLE", False)
        assert result["bound"] <= result["value"] == result["cost"]
        assert service.stop() == 0
        assert "Traceback" not in service.output
