"""The SAT application as a worker runs it: every strategy gives right answers, or no answer."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest
from clause_lists import is_satisfiable
from dimacs_text import parse_dimacs
from fake_context import FakeContext
from seeds import seeds

from mallob_py.kit import InputError, JobInput, Result
from mallob_py.runtime.processes import python
from mallob_sat import SatApplication, generate, modes
from mallob_sat.formula import ASSUMPTIONS_MARK, formula_from_list
from mallob_sat.kissat_door import door_is_open
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.search import check_model, solve
from mallob_sat.solvers import ENGINES, Family, Solver, Verdict


def run(literals: list[int], index: int = 0, **configuration: object) -> Result:
    application = SatApplication()
    application.check(configuration)
    payload = application.read(JobInput(literals=literals, configuration=configuration))
    return application.run(FakeContext(payload, index, configuration))


def random_case(rng: random.Random) -> tuple[int, list[list[int]], list[int]]:
    n_vars = rng.randint(1, 7)

    def literal() -> int:
        return rng.choice((1, -1)) * rng.randint(1, n_vars)

    shortest = 1 if rng.random() < 0.98 else 0
    clauses = [[literal() for _ in range(rng.randint(shortest, 4))] for _ in range(rng.randint(0, 30))]
    return n_vars, clauses, [literal() for _ in range(rng.randint(0, 3))]


@pytest.mark.parametrize("seed", seeds(20))
def test_random_formulas_get_the_answer_of_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        n_vars, clauses, assumptions = random_case(rng)
        flat = [x for clause in clauses for x in (*clause, 0)] + [ASSUMPTIONS_MARK, *assumptions, 0]
        result = run(flat, index=rng.randrange(40), seed=rng.randrange(3))
        units = [[x] for x in assumptions]
        assert result.code == (10 if is_satisfiable(clauses + units, n_vars) else 20)
        solution = np.asarray(result.solution).astype(int).tolist()
        if result.code == 20:
            assert set(solution) <= set(assumptions)
            assert not is_satisfiable(clauses + [[x] for x in solution], n_vars)
        else:
            used = max((abs(x) for x in flat if x != ASSUMPTIONS_MARK), default=0)
            assert [abs(x) for x in solution] == list(range(1, used + 1))


@pytest.mark.parametrize("engine", list(ENGINES))
def test_every_engine_solves_both_kinds_and_keeps_assumptions(engine: str) -> None:
    strategy = Strategy(engine)
    colour = formula_from_list([1, 2, 0, -1, -2, 0, 2, 3, 0, ASSUMPTIONS_MARK, -2, 0])
    assert np.asarray(solve(colour, strategy).solution).tolist() == [1, -2, 3]
    holes = generate.pigeonhole(4)
    flat = [x for clause in holes.clauses for x in (*clause, 0)]
    assert solve(formula_from_list(flat), strategy).code == 20


@pytest.mark.parametrize("engine", list(ENGINES))
def test_an_engine_with_a_budget_can_be_continued(engine: str) -> None:
    holes = generate.pigeonhole(6)
    solver = Solver(engine)
    solver.add_formula(formula_from_list([x for clause in holes.clauses for x in (*clause, 0)]))
    if ENGINES[engine].family in (Family.KISSAT, Family.LINGELING):
        with pytest.raises(ValueError, match="no conflict budget"):
            solver.solve_for(10)
        if not Solver.trades_at_restarts(engine):
            with pytest.raises(ValueError, match="no conflict budget"):
                assert solver.conflicts
        return
    first = solver.solve_for(5)
    assert first is Verdict.UNDECIDED
    assert (before := solver.conflicts) > 0
    with pytest.raises(ValueError, match="no model"):
        solver.model()
    answers = [solver.solve_for(5000) for _ in range(40)]
    assert Verdict.SATISFIABLE not in answers
    assert Verdict.UNSATISFIABLE in answers
    assert solver.conflicts > before


@pytest.mark.parametrize(
    ("literals", "code", "solution"),
    [
        ([], 10, []),
        ([0], 20, []),
        ([1, 0, 0], 20, []),
        ([0, 1, 0], 20, []),
        ([ASSUMPTIONS_MARK, 2, 0], 10, [-1, 2]),
        ([ASSUMPTIONS_MARK, 2, -2, 0], 20, [-2, 2]),
        ([1, 0, -1, 0], 20, []),
        ([1, -1, 0], 10, None),
        ([3, 0], 10, None),
    ],
)
def test_trivial_formulas(literals: list[int], code: int, solution: list[int] | None) -> None:
    result = run(literals)
    assert result.code == code
    if solution is not None:
        assert np.asarray(result.solution).tolist() == solution


def test_only_the_root_tries_a_formula_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(modes, "solve_quickly", lambda *given: tried.append(given))
    for index in range(3):
        assert run([1, 2, 0, -1, 0], index).code == 10
    assert len(tried) == 1


def test_what_workers_check_at_their_first_formula_is_checked_before_they_are_forked() -> None:
    door_is_open.cache_clear()
    SatApplication().prepare()
    assert door_is_open.cache_info().currsize == 1


def test_variables_that_never_occur_are_in_the_model() -> None:
    for index in range(20):
        result = solve(parse_dimacs(b"p cnf 9 1\n-4 0\n", "f"), Portfolio().strategy(index))
        model = np.asarray(result.solution).tolist()
        assert [abs(x) for x in model] == list(range(1, 10))
        assert model[3] == -4


def test_a_huge_variable_does_not_cost_the_solver_memory() -> None:
    literals = [5_000_000, 2, 0, -2, 0, ASSUMPTIONS_MARK, 4_000_000, 0]
    for index in range(3):
        result = run(literals, index, seed=index)
        model = np.asarray(result.solution)
        assert model.size == 5_000_000
        assert model[[1, 3_999_999, 4_999_999]].tolist() == [-2, 4_000_000, 5_000_000]
    core = run([5_000_000, 0, ASSUMPTIONS_MARK, 7, -5_000_000, 0]).solution
    assert core == [-5_000_000]
    # Not ru_maxrss, which an exec takes over from the parent.
    status = "open('/proc/self/status').read()"
    code = f"from test_sat_solving import run; run({literals}); print({status}.split('VmHWM:')[1].split()[0])"
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*python(), "-c", code], capture_output=True, text=True, check=True, env=os.environ | path
    )
    assert int(done.stdout) < 400_000, "KiB; a solver with all these variables has 1.2 GB"


def test_a_wrong_model_never_leaves_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Solver, "model", lambda solver: np.array([-1, -2], dtype=np.int32))
    with pytest.raises(RuntimeError, match="wrong model: clause 2 is false"):
        run([1, -2, 0, 1, 2, 0])


def test_a_model_that_breaks_an_assumption_is_wrong() -> None:
    formula = formula_from_list([1, 2, 0, ASSUMPTIONS_MARK, -1, 0])
    with pytest.raises(RuntimeError, match="assumption"):
        check_model(formula, np.array([1, 2], dtype=np.int32), Strategy("ergo"))


def test_the_result_says_which_solver_won() -> None:
    assert run([1, 2, 0]).fields == {"solver": "cadical195"}


@pytest.mark.parametrize(
    ("installed", "configuration", "solver"),
    [
        (False, {}, "kissat404(seed=2)"),
        (True, {}, "cadical300(stabilizeonly=1)"),
        (True, {"portfolio": "g c e"}, "ergo"),
    ],
)
def test_searches_follow_the_order_that_suits_the_host_unless_the_job_names_one(
    installed: bool, configuration: dict[str, object], solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "solve_quickly", lambda formula, strategy: None)
    monkeypatch.setattr(modes, "natives_are_installed", lambda: installed)
    assert run([1, 2, 0], 2, **configuration).fields["solver"] == solver


def test_under_assumptions_no_solver_is_asked_that_cannot_tell_which_are_to_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modes, "solve_quickly", lambda formula, strategy: None)
    result = run([1, 2, 0, 3, 0, ASSUMPTIONS_MARK, -1, -2, 3, 0])
    assert (result.code, result.fields["solver"]) == (20, "cadical195")
    assert np.asarray(result.solution).tolist() == [-1, -2]


@pytest.mark.parametrize(
    ("n_vars", "n_clauses", "solver"), [(60, 360, "ergo"), (2000, 6000, "cadical195(stabilizeonly=1)")]
)
def test_formulas_drawn_by_lot_have_an_order_of_their_own(
    n_vars: int, n_clauses: int, solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "solve_quickly", lambda formula, strategy: None)
    clauses = generate.uniform(n_vars, n_clauses, 1).clauses
    literals = [x for clause in clauses for x in (*clause, 0)]
    assert run(literals).fields["solver"] == "kissat404"
    assert run(literals, 1).fields["solver"] == solver
    assert run(literals, portfolio="h").fields["solver"] == "glucose4"


def test_an_unknown_configuration_key_is_refused_by_check() -> None:
    with pytest.raises(InputError):
        SatApplication().check({"solvr": ["ergo"]})
