"""Whole jobs with checked answers: right answers are returned, and lies of solvers end in an error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from native_library import needs_library
from running import Running, needs_mpiexec, run, serving, with_apps

from mallob_sat.formula import formula_from_list
from mallob_sat.generate import Formula, commutativity, pigeonhole, planted
from mallob_sat.solvers import Solver, Verdict

pytestmark = [needs_mpiexec, needs_library]

CHECKED: dict[str, Any] = {"checked": True}


def literals_of(formula: Formula) -> list[int]:
    return [x for clause in formula.clauses for x in (*clause, 0)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(
        tmp_path_factory.mktemp("service"), ranks=3, env=with_apps(SAT="lying_apps:Liar")
    ) as service:
        yield service


def test_workers_that_share_come_and_go_refute_a_formula_with_every_step_checked(service: Running) -> None:
    path = service.submit("circuits", literals=literals_of(commutativity(7)), configuration=CHECKED)
    for number in range(4):
        guest = literals_of(planted(120, 500, number))
        service.ask(f"guest{number}", literals=guest, priority=2.0)
    result = service.reply(path)["result"]
    assert (result["resultstring"], result["checked"]) == ("UNSAT", True)
    assert "signature" not in result


def test_a_model_is_checked_and_failed_assumptions_are(service: Running) -> None:
    formula = planted(200, 800, seed=3)
    result = service.ask("model", literals=literals_of(formula), configuration=CHECKED)["result"]
    assert (result["resultstring"], result["checked"]) == ("SAT", True)
    assert formula_from_list(literals_of(formula)).first_falsified(result["solution"]) is None
    assumed = [-literal for literal in result["solution"][::7]]
    result = service.ask("core", literals=literals_of(formula), assumptions=assumed, configuration=CHECKED)
    core = result["result"]["solution"]
    assert set(core) <= set(assumed)
    judge = Solver("minisat22")
    judge.add_formula(formula_from_list(literals_of(formula)))
    assert judge.solve(core) is Verdict.UNSATISFIABLE


@pytest.mark.parametrize(
    ("lie", "formula", "reason"),
    [
        ("flipped literal", commutativity(8), "wrong signature"),
        ("unsigned clause", commutativity(8), "wrong signature"),
        ("wrong model", planted(100, 380, seed=1), "the model leaves clause"),
        ("wrong clause", pigeonhole(9), "leaves two literals"),
        ("claimed unsat", pigeonhole(9), "without an empty clause"),
    ],
)
def test_a_lie_ends_the_job_with_an_error_that_names_the_solver(
    service: Running, lie: str, formula: Formula, reason: str
) -> None:
    reply = service.ask(
        lie.replace(" ", "-"), literals=literals_of(formula), configuration=CHECKED | {"__lie": lie}
    )
    message = reply["error"]["message"]
    assert reason in message
    assert "cadical" in message
    assert "Traceback" not in message
    assert reply["result"]["resultstring"] == "UNKNOWN"


def test_solve_checks_the_formula_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "circuits.cnf"
    path.write_text(commutativity(6).text("circuits"))
    done = run("solve", "-n", "2", "--checked", path)
    assert (done.code, done.answer) == (20, "s UNSATISFIABLE"), done.err
