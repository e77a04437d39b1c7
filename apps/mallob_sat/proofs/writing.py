"""Solving with CaDiCaL while it writes a proof, in which clause k of the file has the number k.

In LRAT hints name clauses by numbers, and CaDiCaL counts on its own: each clause that it is given
gets the next one, and so does each that it derives, which it may do as soon as it has met a unit
clause (one with a single literal) or one with a literal twice. So the numbers would drift from
those in the file. What happens here instead:

1. Literals that stand twice are left out. In place of a unit clause or of a tautology a tautology
   is given, which takes the number and does nothing. Now nothing can be derived, and n clauses have
   the numbers 1 to n.
2. The unit clauses follow. What CaDiCaL derives meanwhile is in its proof so far; the numbers that
   are missing there are those of the unit clauses. For each the proof gets a line `ID LITERAL 0 K 0`:
   it follows from the file's clause K.
3. All that CaDiCaL derives from here on goes into the proof as it is.

DRAT names no clauses, so there everything is given as it stands. A proof passes a `Scribe` on its
way to the disk. Guarantees: a formula is refuted with a complete proof, or an exception is raised.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Formula
from mallob_sat.proofs.scribe import Scribe
from mallob_sat.solvers import Solver


class ProofFormat(Enum):
    """Both as text."""

    LRAT = "lrat"
    DRAT = "drat"


#: engines that can write a proof; the other CaDiCaL (1.5.3) knows no hints, kissat's proofs are not
#: to be had through PySAT, and those of the minisat family were not tried
PROVERS = {
    ProofFormat.LRAT: ("cadical195", "cadical300"),
    ProofFormat.DRAT: ("cadical195", "cadical153", "cadical300"),
}


def options_for(format_: ProofFormat) -> tuple[tuple[str, int], ...]:
    """What CaDiCaL must be told before it gets clauses."""
    return (("binary", 0), ("lrat", 1)) if format_ is ProofFormat.LRAT else (("binary", 0),)


def write_empty_clause_proof(formula: Formula, format_: ProofFormat, scribe: Scribe) -> None:
    """The proof for a formula with an empty clause."""
    starts, ends = formula.bounds()
    empty = int(np.flatnonzero(starts == ends)[0]) + 1
    scribe.write([f"{formula.n_clauses + 1} 0 {empty} 0\n" if format_ is ProofFormat.LRAT else "0\n"])


class ProofOfSolver:
    """The proof that a solver writes. Use: set options, `add`, solve, `close`."""

    def __init__(self, solver: Solver, format_: ProofFormat, scribe: Scribe) -> None:
        self._solver = solver
        self._format = format_
        self._scribe = scribe
        #: where CaDiCaL writes; what it writes before the search must be looked at
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed in `close`)
        solver.trace_proof(self._file)

    def add(self, formula: Formula) -> None:
        """Give all clauses to the solver. Raises RuntimeError if it does not number them as expected."""
        if self._format is ProofFormat.DRAT:
            self._solver.add_formula(formula)
            self._send(self._lines())
        else:
            self._add_numbered(formula)
        os.dup2(self._scribe.fileno(), self._file.fileno())

    def close(self) -> None:
        """Have the solver write what it still holds; the solver is gone then."""
        self._solver.close()
        self._file.close()

    def _add_numbered(self, formula: Formula) -> None:
        self._solver.declare_variables(formula.n_vars)
        units = self._add_long_clauses(formula)
        if any(_is_addition(line) for line in self._lines()):
            raise RuntimeError("CaDiCaL derived a clause before it had a unit clause: no proof is possible")
        for _, literal in units:
            self._solver.add_clause([literal])
        self._send(number_units(self._lines(), units, formula.n_clauses + 1))

    def _add_long_clauses(self, formula: Formula) -> list[tuple[int, int]]:
        """All clauses but the unit clauses; these with their numbers (number, literal)."""
        units: list[tuple[int, int]] = []
        starts, ends = formula.bounds()
        special = _special(formula, starts, ends)
        view = np.ascontiguousarray(formula.literals).data
        add = self._solver.add_clause
        bounds = zip(starts.tolist(), ends.tolist(), special.tolist(), strict=True)
        for number, (start, end, is_special) in enumerate(bounds, 1):
            if not is_special:
                add(view[start:end])
                continue
            clause = dict.fromkeys(view[start:end].tolist())
            first = next(iter(clause))
            if len(clause) == 1:
                units.append((number, first))
            if len(clause) == 1 or any(-literal in clause for literal in clause):
                add([first, -first])
            else:
                add(list(clause))
        return units

    def _lines(self) -> Iterator[str]:
        """What CaDiCaL has written so far; it writes whole lines."""
        # Opened anew, since a copy of the descriptor would share CaDiCaL's position.
        with open(f"/proc/self/fd/{self._file.fileno()}", encoding="ascii") as file:
            yield from file

    def _send(self, lines: Iterable[str]) -> None:
        self._scribe.write(lines)


def number_units(lines: Iterable[str], units: list[tuple[int, int]], next_id: int) -> Iterator[str]:
    """CaDiCaL's additions with those for the unit clauses (number, literal) between them.

    Ends with the empty clause. Deletions are left out: they concern the tautologies, which in
    the file are other clauses, and little else. Raises RuntimeError if the numbers do not fit.
    """
    used = 0

    def units_before(id_: int) -> Iterator[str]:
        nonlocal next_id, used
        for taken in range(next_id, id_):
            if used == len(units):
                raise RuntimeError("the numbers in CaDiCaL's proof are not understood: no proof is possible")
            number, literal = units[used]
            yield f"{taken} {literal} 0 {number} 0\n"
            used += 1
        next_id = id_

    for line in filter(_is_addition, lines):
        words = line.split()
        yield from units_before(int(words[0]))
        yield line
        next_id += 1
        if words[1] == "0":
            return
    yield from units_before(next_id + len(units) - used)


def _is_addition(line: str) -> bool:
    return line.split(None, 2)[1] != "d"


def _special(formula: Formula, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which clauses have fewer than two literals, or a variable twice."""
    special: NDArray[np.bool_] = ends - starts < 2
    literals = formula.literals
    owner = np.repeat(np.arange(starts.size), ends - starts + 1)
    # Sorted by clause and then variable; closing zeros are in nobody's way.
    order = np.lexsort((np.abs(literals), owner))
    variables, owners = np.abs(literals)[order], owner[order]
    twice = (variables[1:] == variables[:-1]) & (owners[1:] == owners[:-1])
    special[owners[1:][twice]] = True
    return special
