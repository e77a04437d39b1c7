"""MaxSAT as a user meets it: `solve` with output as in the evaluations, and the service."""

import os
import pty
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest
from pysat.examples.rc2 import RC2 as PysatRC2
from pysat.formula import WCNF
from running import COMMAND, DEADLINE_S, environment, needs_mpiexec, poll_until, run, serving
from waiting import growing

from mallob_py import RC2, Client, Ipamir
from mallob_py.api.optimization import minimizing

pytestmark = needs_mpiexec
SMALL = "c small\nh 1 2 0\n5 -1 0\n3 -2 0\n4 3 -2 0\n"


def hard_formula(folder: Path) -> Path:
    """Return a formula whose optimum is not found within the time of a test."""
    choose = random.Random(7)
    lines = []
    for _ in range(2500):
        clause = [v * choose.choice((1, -1)) for v in choose.sample(range(1, 201), 3)]
        lines.append(f"{choose.randint(1, 50)} {' '.join(map(str, clause))} 0")
    path = folder / "hard.wcnf"
    path.write_text("\n".join(lines))
    return path


def check_best(out: str, path: Path) -> None:
    """Check that the number on the `o` line is the cost of the assignment on the `v` line."""
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
    for limit_s in growing(3.0):
        done = run("solve", "-n", "2", "--time-limit", f"{limit_s:g}", path)
        if done.code != 0:
            break  # else the limit has come before any answer
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


def test_a_service_tells_the_optimum_and_at_a_limit_the_best(tmp_path: Path) -> None:
    small = tmp_path / "small.wcnf"
    small.write_text(SMALL)
    hard = hard_formula(tmp_path)
    with serving(tmp_path, ranks=3) as service:
        result = service.ask("small", application="MAXSAT", files=[str(small)])["result"]
        assert (result["resultstring"], result["cost"]) == ("OPTIMUM FOUND", 3)
        assert result["solution"] == [-1, 2, 3]
        for limit_s in growing(2.0):
            fields = {"files": [str(hard)], "wallclock_limit": f"{limit_s:g}s"}
            result = service.ask(f"hard-{limit_s:g}", application="MAXSAT", **fields)["result"]
            if result["resultcode"] != 0:
                break  # else the limit has come before any answer
        assert (result["resultstring"], result["complete"]) == ("SATISFIABLE", False)
        assert result["bound"] <= result["value"] == result["cost"]
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_optimisation_from_python(tmp_path: Path) -> None:
    hard = hard_formula(tmp_path)
    with serving(tmp_path, ranks=2) as service, Client(service.api_dir) as client:
        best = client.maximize([[-1, -2], [-2, -3], [1, 3]], {1: 3, 2: 4, 3: 2, 4: -1})
        assert (best.is_optimal, best.value, best.bound) == (True, 5, 5)
        assert best.model is not None
        assert best.model.tolist() == [1, -2, 3, -4]
        least = client.minimize([[1, 2]], {1: 3, 2: 4, 3: -2})
        assert (least.satisfiable, least.value) == (True, 1)
        none = client.minimize([[1], [-1]], {1: 1})
        assert (none.satisfiable, none.value, none.model) == (False, None, None)
        with pytest.raises(ValueError, match="from 0 to 2\\^63-1, not 9223372036854775808"):
            client.minimize([[1]], {1: 2**63})
        weighted = WCNF()
        weighted.extend([[1, 2], [-1, -2]])
        weighted.extend([[-1], [-2]], weights=[2, 5])
        with RC2(weighted, client) as solver, PysatRC2(weighted) as reference:
            ours = [(model, solver.cost) for model in solver.enumerate()]
            theirs = [(model, reference.cost) for model in reference.enumerate()]
        assert ours == theirs == [([1, -2], 2), ([-1, 2], 5)]
        ipamir = Ipamir(client)
        for literal in (1, 2, 0):
            ipamir.add_hard(literal)
        ipamir.add_soft(1, 2)
        ipamir.add_soft(2, 3)
        assert (ipamir.solve(), ipamir.val_obj(), ipamir.val_lit(1), ipamir.val_lit(2)) == (30, 2, 1, -2)
        ipamir.assume(-1)
        assert (ipamir.solve(), ipamir.val_obj(), ipamir.val_lit(-2)) == (30, 3, 2)
        ipamir.assume(-1)
        ipamir.assume(-2)
        assert ipamir.solve() == 20
        assert ipamir.solve() == 30, "assumptions hold for one question"
        future = client.optimize(minimizing(hard))
        value, bound = poll_until(
            lambda: None not in future.bounds and future.bounds, "there are bounds while it runs"
        )
        assert 0 <= bound <= value
        client.interrupt(future.name)
        best = future.result(DEADLINE_S)
        assert (best.satisfiable, best.is_optimal) == (True, False)
        assert best.value is not None
        assert best.value <= value
        poll_until(lambda: not list((service.box() / "inputs").iterdir()), "no input is left")
        assert service.stop() == 0
