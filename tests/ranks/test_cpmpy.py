"""CPMpy's solver "mallob": models as in CPMpy's examples, answered by a service."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import pytest
from running import Running, needs_mpiexec, serving

from mallob_py import Client

cp = pytest.importorskip("cpmpy", reason="the extra `cpmpy` is not installed")
pytest.importorskip("pindakaas", reason="the extra `cpmpy` is not installed")
pytestmark = needs_mpiexec


def register() -> None:
    from mallob_py import register_cpmpy_solver  # here, because it imports CPMpy

    register_cpmpy_solver()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    register()
    with serving(tmp_path_factory.mktemp("service"), ranks=2) as running:
        yield running
        assert running.stop() == 0


def test_it_is_known_once_and_cpmpys_own_remain() -> None:
    own = [name for name, _ in cp.SolverLookup.base_solvers() if name != "mallob"]
    register()
    register()
    assert [name for name, _ in cp.SolverLookup.base_solvers()] == [*own, "mallob"]
    assert "mallob" in cp.SolverLookup.supported()


def test_queens_a_puzzle_and_what_has_no_solution(service: Running) -> None:
    solver = f"mallob:{service.api_dir}"
    queens = cp.intvar(1, 6, shape=6)
    diagonals = [[queens[i] + sign * i for i in range(6)] for sign in (0, 1, -1)]
    assert cp.Model([cp.AllDifferent(line) for line in diagonals]).solve(solver=solver)
    for (i, one), (j, other) in combinations(enumerate(queens.value().tolist()), 2):
        assert one != other
        assert abs(one - other) != j - i
    mayo, ketchup, curry = cp.boolvar(shape=3)
    model = cp.Model([mayo | ketchup, ~ketchup | curry, ~curry])
    assert model.solve(solver=solver)
    assert [bool(one.value()) for one in (mayo, ketchup, curry)] == [True, False, False]
    assert not cp.Model([mayo, ~mayo]).solve(solver=solver)
    low, high = cp.intvar(1, 3, shape=2)
    assert cp.Model(low < high).solveAll(solver=solver) == 3


def test_objectives_go_to_maxsat(service: Running) -> None:
    solver = f"mallob:{service.api_dir}"
    weights, values = [3, 4, 2, 3], [5, 6, 2, 4]
    taken = cp.boolvar(shape=4)
    model = cp.Model(cp.sum(taken * weights) <= 7, maximize=cp.sum(taken * values))
    assert model.solve(solver=solver)
    assert (model.objective_value(), model.status().exitstatus.name) == (11, "OPTIMAL")
    starts = cp.intvar(0, 9, shape=3)
    model = cp.Model(minimize=cp.max([start + took for start, took in zip(starts, (3, 2, 4), strict=True)]))
    for first, second in pairwise(range(3)):
        model += (starts[first] + 2 <= starts[second]) | (starts[second] + 4 <= starts[first])
    assert model.solve(solver=solver)
    assert model.objective_value() == 6
    assert not cp.Model([taken[0], ~taken[0]], minimize=cp.sum(taken)).solve(solver=solver)


def test_assumptions_objectives_in_turn_and_a_given_client(service: Running) -> None:
    p: Any = cp.boolvar(shape=3)
    with Client(service.api_dir) as client:
        solver = cp.SolverLookup.get("mallob", cp.Model(p[0].implies(~p[1])), client=client)
        assert not solver.solve(assumptions=[p[0], p[1], p[2]])
        assert {str(one) for one in solver.get_core()} == {str(p[0]), str(p[1])}
        solver.minimize(3 * p[0] - 2 * p[1] + 5)
        assert (solver.solve(), solver.objective_value()) == (True, 3)
        solver.maximize(p[0] + p[1] + p[2])
        assert (solver.solve(), solver.objective_value()) == (True, 2)


def test_a_core_belongs_to_the_last_answer(service: Running) -> None:
    p: Any = cp.boolvar(shape=2)
    with Client(service.api_dir) as client:
        solver = cp.SolverLookup.get("mallob", cp.Model(p[0].implies(~p[1])), client=client)
        assert not solver.solve(assumptions=[p[0], p[1]])
        assert len(solver.get_core()) == 2
        solver.add(p[0] & ~p[0])
        assert not solver.solve(assumptions=[p[1]])
        assert solver.get_core() == []  # the constraints alone cannot hold
        assert not solver.solve()
        with pytest.raises(AssertionError, match="requires a previous solve call with assumption"):
            solver.get_core()
