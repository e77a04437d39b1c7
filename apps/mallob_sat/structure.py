"""What a formula looks like, as far as the portfolio depends on it: full of XORs, or drawn by lot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Formula, Literals

#: longer XORs are usually cut, since one of n variables takes 2^(n-1) clauses
_XOR_SIZES = range(3, 7)
#: formulas that were drawn by lot have 0.5 and 1 here, up to chance
_POSITIVE_SHARES = (0.45, 0.55)
_DISPERSIONS = (0.5, 1.6)


def xor_share(formula: Formula) -> float:
    """The share of clauses that together say an XOR (of 3 to 6 variables), from 0 to 1.

    Of a large formula, only the first clauses are looked at (half a million literals). A full adder has
    8 such clauses of 14 and multipliers less than half; parity problems have two thirds and more.
    """
    block = _first_clauses(formula)
    ends, lengths = _bounds(block)
    if not ends.size:
        return 0.0
    in_xors = 0
    for size in _XOR_SIZES:
        starts = ends[lengths == size] - size
        in_xors += _count_in_xors(block[starts[:, np.newaxis] + np.arange(size)])
    return in_xors / ends.size


def is_random(formula: Formula) -> bool:
    """Whether it looks like uniform random k-SAT, k > 2.

    Of a large formula, only the first clauses are looked at (half a million literals); of more than some
    300,000 variables, these are too few to tell, and the answer is no. Looks like that means: all clauses are
    of one length, half of the literals are positive, and variables occur as often as chance has it
    (dispersion: variance over mean). What encodes something has clauses of several lengths, and if not,
    variables that occur equally often, or a few that occur in very many clauses.
    """
    block = _first_clauses(formula)
    _, lengths = _bounds(block)
    if not lengths.size or lengths[0] < 3 or (lengths != lengths[0]).any():
        return False
    literals = block[block != 0]
    _, occurrences = np.unique(np.abs(literals), return_counts=True)
    return bool(
        _POSITIVE_SHARES[0] <= np.mean(literals > 0) <= _POSITIVE_SHARES[1]
        and _DISPERSIONS[0] <= occurrences.var() / occurrences.mean() <= _DISPERSIONS[1]
    )


def _first_clauses(formula: Formula) -> Literals:
    return next(formula.blocks(), formula.literals)


def _bounds(clauses: Literals) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where each clause is closed, and its length."""
    ends = np.flatnonzero(clauses == 0)
    return ends, np.diff(ends, prepend=-1) - 1


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
