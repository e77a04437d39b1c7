"""Native searches as workers run them: in child processes, with clauses from and to other workers."""

from collections.abc import Collection, Iterator

import numpy as np
import pytest
from clause_lists import clauses_of
from fake_context import FakeContext
from native_library import needs_library

from mallob_py.kit import Result, TreeMessage, race
from mallob_sat import generate, native
from mallob_sat.clauses import Clauses, union
from mallob_sat.formula import Formula, formula_from_list
from mallob_sat.native import LEFT_ALONE_S, LEFT_ALONE_SHORT_CLAUSES, NATIVE_SOLVERS, NativeSearch, search_for
from mallob_sat.portfolio import Portfolio, Strategy, Trade
from mallob_sat.search import Search
from mallob_sat.solvers import Solver, Verdict

SHARES = Strategy("cadical195", trade=Trade.BOTH_WAYS)
THREE = Strategy("cadical300", (("stabilizeonly", 1),), trade=Trade.BOTH_WAYS)
RENAMED = Strategy("cadical195", (("seed", 3),), phase_seed=2, renaming_seed=7, trade=Trade.BOTH_WAYS)


def formula_of(generated: generate.Formula) -> Formula:
    return formula_from_list([x for clause in generated.clauses for x in (*clause, 0)])


@pytest.fixture
def context() -> FakeContext:
    found = FakeContext({}, 0, {})
    found.threads = 2
    return found


class Exchange:
    """Gives the clauses of each search to the other searches, and remembers the clauses."""

    def __init__(self) -> None:
        self.all: list[Clauses] = [Clauses.none()]
        self.n_given = 0

    def turn(self, messages: list[TreeMessage], searches: Collection[Search | NativeSearch]) -> None:
        learned = [(search, search.learned()) for search in searches]
        self.all += [clauses for _, clauses in learned]
        for search in searches:
            self.n_given += sum(search.give(clauses) for giver, clauses in learned if giver is not search)


@needs_library
@pytest.mark.parametrize("solver", NATIVE_SOLVERS)
@pytest.mark.parametrize("trade", [Trade.GIVES, Trade.BOTH_WAYS])
def test_cadical_runs_natively_in_a_job_that_shares(solver: str, trade: Trade) -> None:
    formula = formula_of(generate.pigeonhole(3))
    search = search_for(formula, Strategy(solver, trade=trade))
    assert isinstance(search, NativeSearch)
    search.close()


@pytest.mark.parametrize("strategy", [Strategy("cadical195"), Strategy("glucose42", trade=Trade.BOTH_WAYS)])
def test_other_strategies_are_left_to_pysat(strategy: Strategy) -> None:
    search = search_for(formula_of(generate.pigeonhole(3)), strategy)
    assert isinstance(search, Search)
    search.close()


def test_without_the_library_all_strategies_are_left_to_pysat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "natives_are_installed", lambda: False)
    search = search_for(formula_of(generate.pigeonhole(3)), SHARES)
    assert isinstance(search, Search)
    search.close()


@needs_library
@pytest.mark.parametrize("strategies", [(SHARES, RENAMED), (RENAMED, RENAMED), (SHARES, THREE)])
def test_searches_that_exchange_find_the_answer_and_learn_only_what_follows(
    strategies: tuple[Strategy, Strategy], context: FakeContext
) -> None:
    generated = generate.uniform(190, 840, seed=6)
    formula = formula_of(generated)
    judge = Solver("minisat22")
    judge.add_formula(formula)
    exchange = Exchange()
    result = race(context, lambda number: NativeSearch(formula, strategies[number]), exchange.turn)
    assert (result.code == 20) == (judge.solve() is Verdict.UNSATISFIABLE)
    for clause in union(exchange.all).lists():
        assert judge.solve([-literal for literal in clause]) is Verdict.UNSATISFIABLE


@needs_library
def test_clauses_cross_over_between_searches_that_know_other_names(context: FakeContext) -> None:
    formula = formula_of(generate.pigeonhole(10))
    exchange = Exchange()

    def until_given(messages: list[TreeMessage], searches: Collection[NativeSearch]) -> None:
        exchange.turn(messages, searches)
        if exchange.n_given > 100:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        race(context, lambda number: NativeSearch(formula, (SHARES, RENAMED)[number]), until_given)
    variables = np.abs(union(exchange.all).literals)
    assert variables.min() >= 1
    assert variables.max() <= formula.n_vars


@needs_library
def test_a_search_uses_what_it_is_given(context: FakeContext) -> None:
    """The given clauses do not follow from the formula, so the wrong answer shows that they are used."""
    formula = formula_of(generate.pigeonhole(12))
    false = clauses_of([[x] for v in range(1, formula.n_vars + 1) for x in (v, -v)])

    def give(messages: list[TreeMessage], searches: Collection[NativeSearch]) -> None:
        for search in searches:
            search.give(false)

    result: Result = race(context, lambda number: NativeSearch(formula, RENAMED), give)
    assert result.code == 20


@pytest.fixture
def giver() -> Iterator[tuple[NativeSearch, list[float]]]:
    """Yield a search that only gives clauses, and the list that holds its clock's time."""
    now = [0.0]
    strategy = Strategy("cadical195", trade=Trade.GIVES)
    search = NativeSearch(formula_of(generate.pigeonhole(4)), strategy, clock=lambda: now[0])
    yield search, now
    search.close()


@needs_library
def test_a_search_that_is_to_give_only_takes_later_what_it_has_missed(
    giver: tuple[NativeSearch, list[float]],
) -> None:
    search, now = giver
    assert search.give(clauses_of([[1, 2], [3]])) == 0
    assert search.give(clauses_of([[4, 5], [2, 1]])) == 0
    now[0] = LEFT_ALONE_S
    assert search.give(clauses_of([[3], [6]])) == 4
    assert search.give(clauses_of([[6]])) == 0


@needs_library
def test_a_search_that_is_to_give_only_takes_as_soon_as_there_are_short_clauses(
    giver: tuple[NativeSearch, list[float]],
) -> None:
    search, _ = giver
    assert search.give(clauses_of([[1, 2, v] for v in range(3, 30)])) == 0
    short = [[1, v] for v in range(2, LEFT_ALONE_SHORT_CLAUSES + 1)]
    assert search.give(clauses_of(short)) == 0
    assert search.give(clauses_of(short)) == 0  # these clauses are known, and not counted again
    assert search.give(clauses_of([[7]])) == 27 + LEFT_ALONE_SHORT_CLAUSES


@needs_library
def test_a_default_job_of_one_worker_and_two_solvers_answers(context: FakeContext) -> None:
    formula = formula_of(generate.planted(150, 600, seed=1))
    portfolio = Portfolio()
    result = race(context, lambda number: search_for(formula, portfolio.strategy(number)), Exchange().turn)
    assert result.code == 10
    assert formula.first_falsified(np.asarray(result.solution)) is None
