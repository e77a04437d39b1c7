"""The structure of a formula that decides which solvers come first: XORs, or random clauses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Formula, Literals

#: numbers of variables of counted XORs; longer XORs are usually split, because an XOR of n variables takes
#: 2^(n-1) clauses
_XOR_SIZES = range(3, 7)
#: smallest and largest share of positive literals in random formulas
_POSITIVE_SHARES = (0.45, 0.55)
_DISPERSIONS = (0.5, 1.6)


def xor_share(formula: Formula) -> float:
    """Return the share, from 0 to 1, of clauses that belong to XORs of 3 to 6 variables.

    Only the first half million literals are examined. In a full adder 8 of 14 clauses belong to XORs, in
    multipliers less than half, in parity problems two thirds and more.
    """
    block = _first_clauses(formula)
    ends, lengths = _bounds(block)
    if not ends.size:
        return 0.0
    in_xors = 0
    for size in _XOR_SIZES:
        in_xors += _count_xors(_rows_of(block, ends, lengths, size)) * 2 ** (size - 1)
    return in_xors / ends.size


def is_random(formula: Formula) -> bool:
    """Tell whether a formula looks like uniform random k-SAT, k > 2.

    That means: all clauses have the same length, half of the literals are positive, and the numbers of
    occurrences vary as by chance (dispersion: variance over mean). Encodings have clauses of several lengths,
    or variables that occur equally often, or a few variables that occur in very many clauses. Only the first
    half million literals are examined; beyond about 300,000 variables these are too few, and the answer is
    no.
    """
    block = _first_clauses(formula)
    _, lengths = _bounds(block)
    if not lengths.size or lengths[0] < 3 or (lengths != lengths[0]).any():
        return False
    literals = block[block != 0]
    # By `unique`, not `bincount`: a table of all variables up to the largest one could take gigabytes.
    occurrences = np.unique(np.abs(literals), return_counts=True)[1]
    return bool(
        _POSITIVE_SHARES[0] <= np.mean(literals > 0) <= _POSITIVE_SHARES[1]
        and _DISPERSIONS[0] <= occurrences.var() / occurrences.mean() <= _DISPERSIONS[1]
    )


def _first_clauses(formula: Formula) -> Literals:
    return next(formula.blocks(), formula.literals)


def _bounds(clauses: Literals) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the position of each clause's 0, and its length."""
    ends = np.flatnonzero(clauses == 0)
    return ends, np.diff(ends, prepend=-1) - 1


def _rows_of(literals: Literals, ends: NDArray[np.intp], lengths: NDArray[np.intp], size: int) -> Literals:
    """Return the clauses of one length, one per row."""
    starts = ends[lengths == size] - size
    rows: Literals = literals[starts[:, np.newaxis] + np.arange(size)]
    return rows


def _count_xors(clauses: Literals) -> int:
    """Count the XORs that are expressed by clauses of one length, given as rows."""
    size = clauses.shape[1]
    needed: int = 2 ** (size - 1)
    if len(clauses) < needed:
        return 0
    by_variable = np.take_along_axis(clauses, np.argsort(np.abs(clauses), axis=1), axis=1)
    variables = np.abs(by_variable)
    plain = (np.diff(variables, axis=1) > 0).all(axis=1)
    parities = (by_variable < 0).sum(axis=1, dtype=np.int32) % 2
    signs = (by_variable < 0) @ (1 << np.arange(size, dtype=np.int32))
    rows = np.column_stack((variables, parities, signs))[plain]
    rows = rows[np.lexsort(rows.T[::-1])]
    is_new = (np.diff(rows, axis=0, prepend=0) != 0).any(axis=1)  # a variable is never 0
    rows = rows[is_new]
    begins = np.flatnonzero((np.diff(rows[:, :-1], axis=0, prepend=0) != 0).any(axis=1))
    # Each clause excludes one assignment of the wrong parity.
    return int(np.count_nonzero(np.diff(begins, append=len(rows)) == needed))
