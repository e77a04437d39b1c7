"""Formulas given as Python objects: each is read once and converted into integers.

Clauses may be lists, sets, iterators, arrays, or PySAT's `CNF`, `CNFPlus` without bounds and `Formula`. A
weighted formula has `hard`, `soft` and `wght`, such as PySAT's `WCNF`. An object with a part that clauses
cannot express is refused, since an answer without this part would be wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

#: a path; bytes (the content of an application's input file); clauses; an object with `clauses`, such as
#: PySAT's CNF; or an array: integers with a 0 after each clause, or one clause per row, filled up by 0
FormulaLike: TypeAlias = bytes | str | os.PathLike[str] | Iterable[Iterable[int]] | NDArray[np.integer[Any]]

#: soft clauses: pairs of a weight and a clause
Soft: TypeAlias = Iterable[tuple[int, Iterable[int]]]

LITERAL_MAX = 2**31 - 2
NO_BOUNDS = "the service takes clauses; encode constraints on numbers of literals with pysat.card"
_RANGE = f"literals go from 1 to {LITERAL_MAX} and -1 to -{LITERAL_MAX}"
#: iterable types whose items are neither clauses nor literals
_OPAQUE = (str, bytes, bytearray, memoryview, os.PathLike, Mapping)


class BoundsError(NotImplementedError, ValueError):
    """A formula bounds how many literals are true; for such formulas, PySAT raises NotImplementedError."""


def clauses_of(formula: Any) -> NDArray[np.int32]:
    """Return the clauses, each closed by 0. Raises ValueError or TypeError, which name the bad clause."""
    if isinstance(formula, np.ndarray):
        return _checked(_of_array(formula))
    return _checked(list(chain.from_iterable(map(_closed, _clauses_in(formula)))))


def literals_of(literals: Any, what: str = "clause") -> list[int]:
    """Return the literals of a sequence that errors call `what`. Raises as `clauses_of` does."""
    return list(map(int, _checked(_closed(literals, what)[:-1])))


def literal_of(value: Any) -> int:
    """Convert a value into a literal. Raises as `clauses_of` does."""
    return literals_of([value], "literal")[0]


def weighted_of(formula: Any) -> tuple[NDArray[np.int32], list[tuple[int, list[int]]]]:
    """Return the hard clauses and the weighted soft clauses. Raises as `clauses_of` does."""
    if not all(hasattr(formula, name) for name in ("hard", "soft", "wght")):
        raise TypeError("an objective is needed: {literal: weight}, or a weighted formula instead of clauses")
    _refuse_bounds(formula)
    weights, soft = list(formula.wght), list(formula.soft)
    if len(weights) != len(soft):
        raise ValueError(f"the weighted formula has {len(soft)} soft clauses and {len(weights)} weights")
    return clauses_of(formula.hard), [
        (weight_of(weight), literals_of(clause)) for weight, clause in zip(weights, soft, strict=True)
    ]


def weight_of(value: object) -> int:
    """Convert a value into the weight of a soft clause. Raises ValueError."""
    if not is_integer(value) or not 0 <= cast(int, value) < 2**63:
        raise ValueError(f"a weight must be a whole number from 0 to 2^63-1, not {value!r:.40}")
    return int(cast(int, value))


def is_integer(value: object) -> bool:
    """Tell whether a value is an integer of Python or numpy; booleans are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def wcnf_text(hard: NDArray[np.int32], soft: Sequence[tuple[int, list[int]]]) -> bytes:
    """Return a weighted formula as the text of a WCNF file."""
    # Each 0 ends a line and is followed by the "h " of the next line; the last "h " is cut off.
    lines = "h " + "".join([f"{literal} " if literal else "0\nh " for literal in hard.tolist()])
    lines_soft = "".join([f"{weight} {' '.join(map(str, (*clause, 0)))}\n" for weight, clause in soft])
    return (lines[: -len("h ")] + lines_soft).encode()


def raw_content(integers: NDArray[np.int32], assumptions: Sequence[int]) -> bytes:
    """Return the content of an input file in content mode `raw`: 2^31 - 1 precedes the assumptions."""
    end = np.array([2**31 - 1, *assumptions, 0], dtype="<i4")
    return integers.astype("<i4").tobytes() + end.tobytes()


def _clauses_in(formula: Any) -> Iterable[Any]:
    _refuse_bounds(formula)
    if hasattr(formula, "hard"):
        raise TypeError("clauses are needed here, not a weighted formula, which Client.minimize takes")
    if isinstance(formula, _OPAQUE):
        raise TypeError(f"clauses are needed here; {_kind(formula)} holds none that can be read")
    # PySAT's Formula has clauses in its parts, too; iterating over the Formula yields all clauses.
    clauses = formula if hasattr(formula, "clausify") else getattr(formula, "clauses", formula)
    if not isinstance(clauses, Iterable):
        raise TypeError(f"{_kind(formula)} is not a formula; a formula is clauses: lists of integers")
    return clauses


def _refuse_bounds(formula: Any) -> None:
    for part in ("atmosts", "atms"):  # bounds of PySAT's CNFPlus and WCNFPlus
        if len(getattr(formula, part, ())):
            raise BoundsError(NO_BOUNDS)


def _kind(value: object) -> str:
    return f"an object of type {type(value).__name__}"


def _closed(clause: Any, what: str = "clause") -> list[int]:
    # Lists skip the check against abstract classes, which takes longer than reading the clause.
    if type(clause) is not list and (isinstance(clause, _OPAQUE) or not isinstance(clause, Iterable)):
        raise TypeError(f"{what}: {clause!r:.60} is not a list of integers")
    literals = [*clause, 0]
    for literal in literals[:-1]:
        if (literal.__class__ is not int and not is_integer(literal)) or literal == 0:
            raise ValueError(f"{what}: {literals[:-1]!r:.60} holds {literal!r:.20}, which is not a literal")
    return literals


def _checked(integers: list[int] | NDArray[Any]) -> NDArray[np.int32]:
    try:
        array = integers if isinstance(integers, np.ndarray) else np.array(integers, dtype=np.int64)
    except OverflowError:
        raise ValueError(_RANGE) from None
    if array.size and not -LITERAL_MAX <= int(array.min()) <= int(array.max()) <= LITERAL_MAX:
        raise ValueError(_RANGE)
    return array.astype(np.int32)


def _of_array(array: NDArray[Any]) -> NDArray[Any]:
    if np.ma.is_masked(array):
        raise TypeError("an array with masked entries; fill them up by 0: array.filled(0)")
    array = np.asarray(array)  # the rows of a `matrix` would be matrices
    if array.dtype.kind not in "iu":
        raise TypeError(f"an array of {array.dtype} holds no literals; integers are needed")
    if array.ndim == 1:
        if array.size and array[-1] != 0:
            raise ValueError("the last clause of the array is not closed by 0")
        return array
    if array.ndim != 2:
        raise ValueError(f"the array has {array.ndim} dimensions; a formula needs 1 or 2")
    closed = np.concatenate((array, np.zeros((len(array), 1), array.dtype)), axis=1)
    # true for the literals and for the closing 0 of each row
    wanted = closed != 0
    wanted[:, -1] = True
    result: NDArray[Any] = closed[wanted]
    return result
