"""PySAT's algorithms give the same results with a solver in the service."""

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pysat.examples.fm import FM
from pysat.examples.hitman import Hitman
from pysat.examples.lbx import LBX
from pysat.examples.lsu import LSU
from pysat.examples.mcsls import MCSls
from pysat.examples.musx import MUSX
from pysat.examples.optux import OptUx
from pysat.examples.rc2 import RC2, RC2Stratified
from pysat.formula import WCNF, CNFPlus
from running import Running, needs_mpiexec, serving

from mallob_py import Client, IncrementalSolver

pytestmark = needs_mpiexec


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("examples")) as running:
        yield running


def weighted() -> WCNF:
    """Return a formula: at least two of 1, 2, 3 and one of 4, 5 are true; each true variable has a cost."""
    formula = WCNF()
    for clause in ([1, 2], [1, 3], [2, 3], [4, 5], [-1, -4]):
        formula.append(clause)
    for variable, weight in ((1, 5), (2, 3), (3, 4), (4, 1), (5, 2)):
        formula.append([-variable], weight=weight)
    return formula


def unweighted() -> WCNF:
    """Return an unsatisfiable formula with one hard clause and soft clauses of weight 1."""
    formula = WCNF()
    formula.append([1, 2])
    for clause in ([-1], [-2], [1], [3], [-3, 2]):
        formula.append(clause, weight=1)
    return formula


def optimum(algorithm: Callable[[WCNF], Any]) -> int:
    with algorithm(weighted()) as solver:
        assert solver.compute() is not None
        return int(solver.cost)


def optimum_step_by_step(algorithm: Callable[[WCNF], Any]) -> int:
    solver = algorithm(unweighted() if algorithm is LSU else weighted())
    assert solver.compute() if algorithm is FM else solver.solve()
    return int(solver.cost)


def hitting_set(htype: str) -> int:
    with Hitman(bootstrap_with=[[1, 2], [2, 3], [4, 1]], htype=htype) as hitman:
        return len(hitman.get())


def correction_sets(algorithm: Callable[..., Any]) -> set[frozenset[int]]:
    found = set()
    with algorithm(unweighted(), use_cld=True) as solver:
        for correction in itertools.islice(solver.enumerate(), 20):
            found.add(frozenset(correction))
            solver.block(correction)
    return found


def smallest_core() -> int:
    with OptUx(unweighted()) as solver:
        solver.compute()
        return int(solver.cost)


def minimal_core() -> bool:
    """Tell whether the found core is unsatisfiable, and satisfiable without any one of its clauses."""
    core = MUSX(unweighted(), verbosity=0).compute()
    softs = unweighted().soft

    def holds(kept: list[int]) -> bool:
        clauses = [[1, 2], *(softs[number - 1] for number in kept)]
        return any(
            all(any(literal in model for literal in clause) for clause in clauses)
            for model in itertools.product((1, -1), (2, -2), (3, -3))
        )

    return not holds(core) and all(holds([one for one in core if one != left]) for left in core)


EXAMPLES: dict[str, Callable[[], object]] = {
    "RC2": lambda: optimum(RC2),
    "RC2Stratified": lambda: optimum(RC2Stratified),
    "FM": lambda: optimum_step_by_step(FM),
    "LSU": lambda: optimum_step_by_step(LSU),
    "Hitman, RC2": lambda: hitting_set("maxsat"),
    "Hitman, LBX": lambda: hitting_set("lbx"),
    "Hitman, MCSls": lambda: hitting_set("mcsls"),
    "MUSX": minimal_core,
    "OptUx": smallest_core,
    "LBX": lambda: correction_sets(LBX),
    "MCSls": lambda: correction_sets(MCSls),
}


@pytest.mark.filterwarnings("ignore:phases are ignored")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_algorithm_of_pysats_finds_the_same_with_our_solver(
    service: Running, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = EXAMPLES[name]()
    made: list[IncrementalSolver] = []
    with Client(service.api_dir) as client:

        def ours(name: str = "", bootstrap_with: Any = None, **_: Any) -> IncrementalSolver:
            made.append(IncrementalSolver(client, bootstrap_with))
            return made[-1]

        for module in ("rc2", "fm", "lsu", "hitman", "musx", "optux", "lbx", "mcsls"):
            monkeypatch.setattr(importlib.import_module(f"pysat.examples.{module}"), "Solver", ours)
        assert EXAMPLES[name]() == expected
    assert made
    assert sum(solver.time_accum() for solver in made) > 0


def test_what_cannot_be_had_is_told_as_pysats_solvers_tell_it(service: Running) -> None:
    plus = CNFPlus()
    plus.append([[1, 2], 1], is_atmost=True)
    with Client(service.api_dir) as client, IncrementalSolver(client) as solver:
        assert not solver.supports_atmost()
        solver.start_mode(warm=False)
        assert solver.add_clause([1], no_return=False) is True
        refused: list[Callable[[], object]] = [
            solver.activate_atmost,
            lambda: solver.add_atmost([1, 2], 1),
            lambda: solver.append_formula(plus),
            lambda: IncrementalSolver(client, plus),
            lambda: solver.add_xor_clause([1, 2]),
            lambda: solver.start_mode(warm=True),
            lambda: solver.configure({"phase": 0}),
            solver.get_proof,
        ]
        with pytest.warns(UserWarning, match="take no phases"):
            solver.set_phases([1])
        for call in refused:
            with pytest.raises(NotImplementedError):
                call()
        with pytest.raises(ValueError, match="numbers of literals"):
            client.solve(plus)
