"""How much of a formula says nothing but XORs: for such formulas, the portfolio changes."""

from __future__ import annotations

import numpy as np

from mallob_sat.formula import Formula, Literals

#: longer XORs are usually cut, since one of n variables takes 2^(n-1) clauses
_SIZES = range(3, 7)


def xor_share(formula: Formula) -> float:
    """The share of clauses that together say an XOR (of 3 to 6 variables), from 0 to 1.

    Of a large formula, only the first clauses are looked at (half a million literals). A full adder has
    8 such clauses of 14 and multipliers less than half; parity problems have two thirds and more.
    """
    block = next(formula.blocks(), None)
    if block is None:
        return 0.0
    ends = np.flatnonzero(block == 0)
    lengths = np.diff(ends, prepend=-1) - 1
    in_xors = 0
    for size in _SIZES:
        starts = ends[lengths == size] - size
        in_xors += _count_in_xors(block[starts[:, np.newaxis] + np.arange(size)])
    return in_xors / ends.size


def _count_in_xors(clauses: Literals) -> int:
    """How many of these different clauses, one per row, are needed for the XORs that they say."""
    size = clauses.shape[1]
    needed: int = 2 ** (size - 1)
    if len(clauses) < needed:
        return 0
    by_variable = np.take_along_axis(clauses, np.argsort(np.abs(clauses), axis=1), axis=1)
    different = np.unique(by_variable, axis=0)
    variables = np.abs(different)
    plain = (np.diff(variables, axis=1) > 0).all(axis=1)
    parities = (different < 0).sum(axis=1) % 2
    _, counts = np.unique(np.column_stack((variables, parities))[plain], axis=0, return_counts=True)
    return needed * int(np.count_nonzero(counts == needed))
