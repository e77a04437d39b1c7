"""One model after the other from a solver that stays alive, distinct over some variables.

What distinguishes a model are its values of the projection: the variables that matter. They are one
*row* of bits (variable i of the projection is bit i, counted from the lowest of each byte on), and the
next model is found after a clause has forbidden them. That clause is the shortest there is: a solver's
decisions are not visible through PySAT, and other variables need not be forbidden.

CaDiCaL 1.9.5 was the fastest and is as strong as any (see docs/sat-jobs.md). It must not be CaDiCaL
3.0, which takes new variables in clauses for its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Formula, Literals
from mallob_sat.portfolio import Strategy
from mallob_sat.search import check_model, set_up
from mallob_sat.solvers import Answer

STRATEGY = Strategy("cadical195")
#: a search for one model, before the caller gets a word in
_CONFLICTS = 500
#: the first this many variables of a projection make the cubes
_CUBE_VARIABLES_MAX = 8


class Models:
    """The models of a formula and its assumptions."""

    def __init__(self, formula: Formula, projection: Literals) -> None:
        self._formula = formula
        self._projection = projection
        self._solver = set_up(STRATEGY)
        self._solver.add_formula(formula)
        for literal in formula.assumptions.tolist():
            self._solver.add_clause([literal])
        #: the solution found last
        self.row = b""

    def search(self, cube: Sequence[int] = ()) -> Answer:
        """Look a while for one more within a cube; UNSATISFIABLE: there is none left."""
        answer = self._solver.solve_for(_CONFLICTS, cube)
        if answer is Answer.SATISFIABLE:
            model = self._solver.model()
            check_model(self._formula, model, STRATEGY)
            literals = model[self._projection - 1]
            self._solver.add_clause((-literals).tolist())
            self.row = np.packbits(literals > 0, bitorder="little").tobytes()
        return answer

    def leave_out(self, cube: Sequence[int]) -> None:
        """Look nowhere in this cube any more."""
        self._solver.add_clause([-literal for literal in cube])


def cubes_of(projection: Literals) -> list[list[int]]:
    """All values of the first few variables: cube q's variable i is true if bit i of q is set."""
    variables = projection[:_CUBE_VARIABLES_MAX].tolist()
    return [
        [variable if number >> place & 1 else -variable for place, variable in enumerate(variables)]
        for number in range(1 << len(variables))
    ]


def cube_of(row: bytes) -> int:
    """The number of the cube that a solution lies in."""
    return row[0]


def bits_of(rows: bytes, n_variables: int) -> NDArray[np.uint8]:
    """Rows on end as a matrix: a line per solution, a column per variable."""
    lines = np.frombuffer(rows, dtype=np.uint8).reshape(-1, row_bytes(n_variables))
    return np.unpackbits(lines, axis=1, count=n_variables, bitorder="little")


def row_bytes(n_variables: int) -> int:
    return -(-n_variables // 8)
