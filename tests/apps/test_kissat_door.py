"""Kissat with shared clauses: with any implied clauses from outside, its answers and own clauses are
right.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from clause_lists import clauses_of
from numpy.typing import NDArray

from mallob_sat import generate, kissat_door
from mallob_sat.clauses import ProofStream
from mallob_sat.formula import Formula, formula_from_list
from mallob_sat.kissat_door import DoorIsClosed, KissatDoor, door_is_open
from mallob_sat.portfolio import Portfolio, Strategy, Trade
from mallob_sat.search import UNDISTURBED_S, Search, trade_of
from mallob_sat.solvers import Solver, Verdict

#: number of formulas per test; a long run sets a larger number
FORMULAS = int(os.environ.get("MALLOB_PY_FORMULAS", "60"))
Clause = list[int]
#: options with which all inprocessing begins at once, and a restart follows each conflict
_EAGER = {
    "restartint": 1, "restartmargin": 0, "eliminateint": 10, "eliminateinit": 0, "probeint": 2,
    "probeinit": 0, "rephaseint": 10, "rephaseinit": 10, "modeinit": 10, "reduceint": 5, "chronolevels": 0,
}  # fmt: skip
_SWITCHES = ("preprocess", "fastel", "luckyearly", "luckylate", "walkinitially", "phase", "tumble")


def signed(choose: random.Random, variables: Sequence[int]) -> Clause:
    return [choose.choice((-1, 1)) * variable for variable in variables]


def gates(choose: random.Random, variables: Sequence[int]) -> Iterator[Clause]:
    """Yield clauses of gates: conjunctions, XORs, selections, at-most-ones, products that factoring
    shortens.
    """
    for _ in range(choose.randint(2, len(variables))):
        x, a, b, c = signed(choose, choose.sample(variables, 4))
        yield from choose.choice(
            (
                [[-x, a], [-x, b], [x, -a, -b]],
                [[-x, a, b], [-x, -a, -b], [x, -a, b], [x, a, -b]],
                [[-x, -c, a], [-x, c, b], [x, -c, -a], [x, c, -b]],
                [[-one, -other] for one in (x, a, b, c) for other in (x, a, b, c) if one < other],
            )
        )
    *mixed, last = choose.sample(variables, len(variables))
    left, right = mixed[:3], mixed[3:7]
    yield from ([-one, other] for one in left for other in right if choose.random() < 0.95)
    yield from ([one, other, last] for one in right for other in left)


def clauses_over(choose: random.Random, variables: Sequence[int]) -> list[Clause]:
    found = [] if choose.random() < 0.5 else list(gates(choose, variables))
    ratio = choose.uniform(0, 2.5) if found else choose.uniform(3, 5)
    found += [signed(choose, choose.sample(variables, 3)) for _ in range(int(ratio * len(variables)))]
    if choose.random() < 0.2:
        found.insert(0, [variables[0]])  # then some variables may occur in no clause that kissat keeps
    return found or [[variables[0]]]


def options_of(choose: random.Random) -> dict[str, int]:
    found = {name: value for name, value in _EAGER.items() if choose.random() < 0.85}
    found |= {name: choose.randint(0, 1) for name in _SWITCHES}
    return found | {
        "seed": choose.randint(0, 999),
        "stable": choose.randint(0, 2),
        "target": choose.randint(0, 2),
    }


@dataclass
class Run:
    answer: Verdict
    model: list[int]
    learned: list[Clause]
    used: int


def run(
    formula: Formula,
    options: dict[str, int],
    foreign: Sequence[Clause],
    choose: random.Random,
    variable_max: int | None = None,
) -> Run:
    """Let kissat decide the formula while foreign clauses come in at restarts."""
    stream = ProofStream(60, variable_max or formula.n_vars, Solver.has_binary_proof("kissat404"))
    solver = Solver("kissat404")
    for name, value in options.items():
        solver.set_option(name, value)
    with open(stream.fd, "w+b", buffering=0, closefd=False) as file:
        solver.trace_proof(file)
    solver.add_formula(formula)
    waiting, used = list(foreign), 0

    def trade() -> None:
        nonlocal used
        if choose.random() < 0.2:
            solver.flush_proof()
        if options.get("stable", 1) == 1 and choose.random() < 0.2:
            solver.focus(choose.random() < 0.5)
        now = [waiting.pop() for _ in range(min(choose.randint(0, 6), len(waiting)))]
        used += solver.give(clauses_of(now, [choose.randint(1, 5) for _ in now]))

    solver.at_restarts(trade, 0.0)
    answer = solver.solve()
    model = solver.model().tolist() if answer is Verdict.SATISFIABLE else []
    solver.close()
    learned = stream.take().lists()
    stream.close()
    return Run(answer, model, learned, used)


def assert_model_is_right(found: Run, formula: Formula) -> None:
    if found.answer is Verdict.SATISFIABLE:
        assert formula.first_falsified(np.array(found.model, np.int32)) is None


def columns(n_vars: int) -> list[NDArray[np.bool_]]:
    """Return the values of each variable in all assignments."""
    assignments = np.arange(1 << n_vars)
    return [assignments >= 0] + [(assignments >> bit & 1).astype(bool) for bit in range(n_vars)]


def where(clause: Clause, values: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    found = np.zeros_like(values[0])
    for literal in clause:
        found |= values[literal] if literal > 0 else ~values[-literal]
    return found


def flat(clauses: Sequence[Clause]) -> list[int]:
    return [x for clause in clauses for x in (*clause, 0)]


pytestmark = pytest.mark.skipif(not door_is_open(), reason="PySAT's kissat cannot be reached")


def test_on_small_formulas_all_that_goes_out_holds_in_all_models_and_answers_are_right() -> None:
    used = given = 0
    for seed in range(FORMULAS):
        choose = random.Random(seed)
        n_vars = choose.randint(9, 13)
        # the last variables may occur nowhere: kissat's own variables could be mistaken for them
        clauses = clauses_over(choose, range(1, n_vars + 1 - choose.choice((0, 2))))
        formula = replace(formula_from_list(flat(clauses)), n_vars=n_vars)
        values = columns(n_vars)
        models = np.logical_and.reduce([where(clause, values) for clause in clauses])
        some = [signed(choose, choose.sample(range(1, n_vars - 1), choose.randint(1, 4))) for _ in range(40)]
        foreign = [clause for clause in some if where(clause, values)[models].all()]
        for _ in range(2):
            found = run(formula, options_of(choose), foreign, choose)
            assert found.answer is (Verdict.SATISFIABLE if models.any() else Verdict.UNSATISFIABLE), seed
            assert_model_is_right(found, formula)
            for clause in found.learned:
                assert where(clause, values)[models].all(), f"seed {seed}: {clause} does not follow"
            used, given = used + found.used, given + len(found.learned)
            foreign = [*found.learned, *foreign]
    assert used > FORMULAS // 20
    assert given > 5 * FORMULAS


def test_variables_of_its_own_are_never_taken_for_the_formulas() -> None:
    """Kissat introduces variables for sums; the formula's last variables occur nowhere, so both could be
    mixed up.
    """
    choose = random.Random(5)
    hard = generate.uniform(120, 480, 5).clauses
    products = [[one, -other] for one in range(1, 9) for other in range(60, 80)]
    clauses = [*products, *hard]
    formula = replace(formula_from_list(flat(clauses)), n_vars=140)
    found = run(
        formula, {"preprocess": 0, "fastel": 0, "probeinit": 0, "eliminateinit": 10**6}, [], choose, 1 << 20
    )
    variables = {abs(literal) for clause in found.learned for literal in clause}
    assert max(variables) > formula.n_vars, "no variable was introduced: this test shows nothing"
    assert not variables & set(range(121, 141))


def test_what_one_learns_another_may_take_and_gives_only_what_follows() -> None:
    used = 0
    for seed in range(FORMULAS):
        choose = random.Random(seed)
        clauses = clauses_over(choose, range(1, choose.randint(40, 130)))
        formula = formula_from_list(flat(clauses))
        judge = Solver("minisat22")
        judge.add_formula(formula)
        answer = judge.solve()
        first = run(formula, options_of(choose), [], choose)
        foreign = [clause for clause in first.learned if 1 + choose.randrange(2) <= len(clause) <= 12]
        second = run(formula, options_of(choose), foreign, choose)
        used += second.used
        for found in (first, second):
            assert found.answer is answer, seed
            assert_model_is_right(found, formula)
            for clause in choose.sample(found.learned, min(len(found.learned), 50)):
                follows = judge.solve([-literal for literal in clause]) is Verdict.UNSATISFIABLE
                assert follows, f"seed {seed}: {clause} does not follow"
    assert used > FORMULAS


def test_clauses_that_refute_the_formula_end_the_search() -> None:
    formula = formula_from_list(flat(generate.uniform(200, 860, 3).clauses))
    choose = random.Random(1)
    assert run(formula, {}, [[1], [2], [-2, -1]], choose).answer is Verdict.UNSATISFIABLE


@pytest.mark.parametrize(
    "batches",
    [
        [[[1], [-1]]],
        [[[1, 2], [3]], [[-3, 1, 2], [-3, -1]], [[-2, -3]]],
        [[[1], [2], [3]], [[-1, -2, -3]]],
        [[[-1], [-2]], [[1, 2, 3], [-3, 1], [4, 5, 6]]],
    ],
)
def test_units_and_longer_clauses_that_come_together_refute_the_formula(batches: list[list[Clause]]) -> None:
    solver = Solver("kissat404")
    solver.add_formula(formula_from_list(flat(generate.uniform(200, 860, 3).clauses)))
    waiting = list(batches)
    restarts = 0

    def trade() -> None:
        nonlocal restarts
        restarts += 1
        if waiting:
            solver.give(clauses_of(waiting.pop(0)))

    solver.at_restarts(trade, 0.0)
    assert solver.solve() is Verdict.UNSATISFIABLE
    assert restarts <= len(batches) + 1
    solver.close()


def test_what_goes_wrong_at_a_restart_is_no_answer() -> None:
    solver = Solver("kissat404")
    solver.add_formula(formula_from_list(flat(generate.uniform(200, 860, 3).clauses)))

    def broken() -> None:
        raise OSError("the pipe is gone")

    solver.at_restarts(broken, 0.0)
    with pytest.raises(OSError, match="the pipe is gone"):
        solver.solve()


def test_time_between_restarts_is_that_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kissat_door.time, "process_time", lambda: 0.0)
    solver = Solver("kissat404")
    solver.add_formula(formula_from_list(flat(generate.uniform(200, 880, 3).clauses)))
    seen: list[int] = []
    solver.at_restarts(lambda: seen.append(1), 1e-6)
    assert solver.solve() is Verdict.UNSATISFIABLE
    assert seen == []


def restarts_if(wish: Callable[[int], bool] | None, **options: int) -> int:
    """Return how often kissat restarts if `wish` says at each restart whether stable phases are off."""
    solver = Solver("kissat404")
    for name, value in options.items():
        solver.set_option(name, value)
    solver.add_formula(formula_from_list(flat(generate.uniform(200, 880, 3).clauses)))
    restarts = 0

    def tell() -> None:
        nonlocal restarts
        if wish is not None:
            solver.focus(wish(restarts))
        restarts += 1

    solver.at_restarts(tell, 0.0)
    assert solver.solve() is Verdict.UNSATISFIABLE
    solver.close()
    return restarts


def test_it_has_stable_phases_unless_others_are_wanted() -> None:
    both, focused = restarts_if(None), restarts_if(lambda _: True)
    assert restarts_if(lambda _: False) == both < focused
    assert both < restarts_if(lambda restart: restart < 100) < focused
    for first in (124, 130, 136, 142):  # at 136, a stable phase has begun, which must end
        assert restarts_if(lambda restart, first=first: restart >= first) >= both  # type: ignore[misc]


def test_what_inprocessing_derives_that_every_kissat_repeats_is_not_given_away() -> None:
    """Without the rule (_UNTOLD), kissat would give away 3400 clauses here, mostly resolvents of eliminated
    variables.
    """
    eager = {"eliminateinit": 0, "eliminateint": 10, "probeinit": 0, "preprocess": 0, "fastel": 0}
    strategy = Strategy("kissat404", tuple(eager.items()), trade=Trade.GIVES)
    search = Search(formula_from_list(flat(generate.factoring(1022117).clauses)), strategy)
    assert search.run().code == 10
    assert 100 < len(search.learned()) < 1500
    search.close()


def test_options_are_set_or_refused() -> None:
    solver = Solver("kissat404")
    solver.set_option("seed", 3)
    with pytest.raises(ValueError, match="kissat has no option 'sede'"):
        solver.set_option("sede", 3)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("_NAMES", {**kissat_door._NAMES, "kissat_nowhere": (None, [])}),
        ("_RESTART", "kissat_nowhere"),
        ("_SWITCH", "kissat_nowhere"),
        ("_UNTOLD", ("kissat_nowhere",)),
        ("_PROOF_OF_2", b"a\x06\0"),
    ],
)
def test_another_module_than_the_one_known_leaves_the_door_closed(
    name: str, change: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kissat_door, name, change)
    with pytest.raises(DoorIsClosed):
        kissat_door._module.__wrapped__()


def test_behind_a_closed_door_kissat_searches_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("kissat_door", "solvers", "portfolio"):
        monkeypatch.setattr(f"mallob_sat.{module}.door_is_open", lambda: False)
    portfolio = Portfolio().following("k k-")
    assert [portfolio.strategy(index).trade for index in range(2)] == [Trade.NOTHING] * 2
    assert not portfolio.has_partners(2)
    search = Search(formula_from_list([1, 2, 0, -1, 0]), portfolio.strategy(1))
    assert search.run().code == 10
    search.close()


@pytest.mark.parametrize(("index", "taken"), [(0, 0), (1, 3)])
def test_the_first_takes_nothing_and_the_next_ones_take_all(index: int, taken: int) -> None:
    search = Search(formula_from_list([1, 2, 3, 4, 0]), Portfolio().following("k k0").strategy(index))
    assert search.give(clauses_of([[1], [2, 3], [-1, 2, 4]])) == taken
    search.close()


@pytest.mark.parametrize("index", [0, 1])
def test_in_stable_phases_and_beside_it_kissat_takes_later_what_it_has_missed(
    index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    strategy = Portfolio().following("k k+").strategy(index)
    search = Search(formula_from_list([1, 2, 3, 4, 0]), strategy)
    monkeypatch.setattr(search, "cpu_s", lambda: now[0])
    assert search.give(clauses_of([[1], [2, 3]])) == 0
    now[0] = UNDISTURBED_S - 0.1
    assert search.give(clauses_of([[3, 2], [-1, 2, 4]])) == 0
    now[0] = UNDISTURBED_S
    assert search.give(clauses_of([[1], [4]])) == 4
    assert search.give(clauses_of([[2, 3], [1, 4]])) == 1
    search.close()


def test_its_conflicts_are_counted() -> None:
    solver = Solver("kissat404")
    clauses = generate.uniform(120, 560, 5).clauses
    solver.add_formula(formula_from_list(flat([list(clause) for clause in clauses])))
    seen: list[int] = []
    solver.at_restarts(lambda: seen.append(solver.conflicts), 0.0)
    assert solver.solve() is Verdict.UNSATISFIABLE
    assert seen == sorted(seen)
    assert 0 < len(seen) <= seen[-1] <= solver.conflicts  # at least one conflict precedes each restart


class PhasesWanted:
    """A stand-in for a solver that records what the search orders at restarts."""

    removed = conflicts = 0

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def flush_proof(self) -> None: ...

    def focus(self, is_wanted: bool) -> None:
        self.asked.append(is_wanted)


def test_kissat_takes_clauses_sooner_in_a_larger_job(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = [2]
    strategy = Portfolio().following("k k+").strategy(1)
    search = Search(formula_from_list([1, 2, 3, 4, 0]), strategy, lambda: searches[0])
    monkeypatch.setattr(search, "cpu_s", lambda: UNDISTURBED_S / 4)
    assert search.give(clauses_of([[1]])) == 0
    searches[0] = 8
    assert search.give(clauses_of([[2, 3]])) == 2
    search.close()


def test_the_first_leaves_stable_phases_to_the_second_after_a_while_as_long_as_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, solver = [0.0], PhasesWanted()
    strategy = Portfolio().following("k k+").strategy(0)
    search = Search(formula_from_list([1, 2, 3, 4, 0]), strategy)
    monkeypatch.setattr(search, "cpu_s", lambda: now[0])
    looks = ((0.0, "learned"), (UNDISTURBED_S, ""), (UNDISTURBED_S, "learned"), (9.0, "skip_learned"))
    for now[0], look in looks:
        if look:
            getattr(search, look)()
        search.trade(solver)  # type: ignore[arg-type]
    assert solver.asked == [False, False, True, False]
    search.close()


@pytest.mark.parametrize(("portfolio", "lengths"), [("k c", [2, 12, 13, 30]), ("c k", [2, 12])])
def test_kissats_give_longer_clauses_than_other_solvers(portfolio: str, lengths: list[int]) -> None:
    formula = formula_from_list([*range(1, 32), 0])
    search = Search(formula, Portfolio().following(portfolio).strategy(0))
    for length in (2, 12, 13, 30, 31):
        os.write(search.fds[0], b"a" + bytes(2 * variable for variable in range(1, length + 1)) + b"\0")
    assert search.learned().lengths.tolist() == lengths
    search.close()


def test_under_assumptions_it_gives_nothing_away() -> None:
    strategy = Strategy("kissat404", trade=Trade.BOTH_WAYS)
    formula = formula_from_list([1, 2, 0])
    assert trade_of(formula, strategy) is Trade.BOTH_WAYS
    assert trade_of(formula.assuming([1]), strategy) is Trade.NOTHING


def test_a_door_needs_a_kissat() -> None:
    with pytest.raises(ValueError, match="PyCapsule"):
        KissatDoor(object())
