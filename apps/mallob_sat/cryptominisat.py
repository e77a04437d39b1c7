"""CryptoMiniSat, for formulas full of XORs, which it solves by Gaussian elimination.

PySAT's solvers lack this method, and may never decide parity problems of some dozens of XORs. CryptoMiniSat
needs the optional package `pycryptosat`. It takes no foreign clauses and writes no proofs, so it searches on
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from mallob_py.kit import Result
from mallob_sat.formula import Formula, Literals
from mallob_sat.search import Search, Task
from mallob_sat.solvers import Verdict


@cache
def cryptominisat_is_installed() -> bool:
    """Tell whether CryptoMiniSat's package can be imported."""
    try:
        import pycryptosat  # noqa: F401
    except ImportError:
        return False
    return True


class CryptoMiniSat:
    """One search. Call `add_formula`, then `solve`, once each."""

    def __init__(self) -> None:
        from pycryptosat import Solver

        self._solver = Solver()
        self._n_vars = 0
        self._values: Sequence[bool | None] = ()

    def add_formula(self, formula: Formula) -> None:
        """Add all clauses, none of which may be empty. Pass the formula's assumptions to `solve`."""
        self._n_vars = formula.n_vars
        self._solver.add_clauses(np.ascontiguousarray(formula.literals))
        self._solver.add_clause([formula.n_vars, -formula.n_vars])  # makes all variables known

    def set_phases(self, literals: Sequence[int]) -> None:
        """Do nothing, because CryptoMiniSat chooses phases itself."""

    def solve(self, assumptions: Sequence[int] = ()) -> Verdict:
        """Search until there is an answer."""
        satisfiable, values = self._solver.solve(assumptions)
        self._values = values or ()
        return Verdict.SATISFIABLE if satisfiable else Verdict.UNSATISFIABLE

    def model(self) -> Literals:
        """Return the model after SATISFIABLE: variable v's literal at position v - 1."""
        variables = np.arange(1, self._n_vars + 1, dtype=np.int32)
        return np.where(np.array(self._values[1:], dtype=np.bool_), variables, -variables)

    def core(self) -> list[int]:
        """Return assumptions that cannot hold together, after UNSATISFIABLE; smallest variable first."""
        return sorted((-literal for literal in self._solver.get_conflict()), key=abs)


class CryptoMiniSatSearch(Search):
    """An attempt with CryptoMiniSat, for `race`."""

    def run(self) -> Result:
        self._figures = self._board.begin()
        solver = CryptoMiniSat()
        task = Task(self._formula, self._strategy, self._renaming, solver)
        return task.result(solver.solve(task.assumptions))
