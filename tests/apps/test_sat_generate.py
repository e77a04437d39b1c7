"""Generated formulas have the stated answers and the stated form."""

from pathlib import Path

import numpy as np
import pytest
from dimacs_text import parse_dimacs

import mallob_sat
from mallob_py.kit import JobInput
from mallob_sat import generate
from mallob_sat.app import read_formula
from mallob_sat.portfolio import Strategy
from mallob_sat.search import solve

EXAMPLES = Path(mallob_sat.__file__).parent / "examples"
CADICAL = Strategy("cadical195")


def code(formula: generate.Formula) -> int:
    return solve(parse_dimacs(formula.text("test").encode(), "f"), CADICAL).code


@pytest.mark.parametrize("number", [9, 15, 21, 25, 35, 77, 121, 899, 2021])
def test_odd_composites_have_factors(number: int) -> None:
    formula = parse_dimacs(generate.factoring(number).text("test").encode(), "f")
    result = solve(formula, CADICAL)
    assert result.code == 10
    bits = np.asarray(result.solution) > 0
    width = number.bit_length()
    large = sum(int(bits[1 + i]) << i for i in range(width - 1))
    small = sum(int(bits[width + i]) << i for i in range((width + 1) // 2))
    assert large * small == number


@pytest.mark.parametrize("number", [5, 7, 11, 13, 31, 101, 257, 2027])
def test_odd_primes_have_none(number: int) -> None:
    assert code(generate.factoring(number)) == 20


def test_multiplication_commutes() -> None:
    assert [code(generate.commutativity(bits)) for bits in (1, 2, 3, 4)] == [20] * 4


def test_pigeons_do_not_fit_and_parities_do_not_add_up() -> None:
    assert [code(generate.pigeonhole(holes)) for holes in (1, 2, 5)] == [20] * 3
    assert [code(generate.parity(vertices, seed)) for vertices in (1, 2, 9) for seed in range(3)] == [20] * 9


def test_planted_formulas_are_satisfiable_at_any_density() -> None:
    assert code(generate.planted(50, 1000, 7)) == 10
    assert code(generate.uniform(50, 1000, 7)) == 20
    assert code(generate.uniform(50, 100, 7)) == 10


def test_large_formulas_have_clauses_of_three_variables(tmp_path: Path) -> None:
    path = tmp_path / "large.cnf"
    generate.main(["large", "40", "120000", "3", "-o", str(path)])
    formula = read_formula(JobInput(files=[str(path)]))
    assert (formula.n_vars, formula.n_clauses) == (40, 120000)
    variables = np.abs(formula.literals.reshape(-1, 4))
    assert not variables[:, 3].any()
    assert all(len(set(clause)) == 3 for clause in variables[:, :3].tolist())
    assert set(variables.ravel().tolist()) == set(range(41))
    assert 0.49 < (formula.literals < 0).sum() / 360_000 < 0.51


@pytest.mark.parametrize("kind", ["uniform", "planted", "large"])
def test_too_few_variables_for_a_clause_are_refused(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        generate.main([kind, "2", "5", "1"])
    assert caught.value.code == 2
    assert f"{kind}: a clause needs 3 variables, n_vars is 2" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["uniform", "large"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_the_command_writes_the_same_file_every_time(tmp_path: Path, suffix: str, kind: str) -> None:
    paths = [tmp_path / f"{name}.cnf{suffix}" for name in "ab"]
    for path in paths:
        assert generate.main([kind, "20", "80", "1", "-o", str(path)]) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()
    formula = read_formula(JobInput(files=[str(paths[0])]))
    assert (formula.n_vars, formula.n_clauses) == (20, 80)


def test_the_command_prints_without_an_output_file(capsys: pytest.CaptureFixture[str]) -> None:
    generate.main(["pigeonhole", "2"])
    assert capsys.readouterr().out.startswith("c mallob_sat.generate pigeonhole 2\np cnf 6 9\n")


def test_the_readme_lists_every_example_with_its_answer() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    files = sorted(path.name for path in EXAMPLES.iterdir() if ".cnf" in path.name)
    assert files
    for name in files:
        expected = "UNSAT" if "unsat" in name else "SAT"
        assert f"| `{name}` | {expected} |" in readme


@pytest.mark.parametrize("name", ["tiny_sat.cnf", "tiny_unsat.cnf.gz"])
def test_tiny_examples_have_the_answer_in_their_name(name: str) -> None:
    result = solve(read_formula(JobInput(files=[str(EXAMPLES / name)])), CADICAL)
    assert result.code == (20 if "unsat" in name else 10)


def test_large_examples_can_be_read() -> None:
    for path in EXAMPLES.glob("*.cnf.*"):
        assert read_formula(JobInput(files=[str(path)])).n_clauses > 0


@pytest.mark.slow
def test_a_large_example_has_the_answer_in_its_name() -> None:
    """Only one large example is solved here; `make demo` solves the other examples."""
    result = solve(read_formula(JobInput(files=[str(EXAMPLES / "commutativity_unsat.cnf.xz")])), CADICAL)
    assert result.code == 20
