"""Formulas as Python users have them, turned into what a job file takes.

A path stays a path. Everything else becomes integers: clauses closed by 0. Few of them go into the
job file itself; many go into a file of 32-bit integers beside it (content mode `raw`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: a file; clauses; an object with `clauses`, such as PySAT's CNF; an array: integers with a 0 after each
#: clause, or a row for each clause (0 fills up short ones)
FormulaLike: TypeAlias = str | os.PathLike[str] | Iterable[Iterable[int]] | NDArray[np.integer[Any]]

LITERAL_MAX = 2**31 - 2
#: opens the assumptions in raw files
_ASSUMPTIONS_MARK = 2**31 - 1


def integers_of(formula: Any) -> NDArray[np.int32]:
    """Clauses closed by 0. Raises ValueError or TypeError, which name the clause at fault."""
    if isinstance(formula, np.ndarray):
        integers = _of_array(formula)
    else:
        clauses = getattr(formula, "clauses", formula)
        integers = np.array(list(chain.from_iterable(map(_closed, clauses))) or (), dtype=np.int64)
    if integers.size and int(np.abs(integers).max()) > LITERAL_MAX:
        raise ValueError(f"literals go from 1 to {LITERAL_MAX} and -1 to -{LITERAL_MAX}")
    return integers.astype(np.int32)


def raw_content(integers: NDArray[np.int32], assumptions: Sequence[int]) -> bytes:
    """A file of content mode `raw`."""
    end = np.array([_ASSUMPTIONS_MARK, *assumptions, 0], dtype="<i4")
    return integers.astype("<i4").tobytes() + end.tobytes()


def _of_array(array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype.kind not in "iu":
        raise TypeError(f"an array of {array.dtype} holds no literals; integers are needed")
    if array.ndim == 1:
        if array.size and array[-1] != 0:
            raise ValueError("the last clause of the array is not closed by 0")
        return array.astype(np.int64)
    if array.ndim != 2:
        raise ValueError(f"an array of {array.ndim} dimensions; 1 or 2 are possible")
    closed = np.concatenate((array.astype(np.int64), np.zeros((len(array), 1), np.int64)), axis=1)
    # of each row its literals, in order, and the 0 added last
    wanted = closed != 0
    wanted[:, -1] = True
    result: NDArray[np.int64] = closed[wanted]
    return result


def _closed(clause: Iterable[int]) -> list[int]:
    try:
        literals = [*clause, 0]
    except TypeError:
        raise TypeError(f"{clause!r:.60} is not a clause; clauses are lists of integers") from None
    for literal in literals[:-1]:
        if isinstance(literal, bool) or not isinstance(literal, int | np.integer) or literal == 0:
            raise ValueError(f"clause {literals[:-1]!r:.60} holds {literal!r:.20}, which is not a literal")
    return literals
