"""The native solver: right answers, clauses that follow from the formula, and a search that takes in foreign
clauses.
"""

import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from clause_lists import clauses_of, formula_of
from native_library import needs_library
from seeds import seeds
from waiting import DEADLINE_S

from mallob_sat import generate
from mallob_sat import native as native_module
from mallob_sat.formula import Formula
from mallob_sat.native import NATIVE_SOLVERS, NativeSolver, NativeSolverMissing, load_library
from mallob_sat.solvers import Solver, Verdict

#: options with which all inprocessing runs as early and as often as possible
_EAGER = {
    "elimint": 1,
    "conditionint": 1,
    "compactint": 1,
    "reduceint": 10,
    "block": 1,
    "cover": 1,
    "condition": 1,
    "instantiate": 1,
    "compactmin": 1,
    "compactlim": 0,
    "rephaseint": 5,
}
EAGER = {
    "cadical195": {**_EAGER, "probeint": 1, "subsumeint": 1, "stabilizeint": 20},
    "cadical300": {
        **_EAGER,
        "inprobeint": 1,
        "reduceinit": 10,
        "stabilizeinit": 20,
        "elimdef": 1,
        "deduplicateallinit": 1,
        "randec": 1,
        "backbonethresh": 0,
        "sweepthresh": 0,
        "ternarythresh": 0,
        "vivifythresh": 0,
    },
}
#: options that keep all variables, so that foreign clauses can be used at any time
KEEPS_VARIABLES = {"elim": 0, "decompose": 0}

Clause = Sequence[int]


def random_clauses(rng: random.Random, n_vars: int) -> list[list[int]]:
    """Return clauses of 2 or 3 literals; by their number, about half of the formulas are satisfiable."""
    clauses = []
    for _ in range(int(n_vars * rng.uniform(3.8, 4.5))):
        length = 2 if rng.random() < 0.04 else 3
        variables = rng.sample(range(1, n_vars + 1), length)
        clauses.append([rng.choice((1, -1)) * variable for variable in variables])
    return clauses


def choices(solver: str) -> list[dict[str, int]]:
    """Return the combinations of options to try."""
    eager = EAGER[solver]
    return [{}, eager, {"chronoalways": 1, **eager}, {"elim": 0}, {"stabilizeonly": 1}, {"phase": 0, **eager}]


def native(name: str, options: dict[str, int], **buffers: int) -> NativeSolver:
    solver = NativeSolver(name, **buffers)
    for name, value in options.items():
        solver.set_option(name, value)
    return solver


def reference(formula: Formula) -> Solver:
    solver = Solver("minisat22")
    solver.add_formula(formula)
    return solver


def follows(clause: Clause, formula_solver: Solver) -> bool:
    return formula_solver.solve([-literal for literal in clause]) is Verdict.UNSATISFIABLE


@pytest.fixture(params=NATIVE_SOLVERS)
def hard(request: pytest.FixtureRequest) -> Iterator[NativeSolver]:
    """Yield a solver whose search takes minutes."""
    solver = native(request.param, KEEPS_VARIABLES, max_length=30)
    solver.add_formula(formula_of(generate.pigeonhole(12).clauses))
    solver.start()
    yield solver
    solver.close()


def test_a_missing_library_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mallob_native", None)
    with pytest.raises(NativeSolverMissing, match=r"pip install \./native"):
        load_library.__wrapped__("cadical195")


@needs_library
def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_module, "_INTERFACE", 999)
    with pytest.raises(NativeSolverMissing, match="needed is 999"):
        load_library.__wrapped__("cadical195")


@needs_library
@pytest.mark.parametrize("name", NATIVE_SOLVERS)
@pytest.mark.parametrize("seed", seeds(12))
def test_answers_and_learned_clauses_hold_with_and_without_foreign_clauses(seed: int, name: str) -> None:
    """Each search gets the clauses that earlier searches have learned under other assumptions.

    Each learned clause must follow from the formula alone, by another solver's judgement.
    """
    rng = random.Random(seed)
    n_checked = n_taken = 0
    for _ in range(25):
        n_vars = rng.randint(30, 120)
        clauses = random_clauses(rng, n_vars)
        formula = formula_of(clauses)
        judge = reference(formula)
        known: list[list[int]] = []
        for options in rng.sample(choices(name), 3):
            solver = native(name, options, max_length=40)
            solver.add_formula(formula)
            solver.give(clauses_of(known))
            for _ in range(2):
                variables = rng.sample(range(1, n_vars), rng.randint(0, 4))
                assumptions = [rng.choice((1, -1)) * variable for variable in variables]
                solver.start(assumptions)
                answer = solver.wait()
                assert answer is judge.solve(assumptions)
                if answer is Verdict.SATISFIABLE:
                    model = solver.model()
                    assert formula.first_falsified(model) is None
                    assert set(assumptions) <= set(model.tolist())
                else:
                    core = solver.core()
                    assert set(core) <= set(assumptions)
                    assert judge.solve(core) is Verdict.UNSATISFIABLE
                learned = solver.learned().lists()
                for clause in learned:
                    assert follows(clause, judge), (options, assumptions, clause, clauses)
                n_checked += len(learned)
                known += learned
                solver.give(clauses_of(learned[::2]))  # the solver's own clauses again, for the next round
            n_taken += solver.counts().taken
            solver.close()
    assert n_checked > 1000
    assert n_taken > 300


@needs_library
@pytest.mark.parametrize(
    "names", [("cadical195", "cadical195"), ("cadical300", "cadical195"), ("cadical300", "cadical300")]
)
def test_two_searches_that_exchange_while_they_run_learn_only_what_follows(names: tuple[str, str]) -> None:
    formula = formula_of(generate.uniform(190, 840, seed=6).clauses)
    judge = reference(formula)
    expected = judge.solve()
    n_taken = 0
    for seed in seeds(500):
        if seed >= 8 and n_taken:  # how many clauses are taken depends on timing
            break
        first, second = names
        pair = [
            native(first, {**EAGER[first], "seed": seed}, max_length=20),
            native(second, {"phase": 0}, max_length=20),
        ]
        exported: list[list[int]] = []
        for solver in pair:
            solver.add_formula(formula)
            solver.start()
        while any(solver.is_running for solver in pair):
            for giver, taker in (pair, pair[::-1]):
                learned = giver.learned()
                exported += learned.lists()
                taker.give(learned)
        for solver in pair:
            assert solver.wait() is expected
            n_taken += solver.counts().taken
            solver.close()
        for clause in exported:
            assert follows(clause, judge)
    assert n_taken > 0


@needs_library
def test_a_running_search_uses_what_it_is_given(hard: NativeSolver) -> None:
    assert hard.wait(0.05) is Verdict.UNDECIDED
    assert hard.give(clauses_of([[1], [-1]])) == 2  # they do not follow, so the answer shows their use
    assert hard.wait(DEADLINE_S) is Verdict.UNSATISFIABLE
    assert hard.counts().taken == 2


@needs_library
@pytest.mark.parametrize("name", NATIVE_SOLVERS)
def test_foreign_clauses_come_in_under_assumptions(name: str) -> None:
    solver = native(name, KEEPS_VARIABLES)
    solver.add_formula(formula_of(generate.pigeonhole(12).clauses))
    solver.start([1, -2])
    assert solver.wait(0.05) is Verdict.UNDECIDED
    solver.give(clauses_of([[5, 6], [5, -6], [-5]]))
    assert solver.wait(DEADLINE_S) is Verdict.UNSATISFIABLE
    assert solver.core() == []


@needs_library
def test_a_search_learns_while_others_run_python(hard: NativeSolver) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not len(clauses := hard.learned()):
        assert time.monotonic() < deadline_s
    assert (clauses.glues >= 1).all()
    assert (clauses.glues <= clauses.lengths).all()


@needs_library
def test_an_interrupted_search_can_be_started_again(hard: NativeSolver) -> None:
    hard.interrupt()
    assert hard.wait() is Verdict.UNDECIDED
    assert not hard.is_running
    hard.start([3])
    assert hard.wait(0.05) is Verdict.UNDECIDED
    assert hard.is_running


@needs_library
def test_an_interruption_before_the_search_has_begun_is_not_lost() -> None:
    for _ in range(20):
        solver = NativeSolver("cadical195")
        solver.add_formula(formula_of(generate.pigeonhole(11).clauses))
        solver.start()
        solver.interrupt()
        assert solver.wait() is Verdict.UNDECIDED
        solver.close()


@needs_library
def test_closing_ends_the_search(hard: NativeSolver) -> None:
    hard.close()
    assert "native-search" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ValueError, match="closed"):
        hard.learned()


@needs_library
def test_the_shortest_clauses_are_kept_when_nobody_fetches_them() -> None:
    solver = NativeSolver("cadical195", max_length=30, capacity=200)
    solver.add_formula(formula_of(generate.pigeonhole(12).clauses))
    solver.start()
    while not solver.counts().displaced:
        assert solver.wait(0.01) is Verdict.UNDECIDED
    solver.interrupt()
    solver.wait()
    kept, counts = solver.learned(), solver.counts()
    assert kept.literals.size + len(kept) <= 200
    assert len(kept) == counts.offered - counts.displaced
    assert counts.displaced > 0


@needs_library
def test_foreign_clauses_without_room_are_refused_and_counted() -> None:
    solver = NativeSolver("cadical195", max_length=8, capacity=10)
    # a clause takes room for its literals, an LBD and a 0
    assert solver.give(clauses_of([[6], [7], [1, 2], [3, 4, 5]])) == 3
    assert solver.counts().refused == 1


@needs_library
def test_clauses_over_unknown_variables_and_tautologies_are_left_out() -> None:
    solver = NativeSolver("cadical195")
    solver.add_formula(formula_of(generate.uniform(120, 500, 3).clauses))
    solver.give(clauses_of([[1000], [2, -2], [-(2**31), 3], [7, 7, 8]]))
    solver.start()
    assert solver.wait() is not Verdict.UNDECIDED
    counts = solver.counts()
    assert counts.removed >= 2
    assert counts.removed + counts.satisfied + counts.taken == 4


@needs_library
def test_wrong_use_is_an_error_before_it_reaches_the_library(hard: NativeSolver) -> None:
    with pytest.raises(ValueError, match="running"):
        hard.start()
    with pytest.raises(ValueError, match="running"):
        hard.add_formula(formula_of([[1]]))
    with pytest.raises(ValueError, match="running"):
        hard.set_phases([1])
    with pytest.raises(ValueError, match="after the formula"):
        hard.set_option("phase", 0)
    with pytest.raises(ValueError, match="SATISFIABLE"):
        hard.model()
    with pytest.raises(ValueError, match="UNSATISFIABLE"):
        hard.core()
    fresh = NativeSolver("cadical195")
    with pytest.raises(ValueError, match="no option"):
        fresh.set_option("no-such-option", 1)
    with pytest.raises(ValueError, match="no option"):
        NativeSolver("cadical300").set_option("factor", 1)  # would add variables to learned clauses
    with pytest.raises(ValueError, match="no search"):
        fresh.wait()


@needs_library
def test_phases_steer_the_model() -> None:
    free = formula_of([[variable, variable + 1] for variable in range(1, 40)])
    for name, sign in product(NATIVE_SOLVERS, (1, -1)):
        solver = native(name, {"lucky": 0})
        solver.add_formula(free)
        wanted = [sign * (v if v % 2 else -v) for v in range(1, 41)]
        solver.set_phases(wanted)
        solver.start()
        assert solver.wait() is Verdict.SATISFIABLE
        assert solver.model().tolist() == wanted
