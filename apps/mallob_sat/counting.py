"""Refutations by counting, for formulas that search may never decide.

Two arguments about many clauses at once, for which resolution needs exponentially many steps:

- Parity: clauses that say XORs are equations modulo 2. If a sum of them says 0 = 1, there is no model.
- Pigeons in holes: too few literals can be true at once for each of some clauses to have one (see `pigeons`).

Both hold under any assumptions and further clauses. If the effort exceeds a moment, there is no answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Formula, Literals
from mallob_sat.pigeons import has_too_few_holes

#: most literals of a formula that is examined
_LITERALS_MAX = 200_000
#: sizes of XORs: longer ones are usually cut, since an XOR of n variables takes 2^(n-1) clauses
_XOR_SIZES = range(1, 7)
#: most additions of equations
_STEPS_MAX = 100_000
#: most steps of finding exclusive literals
_LOOKS_MAX = 80_000


def refutation(formula: Formula) -> str | None:
    """Return why there is no model; None: no counting argument shows it."""
    if formula.literals.size > _LITERALS_MAX:
        return None
    ends = np.flatnonzero(formula.literals == 0)
    lengths = np.diff(ends, prepend=-1) - 1
    if _is_odd(formula.literals, ends, lengths):
        return "parity"
    return "pigeons" if has_too_few_holes(formula.literals, _LOOKS_MAX) else None


def rows_of(literals: Literals, ends: NDArray[np.intp], lengths: NDArray[np.intp], size: int) -> Literals:
    """Return the clauses of one length, one per row."""
    starts = ends[lengths == size] - size
    rows: Literals = literals[starts[:, np.newaxis] + np.arange(size)]
    return rows


def xors_of(clauses: Literals) -> tuple[Literals, Literals]:
    """Return the XORs expressed by clauses, one per row: ascending variables of each XOR, and its sum."""
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
    # Each clause excludes one assignment of the wrong parity.
    return said[:, :-1], 1 - said[:, -1]


def _different(rows: Literals, leading: int) -> tuple[Literals, NDArray[np.intp]]:
    """Return the different leading parts of rows, and the number of different rows of each."""
    rows = rows[np.lexsort(rows.T[::-1])]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    rows = rows[is_new]
    begins = np.flatnonzero(np.append(len(rows) > 0, (rows[1:, :leading] != rows[:-1, :leading]).any(axis=1)))
    return rows[begins, :leading], np.diff(begins, append=len(rows))


def _is_odd(literals: Literals, ends: NDArray[np.intp], lengths: NDArray[np.intp]) -> bool:
    #: equations by their highest variable, as bits of variables, with the sum in the lowest bit
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
