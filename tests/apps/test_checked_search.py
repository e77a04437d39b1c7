"""Jobs with checked answers: what they need and refuse, and searches of which a checker repeats every
step.
"""

import random
import signal
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clause_lists import clauses_of, formula_of
from fake_context import FakeContext
from native_library import needs_library
from seeds import seeds
from test_native_solver import EAGER, random_clauses, reference

from mallob_py.kit import InputError, JobInput, Result, TreeMessage, race
from mallob_sat import generate
from mallob_sat.app import SatApplication
from mallob_sat.checked import CheckedSearch, Seal, signature
from mallob_sat.clauses import Clauses, union
from mallob_sat.formula import Formula
from mallob_sat.modes import mode_of
from mallob_sat.native import NATIVE_SOLVERS
from mallob_sat.portfolio import Strategy, Trade
from mallob_sat.solvers import Verdict

CHECKED: dict[str, Any] = {"checked": True}


@pytest.fixture
def context() -> FakeContext:
    return FakeContext({}, 0, {})


def no_turn(messages: list[TreeMessage], searches: Collection[CheckedSearch]) -> None:
    pass


def test_without_the_native_solver_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mallob_native", None)
    monkeypatch.setattr("mallob_sat.checked.load_library", lambda solver: None)
    with pytest.raises(InputError, match=r"^checked answers need the native solver.*make native$"):
        SatApplication().check(CHECKED)


@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ({"checked": "yes"}, "true or false"),
        ({"checked": True, "proof": "p"}, "not possible together"),
        ({"checked": True, "core": True}, "not possible together"),
        ({"checked": True, "agreement": 2}, "not possible together"),
        ({"checked": True, "solvers": ["kissat404"]}, "kissat404 cannot"),
    ],
)
def test_what_cannot_be_checked_is_refused(others: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        mode_of(others)


def test_incremental_jobs_are_refused() -> None:
    with pytest.raises(InputError, match="checked"):
        SatApplication().read(JobInput(literals=[1, 0], revision=0, configuration=CHECKED))


def checked_race(context: FakeContext, formula: Formula, strategy: Strategy, turn: Any = no_turn) -> Result:
    seal = Seal.new(formula)
    return race(context, lambda number: CheckedSearch(formula, strategy, seal), turn, seal.confirmed)


@needs_library
@pytest.mark.parametrize("name", NATIVE_SOLVERS)
@pytest.mark.parametrize("seed", seeds(4))
def test_answers_of_all_inprocessing_are_confirmed(seed: int, name: str, context: FakeContext) -> None:
    """The checker must confirm every step, with and without assumptions."""
    rng = random.Random(seed)
    for number in range(8):
        n_vars = rng.randint(20, 120)
        formula = formula_of(random_clauses(rng, n_vars))
        assumed = [rng.choice((1, -1)) * one for one in rng.sample(range(1, n_vars), rng.choice((0, 0, 5)))]
        formula = formula.assuming(assumed)
        options = tuple(EAGER[name].items()) if number % 2 else ()
        result = checked_race(context, formula, Strategy(name, options, trade=Trade.BOTH_WAYS))
        judge = reference(formula)
        answer = judge.solve(formula.assumptions.tolist())
        assert (result.code == 20) == (answer is Verdict.UNSATISFIABLE)
        assert result.fields["checked"] is True
        if result.code == 20:
            assert set(result.solution) <= set(assumed)
            assert judge.solve(np.asarray(result.solution).tolist()) is Verdict.UNSATISFIABLE


@needs_library
@pytest.mark.parametrize("name", NATIVE_SOLVERS)
@pytest.mark.parametrize(
    "clauses",
    [
        [[]],
        [[1], []],
        [[1], [-1]],
        [[1, -1]],
        [[1, 1, 2], [-1], [-2]],
        [[1, 2], [1, -2], [-1, 2], [-1, -2]],
        [[3], [-3, 3], [-3, 3, 3]],
    ],
)
def test_odd_formulas_are_answered(name: str, clauses: list[list[int]], context: FakeContext) -> None:
    formula = formula_of(clauses)
    result = checked_race(context, formula, Strategy(name))
    expected = any(not clause for clause in clauses) or reference(formula).solve() is Verdict.UNSATISFIABLE
    assert result.code == (20 if expected else 10)


class Exchange:
    """Gives the clauses of each search to the other searches, and remembers the clauses."""

    def __init__(self) -> None:
        self.all = [Clauses.none()]

    def turn(self, messages: list[TreeMessage], searches: Collection[CheckedSearch]) -> None:
        learned = [(search, search.learned()) for search in searches]
        self.all += [clauses for _, clauses in learned]
        for search in searches:
            for giver, clauses in learned:
                if giver is not search:
                    search.give(clauses)


@needs_library
@pytest.mark.parametrize("names", [("cadical195", "cadical195"), ("cadical300", "cadical195")])
def test_searches_that_exchange_are_confirmed_and_their_clauses_signed(
    names: tuple[str, str], context: FakeContext
) -> None:
    context.threads = 2
    formula = formula_of(generate.commutativity(7).clauses)
    seal, exchange = Seal.new(formula), Exchange()
    strategies = [Strategy(name, (("seed", 1 + at),), trade=Trade.BOTH_WAYS) for at, name in enumerate(names)]
    searches = []

    def attempt(number: int) -> CheckedSearch:
        searches.append(CheckedSearch(formula, strategies[number], seal))
        return searches[-1]

    result = race(context, attempt, exchange.turn, seal.confirmed)
    assert result.code == 20
    shared = union(exchange.all)
    assert len(shared)
    for clause, signed in zip(shared.lists(), shared.signatures, strict=True):
        body = np.array(sorted(clause), np.int32)
        assert signed.tobytes() == signature(seal.key, b"C", seal.formula, body)
    assert all(search.checker.returncode is not None for search in searches)


@needs_library
def test_a_clause_without_a_true_signature_ends_the_search(context: FakeContext) -> None:
    formula = formula_of(generate.pigeonhole(12).clauses)
    # False clauses for all variables: the search ignores clauses with eliminated variables.
    units = clauses_of([[literal] for v in range(1, formula.n_vars + 1) for literal in (v, -v)])
    false = replace(units, signatures=np.zeros((len(units), 16), np.uint8))

    def give(messages: list[TreeMessage], searches: Collection[CheckedSearch]) -> None:
        for search in searches:
            search.give(false)

    with pytest.raises(InputError, match=r"cadical195 is refuted .* wrong signature"):
        checked_race(context, formula, Strategy("cadical195", trade=Trade.BOTH_WAYS), give)


def test_an_answer_that_its_checker_has_not_signed_is_none() -> None:
    formula = formula_of([[1]])
    seal = Seal.new(formula)
    for fields in ({}, {"signature": "00" * 16}):
        with pytest.raises(InputError, match="not signed"):
            seal.confirmed(Result(20, [], fields))


@needs_library
def test_a_search_whose_checker_is_killed_is_replaced_twice(context: FakeContext) -> None:
    formula = formula_of(generate.pigeonhole(12).clauses)
    killed = set()

    def kill(messages: list[TreeMessage], searches: Collection[CheckedSearch]) -> None:
        for search in searches:
            killed.add(search.checker.pid)
            search.checker.send_signal(signal.SIGKILL)

    with pytest.raises(RuntimeError, match="all processes of the worker died"):
        checked_race(context, formula, Strategy("cadical195"), kill)
    assert len(killed) == 3


@needs_library
def test_a_checker_that_dies_before_its_first_byte_is_replaced(
    context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = subprocess.Popen, []

    def start_and_kill_first(*arguments: Any, **options: Any) -> Any:
        started.append(start(*arguments, **options))
        if len(started) == 1:
            started[0].kill()
            started[0].wait()
        return started[-1]

    monkeypatch.setattr("mallob_sat.checked.subprocess.Popen", start_and_kill_first)
    result = checked_race(context, formula_of([[1, 2], [-1]]), Strategy("cadical195"))
    assert (result.code, len(started)) == (10, 2)


def read_checked(path: Path) -> Formula:
    return Formula.from_payload(SatApplication().read(JobInput(files=[str(path)], configuration=CHECKED)))


@needs_library
@pytest.mark.parametrize(
    "text",
    [
        "c a\np cnf 3 2\n1 -2 0\n  c b\r\n3\n 0\n",
        "p cnf 0 0\n",
        "p\tcnf 2 1\n1 2 0",
        "p cnf 2 1\n1 2 0\n%\n0\n\n",
        "p cnf 2 2\n0 -0\n",
    ],
)
def test_both_readers_find_the_same_formula(text: str, tmp_path: Path) -> None:
    path = tmp_path / "formula.cnf"
    path.write_text(text)
    plain = Formula.from_payload(SatApplication().read(JobInput(files=[str(path)])))
    np.testing.assert_array_equal(read_checked(path).literals, plain.literals)


@needs_library
def test_a_formula_that_two_readers_find_different_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "formula.cnf"
    path.write_text("p cnf 2 1\n1 2 0\n")
    monkeypatch.setattr(
        "mallob_sat.app.read_dimacs", lambda blocks, path: list(blocks) and formula_of([[1, -2]])
    )
    with pytest.raises(InputError, match="two readers find different formulas"):
        read_checked(path)


@needs_library
def test_xors_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "formula.cnf"
    path.write_text("p cnf 2 1\nx1 2 0\n")
    with pytest.raises(InputError, match=r"XORs.*write clauses"):
        read_checked(path)
