"""The service from Python: formulas in all forms, futures, and solvers that live in the service."""

import random
from collections.abc import Iterator
from concurrent.futures import CancelledError
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pysat.solvers import Solver
from running import Running, needs_mpiexec, poll_until, serving

from mallob_py import Client, IncrementalSolver, Ipasir, JobError
from mallob_py.api import client as client_module
from mallob_py.service import ServiceError
from mallob_sat.generate import commutativity, pigeonhole, uniform

pytestmark = needs_mpiexec

CLAUSES = [[1, 2], [-1, 3], [-2, -3, 4]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), ranks=2) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def client(service: Running) -> Iterator[Client]:
    with Client(service.api_dir) as one:
        yield one


def holds(model: Any, clauses: Any) -> bool:
    true = set(np.asarray(model).tolist())
    return all(true & set(clause) for clause in clauses)


def test_a_formula_may_be_a_path(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "holes.cnf"
    path.write_text(pigeonhole(4).text("holes"))
    assert client.solve(path).satisfiable is False
    assert client.solve(str(path)).satisfiable is False


def test_assumptions_that_cannot_hold_are_named(client: Client) -> None:
    answer = client.solve([[1, 2], [-1, 3]], assumptions=[5, -3, 1])
    assert answer.satisfiable is False
    assert answer.core is not None
    assert sorted(answer.core, key=abs) == [1, -3]


def test_a_large_formula_goes_through_a_file_that_is_removed(
    client: Client, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_INLINE_MAX", 10)
    formula = uniform(40, 120, seed=1)
    answer = client.solve(formula.clauses)
    assert answer.model is not None
    assert holds(answer.model, formula.clauses)
    poll_until(lambda: not list((service.api_dir / "jobs.0" / "inputs").iterdir()))


def test_a_packed_model_is_unpacked(client: Client) -> None:
    answer = client.solve([[1], [-2], [3, 9]], configuration={"model": "packed"})
    assert answer.model is not None
    assert answer.model[:2].tolist() == [1, -2]
    assert np.abs(answer.model).tolist() == list(range(1, 10))


def test_several_solutions_are_told_apart(client: Client) -> None:
    configuration = {"solutions": "all", "projection": [1, 2]}
    answer = client.solve([[1, 2], [3, -3]], configuration=configuration)
    assert answer.model is None
    assert answer.solutions is not None
    assert sorted(solution.tolist() for solution in answer.solutions) == [[-1, 2], [1, -2], [1, 2]]


def test_many_formulas_are_answered_in_their_order(client: Client) -> None:
    formulas = [[[number], [-number, number + 1]] for number in range(1, 30)]
    for number, answer in enumerate(client.solve_many(formulas), 1):
        assert answer.model is not None
        assert answer.model[number - 1 :].tolist() == [number, number + 1]


def test_a_limit_ends_a_job_without_an_answer(client: Client) -> None:
    answer = client.solve(commutativity(16).clauses, wallclock_limit_s=0.2)
    assert answer.satisfiable is None
    assert answer.model is None
    assert answer.core is None


def test_a_cancelled_job_ends(client: Client, service: Running) -> None:
    future = client.submit(commutativity(16).clauses, name="holes")
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    poll_until(lambda: list((service.api_dir / "jobs.0" / "out").glob("*.holes.json")))


def test_closing_a_client_ends_its_jobs(service: Running) -> None:
    with Client(service.api_dir, user="leaving") as client:
        future = client.submit(commutativity(16).clauses, name="holes")
    assert future.cancelled()
    poll_until(lambda: list((service.api_dir / "jobs.0" / "out").glob("leaving.holes.json")))
    with pytest.raises(RuntimeError, match="closed"):
        client.submit([[1]])


def test_what_the_service_refuses_is_an_error_with_its_field(client: Client, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"missing\.cnf") as refused:
        client.solve(tmp_path / "missing.cnf")
    assert refused.value.field == "files"
    with pytest.raises(JobError, match="nonsense"):
        client.solve([[1]], nonsense=1)


def test_a_folder_without_a_service_is_told(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="mallob-py serve"):
        Client(tmp_path)


def test_two_jobs_of_one_name_are_not_mixed_up(client: Client) -> None:
    future = client.submit(commutativity(16).clauses, name="twice")
    with pytest.raises(ValueError, match="twice"):
        client.submit([[1]], name="twice")
    future.cancel()


@pytest.mark.parametrize("seed", range(3))
def test_an_incremental_solver_answers_like_pysats(seed: int, client: Client) -> None:
    choose = random.Random(seed)

    def literals(count: int) -> list[int]:
        return [choose.choice((-1, 1)) * v for v in choose.sample(range(1, 31), count)]

    with IncrementalSolver(client) as ours, Solver("minisat22") as judge:
        for _ in range(20):
            clauses = [literals(3) for _ in range(choose.randint(0, 12))]
            assumptions = literals(choose.randint(0, 5))
            for clause in clauses:
                ours.add_clause(clause)
                judge.add_clause(clause)
            satisfiable = ours.solve(assumptions=assumptions)
            assert satisfiable is judge.solve(assumptions=assumptions)
            assert ours.get_status() is satisfiable
            if satisfiable:
                assert judge.solve(assumptions=ours.get_model())
                assert set(assumptions) <= set(ours.get_model() or ())
                assert ours.get_core() is None
            else:
                assert set(ours.get_core() or ()) <= set(assumptions)
                assert judge.solve(assumptions=ours.get_core()) is False
                assert ours.get_model() is None


def test_models_are_enumerated(client: Client) -> None:
    with IncrementalSolver(client, bootstrap_with=CLAUSES) as solver:
        found = sorted(tuple(x > 0 for x in model) for model in solver.enum_models())
    expected = [
        signs
        for signs in product((False, True), repeat=4)
        if all(any(signs[abs(x) - 1] == (x > 0) for x in clause) for clause in CLAUSES)
    ]
    assert found == sorted(expected)


def test_a_deleted_solver_says_so_and_its_files_are_gone(
    client: Client, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_INLINE_MAX", 3)
    solver = IncrementalSolver(client, bootstrap_with=CLAUSES)
    assert solver.solve() is True
    solver.append_formula([[5, 6], [-5]])
    assert solver.solve([-6]) is False
    solver.delete()
    solver.delete()
    with pytest.raises(ValueError, match="deleted"):
        solver.solve()
    poll_until(lambda: not list((service.box() / "inputs").iterdir()), "no input is left")


def test_ipasir(client: Client) -> None:
    solver = Ipasir(client)
    for literal in (1, 2, 0, -1, 3, 0):
        solver.add(literal)
    solver.assume(1)
    assert solver.solve() == 10
    assert [solver.val(literal) for literal in (1, -1, 3)] == [1, 1, 3]
    assert solver.val(9) == 0
    solver.assume(-3)
    solver.assume(1)
    solver.assume(7)
    assert solver.solve() == 20
    assert [solver.failed(literal) for literal in (-3, 1, 7)] == [True, True, False]
    assert solver.solve() == 10
    with pytest.raises(ValueError, match="20"):
        solver.failed(1)
    solver.add(4)
    with pytest.raises(ValueError, match="not closed"):
        solver.solve()
    solver.release()
