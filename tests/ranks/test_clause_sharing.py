"""Workers on real ranks that exchange clauses while the job tree stays the same or changes."""

from pathlib import Path
from typing import Any

import pytest
from running import needs_mpiexec, run, serving

from mallob_sat.generate import Formula, commutativity, pigeonhole, planted

pytestmark = needs_mpiexec

CADICALS = {"solvers": ["cadical195", "cadical153"]}


def literals_of(formula: Formula) -> list[int]:
    return [x for clause in formula.clauses for x in (*clause, 0)]


def test_workers_take_what_others_have_learned_and_the_answer_is_right(tmp_path: Path) -> None:
    formula = literals_of(commutativity(7))
    with serving(tmp_path, ranks=4) as service:
        for number in range(5):
            reply = service.ask(f"circuits{number}", literals=formula, configuration=CADICALS)
            assert reply["result"]["resultstring"] == "UNSAT"
            if sum(reply["result"].get("shared_clauses", {}).values()):
                return
    pytest.fail("no winner has ever given or taken a clause")


def test_without_sharing_nothing_is_given(tmp_path: Path) -> None:
    configuration: dict[str, Any] = CADICALS | {"sharing": False}
    with serving(tmp_path, ranks=2) as service:
        reply = service.ask("holes", literals=literals_of(commutativity(6)), configuration=configuration)
    assert reply["result"]["resultstring"] == "UNSAT"
    assert reply["result"].get("shared_clauses", {"given": 0, "taken": 0}) == {"given": 0, "taken": 0}


def test_a_job_whose_workers_come_and_go_finds_the_answer(tmp_path: Path) -> None:
    """Other jobs take workers away and give them back, sometimes in the middle of an epoch of sharing."""
    with serving(tmp_path, ranks=4) as service:
        path = service.submit("circuits", literals=literals_of(commutativity(7)), configuration=CADICALS)
        service.await_event("started", index=3)
        for number in range(6):
            service.ask(f"guest{number}", literals=literals_of(planted(120, 500, number)), priority=2.0)
        reply = service.reply(path)
        assert reply["result"]["resultstring"] == "UNSAT"
        service.await_event("resumed", job=reply["internal_id"])


def test_a_worker_with_several_solvers_shares_among_them(tmp_path: Path) -> None:
    path = tmp_path / "holes.cnf"
    path.write_text(commutativity(6).text("holes"))
    done = run("solve", "-n", "1", "--solvers", "3", "--configuration", '{"solvers": ["cadical195"]}', path)
    assert done.answer == "s UNSATISFIABLE", done.err


@pytest.mark.parametrize(
    ("given", "complaint"),
    [("{", "is not JSON"), ("[1]", "is not a JSON object"), ('{"solvers": ["nonesuch"]}', "nonesuch")],
)
def test_a_bad_configuration_is_refused_with_a_reason(given: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "holes.cnf"
    path.write_text(pigeonhole(3).text("holes"))
    done = run("solve", "-n", "1", "--configuration", given, path)
    assert done.code == 2
    assert complaint in done.err
    assert "Traceback" not in done.err
