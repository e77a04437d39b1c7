"""Unsatisfiable cores: brute force must find the clauses with these numbers unsatisfiable, too."""

import random
from pathlib import Path

import numpy as np
import pytest
from clause_lists import is_satisfiable
from dimacs_text import parse_dimacs
from fake_context import FakeContext
from seeds import seeds

from mallob_py.kit import InputError, JobInput, Result, result_file
from mallob_sat import SatApplication, cores, generate
from mallob_sat.formula import ASSUMPTIONS_MARK, formula_from_list
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.proof_checker import read_clauses
from mallob_sat.search import solve

Clauses = list[list[int]]


def flat(clauses: Clauses, assumptions: list[int]) -> list[int]:
    return [x for clause in clauses for x in (*clause, 0)] + [ASSUMPTIONS_MARK, *assumptions, 0]


def run(literals: list[int], index: int = 0, **configuration: object) -> Result:
    application = SatApplication()
    application.check(configuration)
    payload = application.read(JobInput(literals=literals, configuration=configuration))
    return application.run(FakeContext(payload, index, configuration))


def find_core(clauses: Clauses, assumptions: list[int], strategy: Strategy) -> Result:
    return cores.find_core(formula_from_list(flat(clauses, assumptions)), strategy)


@pytest.mark.parametrize("seed", seeds(10))
def test_cores_of_random_formulas_are_unsatisfiable(seed: int) -> None:
    rng = random.Random(seed)
    strategies = [
        Portfolio().restricted_to(["cadical195", "glucose4", "ergo"], "").strategy(i) for i in range(6)
    ]
    unsatisfiable = 0
    for _ in range(60):
        n_vars = rng.randint(1, 6)

        def literal(n_vars: int = n_vars) -> int:
            return rng.choice((1, -1)) * rng.randint(1, n_vars)

        clauses = [
            [literal() for _ in range(rng.randint(0 if rng.random() < 0.02 else 1, 3))]
            for _ in range(rng.randint(0, 30))
        ]
        assumptions = [literal() for _ in range(rng.randint(0, 2))]
        result = find_core(clauses, assumptions, rng.choice(strategies))
        units = [[x] for x in assumptions]
        solution = np.asarray(result.solution).astype(int).tolist()
        if is_satisfiable(clauses + units, n_vars):
            assert result.code == 10
            assert is_satisfiable(clauses + units + [[x] for x in solution], n_vars)
            continue
        unsatisfiable += 1
        numbers = result.fields["core"]
        assert numbers == sorted(set(numbers))
        core = [clauses[number - 1] for number in numbers]
        assert set(solution) <= set(assumptions)
        assert not is_satisfiable(core + [[x] for x in solution], n_vars)
    assert unsatisfiable > 10


def test_clauses_that_have_nothing_to_do_with_it_are_left_out() -> None:
    holes = [list(clause) for clause in generate.pigeonhole(4).clauses]
    top = max(abs(x) for clause in holes for x in clause)
    noise = [[top + 1 + i, -(top + 2 + i)] for i in range(100)]
    result = run(flat(noise[:50] + holes + noise[50:], []), core=True)
    assert result.code == 20
    assert set(result.fields["core"]) == set(range(51, 51 + len(holes)))  # pigeonhole formulas are minimal
    assert result.fields["core-size"] == len(holes)


def test_a_satisfiable_formula_has_its_model_as_ever() -> None:
    result = run([1, -2, 0, 2, 3, 0, ASSUMPTIONS_MARK, -1, 0], core=True)
    assert np.asarray(result.solution).tolist() == [-1, -2, 3]
    assert "core" not in result.fields


@pytest.mark.parametrize("index", range(8))
def test_every_worker_of_the_portfolio_finds_cores(index: int) -> None:
    holes = [list(clause) for clause in generate.pigeonhole(4).clauses]
    result = run(flat(holes, []), index, core=True)
    assert len(result.fields["core"]) == len(holes)


def test_the_core_as_a_file_is_a_formula(tmp_path: Path) -> None:
    path = tmp_path / "core.cnf"
    clauses = [[4, 5], [1, 2], [-2], [6], [-1, -3]]
    result = run(flat(clauses, [6, 3]), core=str(path))
    result_file.discard_unfinished(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["core.cnf"]
    assert result.fields["core"] == [2, 3, 5]
    assert result.solution is not None
    assert list(result.solution) == [3]
    assert read_clauses(str(path)) == [(1, 2), (-2,), (-1, -3), (3,)]
    assert path.read_text().splitlines()[0] == "c clauses of the formula: 2 3 5"
    assert solve(parse_dimacs(path.read_bytes(), "core"), Strategy("ergo")).code == 20


@pytest.mark.parametrize(
    ("text", "core"),
    [
        ("p cnf 3 4\nx1 2 3 0\n1 2 0\n3 0\n-3 0\n", [3, 4]),
        ("p cnf 5 5\n4 0\nx1 -1 0\nx1 2 3 0\nx1 2 -3 0\n5 0\n", [3, 4]),
    ],
)
def test_a_core_names_clauses_of_the_input_in_which_an_xor_is_one(
    text: str, core: list[int], tmp_path: Path
) -> None:
    (tmp_path / "f.cnf").write_text(text)
    configuration = {"core": str(tmp_path / "core.cnf")}
    application = SatApplication()
    payload = application.read(JobInput(files=(str(tmp_path / "f.cnf"),), configuration=configuration))
    result = application.run(FakeContext(payload, 0, configuration))
    result_file.discard_unfinished(configuration["core"])
    assert result.fields["core"] == core
    assert result.fields["core-size"] == 2
    assert solve(parse_dimacs((tmp_path / "core.cnf").read_bytes(), "core"), Strategy("ergo")).code == 20


def test_a_long_core_is_counted_but_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "NUMBERS_MAX", 1)
    result = run([1, 0, -1, 0], core=True)
    assert (result.fields["core-size"], "core" in result.fields) == (2, False)


def test_a_core_that_is_satisfiable_never_leaves_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_split", lambda result, n_vars: (np.array([0]), []))
    with pytest.raises(RuntimeError, match="cadical195 gave a core that it found satisfiable itself"):
        find_core([[1, 2], [-1], [-2]], [], Strategy("cadical195"))


def test_another_solver_confirms_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core shrinks too little for another round of the first solver, so only the second solver can
    notice.
    """
    monkeypatch.setattr(cores, "_SHRINKAGE_MIN", 0.0)
    monkeypatch.setattr(cores, "_split", lambda result, n_vars: (np.array([0]), []))
    with pytest.raises(RuntimeError, match=f"cadical195 gave a core that {cores.CHECKER.title} found"):
        find_core([[1, 2], [-1], [-2]], [], Strategy("cadical195"))
    assert cores.CHECKER.solver != "cadical195"


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({"core": 1}, "core is 1; it must be true or the absolute path"),
        ({"core": "relative.cnf"}, "must be the absolute path"),
        ({"core": "/tmp/"}, "must be the absolute path"),
        ({"core": True, "solvers": ["kissat404"]}, "kissat404 cannot find cores"),
        ({"core": True, "portfolio": "ck"}, "kissat404 cannot find cores"),
        ({"core": True, "proof": "/proof"}, "proof and core are not possible together"),
        ({"core": "/nowhere/core.cnf"}, "core /nowhere/core.cnf: cannot be written"),
    ],
)
def test_wrong_wishes_are_refused(configuration: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        run([1, 0], **configuration)
    assert caught.value.field == "configuration"


def test_no_core_is_as_ever() -> None:
    assert run([1, 0, -1, 0], core=False) == run([1, 0, -1, 0])
