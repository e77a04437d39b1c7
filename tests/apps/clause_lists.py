"""Clauses as lists of literals, sets and formulas of clauses, and their satisfiability, for the tests."""

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from mallob_sat.clauses import Clauses
from mallob_sat.formula import Formula, formula_from_list


def clauses_of(lists: Iterable[Sequence[int]], glues: Sequence[int] | None = None) -> Clauses:
    """Return clauses with these glues, or with unknown glues."""
    lists = list(lists)
    return Clauses.of(
        np.array([len(clause) for clause in lists], dtype=np.int64),
        np.array([literal for clause in lists for literal in clause], dtype=np.int64),
        None if glues is None else np.array(glues, dtype=np.int64),
    )


def formula_of(clauses: Iterable[Sequence[int]]) -> Formula:
    """Return a formula without assumptions; the largest variable that occurs is the formula's last one."""
    return formula_from_list([literal for clause in clauses for literal in (*clause, 0)])


def is_satisfiable(clauses: Iterable[Sequence[int]], n_vars: int) -> bool:
    """Tell whether clauses are satisfiable, by trying all assignments."""
    clauses = list(clauses)
    return any(
        all(any(bits[abs(x) - 1] == (x > 0) for x in clause) for clause in clauses)
        for bits in product((False, True), repeat=n_vars)
    )
