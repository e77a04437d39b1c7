"""A propositional formula as flat arrays, its payload form, and the check of a model.

Clauses stand one after the other, each ended by a 0, in one int32 array, which workers share read-only and
pass to solvers. This module checks formulas given as integers (inline `literals`, raw files); `dimacs` checks
text files.

Guarantees: every literal x of a Formula has 1 <= |x| <= n_vars <= MAX_VARIABLE, there are n_clauses zeros,
and the last integer is a 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit import InputError, Payload

Literals: TypeAlias = NDArray[np.int32]
Integers: TypeAlias = NDArray[np.signedinteger[Any]]

MAX_VARIABLE = 2**31 - 2
#: greatest number of variables that is always accepted; above it, greatest number per literal, because
#: solvers take memory for unused variables
_FREE_VARIABLES, _VARIABLES_PER_LITERAL = 10_000_000, 16
#: separator between clauses and assumptions in integer input
ASSUMPTIONS_MARK = 2**31 - 1
#: number of literals per block; numpy's intermediate arrays are a few times as large
_BLOCK_LITERALS = 1 << 19


@dataclass(frozen=True, slots=True)
class Formula:
    """Clauses, each ended by a 0; the numbers of variables and clauses; and assumed literals."""

    literals: Literals
    n_vars: int
    n_clauses: int
    assumptions: Literals
    #: for each clause of the input, the position of its first clause in `literals` (an XOR becomes several
    #: clauses, or none); None: the clauses are the same. Not part of the payload
    line_starts: NDArray[np.int64] | None = None

    def to_payload(self) -> Payload:
        return {
            "literals": self.literals,
            "shape": np.array([self.n_vars, self.n_clauses], dtype=np.int64),
            "assumptions": self.assumptions,
        }

    @classmethod
    def from_payload(cls, payload: Payload) -> Formula:
        n_vars, n_clauses = payload["shape"].tolist()
        return cls(payload["literals"], n_vars, n_clauses, payload["assumptions"])

    @property
    def n_literals(self) -> int:
        """The number of integers in clauses and assumptions, which is at least the number of literals."""
        return self.literals.size + self.assumptions.size

    def assuming(self, literals: Sequence[int]) -> Formula:
        """Return this formula with further assumptions. Raises InputError."""
        for literal in literals:
            if type(literal) is not int or not 1 <= abs(literal) <= MAX_VARIABLE:
                raise InputError(
                    f"{literal!r:.40} is no literal; these go from 1 to {MAX_VARIABLE} and"
                    f" -1 to -{MAX_VARIABLE}",
                    "assumptions",
                )
        return replace(
            self,
            n_vars=max([self.n_vars, *map(abs, literals)]),
            assumptions=np.concatenate((self.assumptions, np.array(literals, dtype=np.int32))),
        )

    def bounds(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return, for each clause, the position of its first literal and of the 0 that ends it."""
        ends = np.flatnonzero(self.literals == 0)
        starts = np.empty_like(ends)
        starts[:1] = 0
        starts[1:] = ends[:-1] + 1
        return starts, ends

    def blocks(self) -> Iterator[Literals]:
        """Yield the literals in blocks of whole clauses, for work that takes memory per literal."""
        begin, size = 0, self.literals.size
        while begin < size:
            end = min(begin + _BLOCK_LITERALS, size)
            while self.literals[end - 1]:
                end += 1
            yield self.literals[begin:end]
            begin = end

    @property
    def has_empty_clause(self) -> bool:
        for block in self.blocks():
            zeros = block == 0
            if zeros[0] or (zeros[1:] & zeros[:-1]).any():
                return True
        return False

    def first_falsified(self, model: Literals) -> int | None:
        """Return the index of the first clause that `model` falsifies, if any.

        In a model, variable v's literal is at position v - 1.
        """
        # The 0 that ends a clause looks up position 0. It differs from the 1 there, so it counts as false.
        signed = np.concatenate((np.ones(1, dtype=np.int32), model))
        checked = 0
        for block in self.blocks():
            ends = np.flatnonzero(block == 0)
            starts = np.concatenate((np.zeros(1, dtype=np.intp), ends[:-1] + 1))
            satisfied = np.logical_or.reduceat(signed[np.abs(block)] == block, starts)
            if not satisfied.all():
                return checked + int(np.argmin(satisfied))
            checked += ends.size
        return None


def check_numbering(n_vars: int, occurring_max: int, field: str) -> None:
    """Raise InputError if hardly any variable occurs, because solvers take memory for each variable."""
    if n_vars > max(_FREE_VARIABLES, _VARIABLES_PER_LITERAL * occurring_max):
        raise InputError(
            f"there are {n_vars} variables, but at most {occurring_max} of them occur; solvers take "
            "memory for each, so number the variables that occur from 1 on",
            field,
        )


def formula_from_integers(integers: Integers, source: str, field: str) -> Formula:
    """Make a formula of clauses, each ended by a 0, optionally with ASSUMPTIONS_MARK, assumptions and a 0.

    In errors, `source` begins the text and `field` is the field of the job file.
    """
    marks = np.flatnonzero(integers == ASSUMPTIONS_MARK)
    clauses, assumptions = integers, integers[:0]
    if marks.size:
        clauses, assumptions = integers[: marks[0]], integers[marks[0] + 1 :]
        _check_assumptions(assumptions, int(marks[0]) + 1, source, field)
        assumptions = assumptions[:-1]
    if clauses.size and clauses[-1] != 0:
        raise InputError(f"{source}: the last clause is not closed by 0 (truncated?)", field)
    outside = np.flatnonzero((integers > ASSUMPTIONS_MARK) | (integers < -MAX_VARIABLE))
    if outside.size:
        at = int(outside[0])
        raise InputError(
            f"{source}: integer {at + 1} is {integers[at]}; literals go from 1 to {MAX_VARIABLE} and"
            f" -1 to -{MAX_VARIABLE}",
            field,
        )
    n_vars = 0
    for part in (clauses, assumptions):
        if part.size:
            n_vars = max(n_vars, int(part.max()), -int(part.min()))
    return Formula(
        clauses.astype(np.int32, copy=False),
        n_vars,
        clauses.size - int(np.count_nonzero(clauses)),
        assumptions.astype(np.int32, copy=False),
    )


def _check_assumptions(
    assumptions: NDArray[np.signedinteger[Any]], offset: int, source: str, field: str
) -> None:
    zeros = np.flatnonzero(assumptions == 0)
    if not zeros.size:
        raise InputError(
            f"{source}: the assumptions after {ASSUMPTIONS_MARK} are not closed by 0 (truncated?)", field
        )
    if zeros[0] != assumptions.size - 1:
        raise InputError(
            f"{source}: integer {offset + int(zeros[0]) + 2} follows the 0 that closes the assumptions;"
            " nothing may follow it",
            field,
        )
    second = np.flatnonzero(assumptions == ASSUMPTIONS_MARK)
    if second.size:
        raise InputError(
            f"{source}: integer {offset + int(second[0]) + 1} opens a second list of assumptions", field
        )


def formula_from_list(literals: object) -> Formula:
    """Make a formula of a job file's inline `literals`."""
    field = "literals"
    if not isinstance(literals, list | tuple):
        raise InputError(f"literals: must be a list of integers, is {literals!r:.60}", field)
    for position, value in enumerate(literals):
        if type(value) is not int:
            raise InputError(
                f"literals: integer {position + 1} is {value!r:.40}, which is not an integer", field
            )
        if not -MAX_VARIABLE <= value <= ASSUMPTIONS_MARK:
            raise InputError(
                f"literals: integer {position + 1} is {value}; literals go from 1 to {MAX_VARIABLE} and"
                f" -1 to -{MAX_VARIABLE}",
                field,
            )
    return formula_from_integers(np.array(literals, dtype=np.int64), "literals", field)


def formula_from_raw(content: bytes, path: str) -> Formula:
    """Make a formula of a raw file: 32-bit little-endian integers, the assumptions at the end."""
    if len(content) % 4:
        raise InputError(
            f"{path}: {len(content)} bytes are not a whole number of 32-bit integers (truncated?)"
        )
    integers = np.frombuffer(content, dtype="<i4")
    if not (integers == ASSUMPTIONS_MARK).any():
        integers = _with_mark(integers, path)
    return formula_from_integers(integers, path, "files")


def _with_mark(integers: Integers, path: str) -> Integers:
    """Replace an empty clause, which earlier releases of Mallob's IPASIR bridge write, by the mark."""
    empty = integers == 0
    empty[1:] &= integers[:-1] == 0
    if not empty.any():
        raise InputError(
            f"{path}: no {ASSUMPTIONS_MARK} after the clauses (truncated?); raw content ends with"
            f" {ASSUMPTIONS_MARK}, the assumptions and a 0"
        )
    marked = integers.copy()
    marked[int(np.argmax(empty))] = ASSUMPTIONS_MARK
    return marked
