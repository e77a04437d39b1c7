"""Refutations by counting, of formulas for which search may take for ever.

Two arguments, on what the clauses say together (resolution needs exponentially many steps for either):

- Parity: clauses that say XORs are equations modulo 2. If a sum of them says 0 = 1, there is no model.
- Pigeons in holes: too few literals can be true at once for each of some clauses to have one (see `pigeons`).

Both hold whatever is assumed, and whatever else the formula says. Where the effort would be more than a
moment, nothing is said.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Formula, Literals
from mallob_sat.pigeons import has_too_few_holes

#: larger formulas are left alone
_LITERALS_MAX = 200_000
#: longer XORs are usually cut, since one of n variables takes 2^(n-1) clauses
_XOR_SIZES = range(1, 7)
#: additions of equations
_STEPS_MAX = 100_000
#: looks at what excludes what
_LOOKS_MAX = 80_000


def refutation(formula: Formula) -> str | None:
    """Return why there is no model; None if no argument of this kind shows it."""
    if formula.literals.size > _LITERALS_MAX:
        return None
    ends = np.flatnonzero(formula.literals == 0)
    lengths = np.diff(ends, prepend=-1) - 1
    if _is_odd(formula.literals, ends, lengths):
        return "parity"
    return "pigeons" if has_too_few_holes(formula.literals, _LOOKS_MAX) else None


def rows_of(literals: Literals, ends: NDArray[np.intp], lengths: NDArray[np.intp], size: int) -> Literals:
    """The clauses of one length, one per row."""
    starts = ends[lengths == size] - size
    rows: Literals = literals[starts[:, np.newaxis] + np.arange(size)]
    return rows


def xors_of(clauses: Literals) -> tuple[Literals, Literals]:
    """The XORs that these clauses, one per row, say: the variables of each, ascending, and their sum."""
    size = clauses.shape[1]
    needed: int = 2 ** (size - 1)
    if len(clauses) < needed:
        return clauses[:0], clauses[:0, 0]
    by_variable = np.take_along_axis(clauses, np.argsort(np.abs(clauses), axis=1), axis=1)
    variables = np.abs(by_variable)
    plain = (np.diff(variables, axis=1) > 0).all(axis=1)
    parities = (by_variable < 0).sum(axis=1, dtype=np.int32) % 2
    signs = (by_variable < 0) @ (1 << np.arange(size, dtype=np.int32))
    rows, counts = _different(np.column_stack((variables, parities, signs))[plain], size + 1)
    said = rows[counts == needed]
    # Each clause excludes one assignment of the parity that the sum does not have.
    return said[:, :-1], 1 - said[:, -1]


def _different(rows: Literals, leading: int) -> tuple[Literals, NDArray[np.intp]]:
    """The leading parts of rows, each once, and how many different rows have it."""
    rows = rows[np.lexsort(rows.T[::-1])]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    rows = rows[is_new]
    begins = np.flatnonzero(np.append(len(rows) > 0, (rows[1:, :leading] != rows[:-1, :leading]).any(axis=1)))
    return rows[begins, :leading], np.diff(begins, append=len(rows))


def _is_odd(literals: Literals, ends: NDArray[np.intp], lengths: NDArray[np.intp]) -> bool:
    #: by its highest variable: an equation as the set of its variables in bits, and its sum in the lowest one
    pivots: dict[int, int] = {}
    steps = 0
    for size in _XOR_SIZES:
        variables, sums = xors_of(rows_of(literals, ends, lengths, size))
        for row, value in zip(variables.tolist(), sums.tolist(), strict=True):
            equation = value
            for variable in row:
                equation ^= 1 << variable
            while equation > 1 and (other := pivots.get(equation.bit_length())) is not None:
                equation ^= other
                steps += 1
                if steps > _STEPS_MAX:
                    return False
            if equation == 1:
                return True
            if equation:
                pivots[equation.bit_length()] = equation
    return False
