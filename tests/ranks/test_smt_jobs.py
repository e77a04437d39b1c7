"""SMT as a user runs it: `solve` prints what a solver would, a service answers job files, limits hold."""

import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Running, needs_mpiexec, poll_until, run, serving

from mallob_py import Client, JobError
from mallob_smt.engines import ENGINES, installed_engines

pytestmark = [
    needs_mpiexec,
    pytest.mark.skipif(
        len(installed_engines()) < len(ENGINES), reason="needs all engines: pip install 'mallob-py[smt]'"
    ),
]

SCRIPT = """(set-logic QF_LIA)
(declare-const x Int)
(assert (and (> x 2) (< x 4)))
(check-sat)
(get-value (x))
(assert (> x 3))
(check-sat)
(get-value (x))
"""
PRINTED = """sat
((x 3))
unsat
(error "line 8: get-value needs a check before it that says sat; the last check said unsat")
"""


def factors(bits: int, product: int) -> str:
    """Return a script that asks for two factors of a number, which takes every engine long."""
    lines = ["(set-logic QF_BV)"]
    for name in ("a", "b"):
        lines += [
            f"(declare-const {name} (_ BitVec {2 * bits}))",
            f"(assert (bvult {name} (_ bv{2**bits} {2 * bits})))",
            f"(assert (bvugt {name} (_ bv1 {2 * bits})))",
        ]
    return "\n".join([*lines, f"(assert (= (bvmul a b) (_ bv{product} {2 * bits})))", "(check-sat)"])


HARD = factors(32, 2_860_486_313 * 3_267_000_013)


def test_solve_prints_what_a_solver_would_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "script.smt2.xz").write_bytes(lzma.compress(SCRIPT.encode()))
    done = run("solve", "-n", "2", tmp_path / "script.smt2.xz")
    assert (done.code, done.out, done.err) == (20, PRINTED, "")


def test_a_limit_holds_whatever_the_engines_do(tmp_path: Path) -> None:
    (tmp_path / "hard.smt2").write_text(HARD)
    done = run("solve", "-n", "2", "--time-limit", "1s", tmp_path / "hard.smt2")
    assert (done.code, done.out, done.err) == (0, "unknown\n", "")


def test_a_script_that_none_can_read_is_one_line_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.smt2").write_text("(set-logic QF_BV)\n(assert (= x y))\n(check-sat)\n")
    done = run("solve", "-n", "1", tmp_path / "a.smt2")
    assert (done.code, done.out) == (2, "")
    for engine in ENGINES:
        assert f"{engine}: " in done.err
    assert done.err.count("\n") == 1
    (tmp_path / "b.smt2").write_text("(check-sat)\n(assert (= 1")
    done = run("solve", "-n", "1", tmp_path / "b.smt2")
    assert (done.code, done.out) == (2, "")
    assert "b.smt2, line 2: the command that begins here is never closed" in done.err


def test_options_of_formulas_are_refused_for_scripts(tmp_path: Path) -> None:
    (tmp_path / "a.smt2").write_text(SCRIPT)
    done = run("solve", "--proof", tmp_path / "proof", tmp_path / "a.smt2")
    assert done.code == 2
    assert "--proof is not an option of SMT" in done.err


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("smt"), ranks=3) as running:
        yield running
        assert running.stop() == 0


def test_a_client_has_scripts_answered(service: Running, tmp_path: Path) -> None:
    (tmp_path / "script.smt2").write_text(SCRIPT)
    with Client(service.api_dir) as client:
        for script in (SCRIPT, tmp_path / "script.smt2"):
            answer = client.solve_smt(script, configuration={"agreement": 2})
            assert answer.satisfiable is False
            assert answer.text == PRINTED
            assert answer.result["answers"] == ["sat", "unsat"]
        poll_until(lambda: not list((service.box() / "inputs").iterdir()), "no input is left")
        with pytest.raises(JobError, match="line 1: the command 'frobnicate'"):
            client.solve_smt("(frobnicate)")


def test_hard_jobs_shrink_for_others_and_end_when_told(service: Running) -> None:
    with Client(service.api_dir) as client:
        hard = client.submit(HARD.encode(), application="SMT", name="hard")
        poll_until(lambda: any(job.volume == 3 for job in client.jobs()), "it has all workers")
        assert [client.solve_smt(SCRIPT).satisfiable for _ in range(3)] == [False] * 3
        client.interrupt("hard")
        assert hard.result().satisfiable is None
        limited = client.solve_smt(HARD, wallclock_limit_s=0.5)
        assert limited.satisfiable is None
        assert limited.result["outcome"] == "wallclock-limit"


def test_submit_takes_scripts_by_their_names(service: Running, tmp_path: Path) -> None:
    (tmp_path / "script.smt2").write_text(SCRIPT)
    arguments = ("--api-dir", service.api_dir, "--wait", "--output-format", "smt")
    done = run("submit", *arguments, tmp_path / "script.smt2")
    assert (done.code, done.out) == (20, PRINTED)
