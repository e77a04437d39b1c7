"""Refutations by counting, of formulas for which search may take for ever.

Two arguments, on what the clauses say together (resolution needs exponentially many steps for either):

- Parity: clauses that say XORs are equations modulo 2. If a sum of them says 0 = 1, there is no model.
- Pigeons in holes: of p clauses of positive literals, no two with a common variable, at least p variables
  have to be true. If their variables fall into fewer than p groups, of each of which all pairs exclude each
  other by binary clauses, at most that many can be true.

Both hold whatever is assumed, and whatever else the formula says. Where the effort would be more than a
moment, nothing is said.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Formula, Literals

#: larger formulas are left alone
_LITERALS_MAX = 200_000
#: longer XORs are usually cut, since one of n variables takes 2^(n-1) clauses
_XOR_SIZES = range(1, 7)
#: additions of equations, and looks whether two variables exclude each other
_STEPS_MAX = 100_000


def refutation(formula: Formula) -> str | None:
    """Return why there is no model; None if no argument of this kind shows it."""
    if formula.literals.size > _LITERALS_MAX:
        return None
    ends = np.flatnonzero(formula.literals == 0)
    lengths = np.diff(ends, prepend=-1) - 1
    if _is_odd(formula.literals, ends, lengths):
        return "parity"
    return "pigeons" if _has_too_few_holes(formula.literals, ends, lengths) else None


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
    different = np.unique(by_variable, axis=0)
    variables = np.abs(different)
    plain = (np.diff(variables, axis=1) > 0).all(axis=1)
    parities = (different < 0).sum(axis=1) % 2
    rows, counts = np.unique(np.column_stack((variables, parities))[plain], axis=0, return_counts=True)
    said = rows[counts == needed]
    # Each clause excludes one assignment of the parity that the sum does not have.
    return said[:, :-1], 1 - said[:, -1]


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


def _has_too_few_holes(literals: Literals, ends: NDArray[np.intp], lengths: NDArray[np.intp]) -> bool:
    pairs = rows_of(literals, ends, lengths, 2)
    excluding: dict[int, set[int]] = {}
    for one, other in pairs[(pairs < 0).all(axis=1)].tolist():
        excluding.setdefault(-one, set()).add(-other)
        excluding.setdefault(-other, set()).add(-one)
    #: by variable: the clause that it is of
    home: dict[int, int] = {}
    chosen = 0
    for end, length in zip(ends.tolist(), lengths.tolist(), strict=True):
        clause = literals[end - length : end].tolist()
        # Of a variable that excludes no other one, each would be a group.
        if clause and all(x > 0 and x in excluding and x not in home for x in clause):
            home |= dict.fromkeys(clause, chosen)
            chosen += 1
    left, groups, steps = dict.fromkeys(home), 0, 0
    while left and groups < chosen:
        group = [next(iter(left))]
        # Those of one clause may exclude each other, too, but that is of no use here.
        for candidate in excluding[group[0]]:
            steps += len(group)
            if (
                candidate in left
                and home[candidate] != home[group[0]]
                and excluding[candidate].issuperset(group)
            ):
                group.append(candidate)
        if steps > _STEPS_MAX * 10:
            return False
        for variable in group:
            del left[variable]
        groups += 1
    return groups < chosen
