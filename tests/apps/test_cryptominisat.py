"""CryptoMiniSat, where it is installed: its answers are right, and it is tried first on parity problems."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from clause_lists import formula_of, is_satisfiable
from fake_context import FakeContext
from seeds import seeds

from mallob_py.kit import InputError, JobInput, Result
from mallob_sat import SatApplication, generate, modes
from mallob_sat.cryptominisat import CryptoMiniSat, CryptoMiniSatSearch, cryptominisat_is_installed
from mallob_sat.formula import Formula
from mallob_sat.native import search_for
from mallob_sat.portfolio import Strategy
from mallob_sat.solvers import Verdict

needs_cryptominisat = pytest.mark.skipif(
    not cryptominisat_is_installed(), reason="it is not installed: pip install pycryptosat"
)
Clauses = Sequence[Sequence[int]]


def assuming(clauses: Clauses, n_vars: int, assumptions: Sequence[int]) -> Formula:
    return replace(formula_of(clauses), n_vars=n_vars).assuming(assumptions)


def run(clauses: Clauses, **configuration: object) -> Result:
    application = SatApplication()
    application.check(configuration)
    literals = [literal for clause in clauses for literal in (*clause, 0)]
    payload = application.read(JobInput(literals=literals, configuration=configuration))
    return application.run(FakeContext(payload, 0, configuration))


@needs_cryptominisat
@pytest.mark.parametrize("seed", seeds(20))
def test_random_formulas_get_the_answer_of_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        n_vars = rng.randint(1, 7)

        def literal(n_vars: int = n_vars) -> int:
            return rng.choice((1, -1)) * rng.randint(1, n_vars)

        clauses = [[literal() for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 30))]
        assumptions = [literal() for _ in range(rng.randint(0, 3))]
        if any(-x in assumptions for x in assumptions):
            continue
        formula = assuming(clauses, n_vars, assumptions)
        strategy = Strategy("cryptominisat", renaming_seed=rng.choice((None, 1)))
        search = CryptoMiniSatSearch(formula, strategy)
        result = search.run()  # `run` checks the model
        assert search.cpu_s() > 0.0, "sharing waits for searches that have used CPU time"
        solution = np.asarray(result.solution).tolist()
        assert result.code == (10 if is_satisfiable([*clauses, *([x] for x in assumptions)], n_vars) else 20)
        if result.code == 20:
            assert set(solution) <= set(assumptions)
            assert not is_satisfiable([*clauses, *([x] for x in solution)], n_vars)
        else:
            assert [abs(x) for x in solution] == list(range(1, n_vars + 1))


@needs_cryptominisat
def test_models_have_variables_that_never_occur() -> None:
    solver = CryptoMiniSat()
    solver.add_formula(assuming([[-4, 2]], 9, []))
    assert solver.solve([4, -7]) is Verdict.SATISFIABLE
    model = solver.model().tolist()
    assert [abs(x) for x in model] == list(range(1, 10))
    assert {2, 4, -7} <= set(model)


@needs_cryptominisat
def test_parity_problems_are_its_own() -> None:
    """CryptoMiniSat wins on a parity problem that takes CaDiCaL 20 seconds."""
    result = run(generate.parity(44, 1).clauses)
    assert (result.code, result.fields["solver"]) == (20, "cryptominisat")


@needs_cryptominisat
@pytest.mark.parametrize(
    ("configuration", "solver"),
    [({}, "kissat404"), ({"solvers": ["ergo"]}, "ergo"), ({"portfolio": "y"}, "cryptominisat")],
)
def test_other_formulas_and_wishes_are_left_as_they_are(
    configuration: dict[str, object], solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "solve_quickly", lambda formula, strategy: None)
    formula = generate.pigeonhole(4) if not configuration else generate.parity(8, 1)
    result = run(formula.clauses, **configuration)
    assert (result.code, result.fields["solver"]) == (20, solver)


def test_it_must_be_installed_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "cryptominisat_is_installed", lambda: False)
    with pytest.raises(InputError, match="cryptominisat is not installed; pip install"):
        run([[1]], portfolio="c(y)*")
    with pytest.raises(InputError, match="cryptominisat is not installed; pip install"):
        run([[1]], portfolio="yk", agreement=2)


def test_parity_problems_are_solved_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "cryptominisat_is_installed", lambda: False)
    monkeypatch.setattr(modes, "solve_quickly", lambda formula, strategy: None)
    result = run(generate.parity(8, 1).clauses)
    assert (result.code, result.fields["solver"]) == (20, "kissat404")


@pytest.mark.parametrize("wish", ["proof", "core"])
def test_it_is_refused_where_it_cannot_serve(wish: str) -> None:
    with pytest.raises(InputError, match="cryptominisat cannot"):
        SatApplication().check({"portfolio": "y", wish: "/tmp/none"})


def test_it_trades_no_clauses() -> None:
    search = search_for(formula_of([[1, 2]]), Strategy("cryptominisat"))
    assert isinstance(search, CryptoMiniSatSearch)
    assert search.fds == ()
    search.close()
