"""Solving with CaDiCaL while it writes a proof, in which clause k of the file has the number k.

In LRAT, hints name clauses by numbers. CaDiCaL counts given clauses and derived clauses together, and may
derive clauses as soon as it is given a unit clause (a single literal) or a clause that repeats a literal. So
its numbers would differ from those in the file. Instead:

1. Unit clauses, clauses that repeat a literal, and tautologies are held back. In place of each, CaDiCaL gets
   a tautology, which takes the number and has no effect. So CaDiCaL can derive nothing, and the n clauses
   have the numbers 1 to n.
2. The clauses held back except tautologies follow, without repeated literals, unit clauses last. CaDiCaL may
   derive clauses between them, and writes these to its proof; the numbers that the proof lacks are those of
   the late clauses. For each late clause a line `ID CLAUSE 0 K 0` is inserted: the late clause follows from
   the file's clause K. (So a checker need not know that two equal literals are the same.)
3. All later derivations of CaDiCaL are copied into the proof unchanged.

DRAT does not name clauses, so for DRAT all clauses are given as they are.

A proof passes a `Scribe` on its way to the disk: CaDiCaL does not check whether its writes succeed, so on a
full disk it would leave a proof with holes. Instead it writes into a pipe, and a child process copies the
bytes to the file and checks every write. The child ends when the pipe is closed, hence also when the solver
is killed.

Guarantees: `Scribe.deliver` gives the file its name only if every byte is on the disk; a formula is refuted
with a complete proof, or an exception is raised. A worker answers UNSAT only when the proof is in its file.
Solvers share no clauses, and no variable is renamed, because a proof is about the formula's own clauses.
"""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from fcntl import fcntl
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit import InputError, Payload, Result, ResultFileError, UnfinishedFile
from mallob_py.kit.result_file import ResultPath
from mallob_sat.declaration import SATISFIABLE, UNSATISFIABLE
from mallob_sat.formula import Formula
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.search import check_model, random_phases, set_up, solve_trivial
from mallob_sat.solvers import Solver, Verdict

_FIELD = "configuration"
_F_SETPIPE_SZ = 1031
_CHUNK_BYTES = 1 << 20
#: number of bytes; the copier pauses after reading fewer, because CaDiCaL writes line by line, and a wake-up
#: costs more than a line
_LITTLE_BYTES = 1 << 15
_NAP_S = 0.005


@contextmanager
def writing_to(file: UnfinishedFile) -> Iterator[Scribe]:
    """Context manager that yields a scribe for a file, and closes both in any case."""
    try:
        with Scribe(file) as scribe:
            yield scribe
    finally:
        file.close()


class Scribe:
    """A child process that copies to a file all bytes that Python or C code writes to `fileno()`."""

    def __init__(self, file: UnfinishedFile) -> None:
        self._file = file
        ours, theirs = os.pipe()
        with suppress(OSError):  # a large pipe, so that the solver seldom waits; refused if pipes are scarce
            fcntl(theirs, _F_SETPIPE_SZ, _CHUNK_BYTES)
        self._pid = os.fork()
        if self._pid == 0:
            _copy_and_exit(ours, file.fd)
        os.close(ours)
        self._pipe = os.fdopen(theirs, "w", encoding="ascii")

    def __enter__(self) -> Scribe:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:  # not delivered
            os.kill(self._pid, signal.SIGKILL)  # the child was not waited for, so its pid is still its own
            self._wait()

    def fileno(self) -> int:
        return self._pipe.fileno()

    def write(self, lines: Iterable[str]) -> None:
        """Write lines that do not come from the solver."""
        with suppress(BrokenPipeError):  # `deliver` raises the error that ended the pipe
            self._pipe.writelines(lines)
            self._pipe.flush()

    def deliver(self) -> None:
        """Wait until all bytes are on the disk, and deliver the file. Raises ResultFileError.

        Other processes and C code must have closed the pipe.
        """
        code = self._wait()
        if code != 0:
            code = code if code > 0 else errno.EIO
            raise self._file.failure(OSError(code, os.strerror(code)))
        self._file.deliver()

    def _wait(self) -> int:
        with suppress(BrokenPipeError):
            self._pipe.close()
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _copy_and_exit(source_fd: int, target_fd: int) -> NoReturn:
    """Copy in the child, and exit with an error number; never return into the worker's code."""
    code = errno.EIO
    try:
        # The worker's socket and the pipe's other end must close when the worker ends.
        lower, upper = sorted((source_fd, target_fd))
        os.closerange(0, lower)
        os.closerange(lower + 1, upper)
        os.closerange(upper + 1, os.sysconf("SC_OPEN_MAX"))
        while chunk := os.read(source_fd, _CHUNK_BYTES):
            left = memoryview(chunk)
            while left:
                left = left[os.write(target_fd, left) :]
            if len(chunk) < _LITTLE_BYTES:
                time.sleep(_NAP_S)
        os.fsync(target_fd)
        code = 0
    except OSError as error:
        code = error.errno or errno.EIO
    finally:
        os._exit(code)


#: number of a clause in the file, and the clause without repeated literals
NumberedClause = tuple[int, list[int]]


class ProofFormat(Enum):
    """The formats of proofs, both as text."""

    LRAT = "lrat"
    DRAT = "drat"


#: format -> engines that can write it. CaDiCaL 1.5.3 knows no hints, PySAT does not offer kissat's proofs,
#: and proofs of the minisat family were not tried
PROVERS = {
    ProofFormat.LRAT: ("cadical195", "cadical300"),
    ProofFormat.DRAT: ("cadical195", "cadical153", "cadical300"),
}


def options_for(format_: ProofFormat) -> tuple[tuple[str, int], ...]:
    """Return the options that CaDiCaL must have before it gets clauses."""
    return (("binary", 0), ("lrat", 1)) if format_ is ProofFormat.LRAT else (("binary", 0),)


def write_empty_clause_proof(formula: Formula, format_: ProofFormat, scribe: Scribe) -> None:
    """Write the proof for a formula with an empty clause."""
    starts, ends = formula.bounds()
    empty = int(np.flatnonzero(starts == ends)[0]) + 1
    scribe.write([f"{formula.n_clauses + 1} 0 {empty} 0\n" if format_ is ProofFormat.LRAT else "0\n"])


class ProofOfSolver:
    """The proof that a solver writes. Set options, then call `add`, solve, and call `close`."""

    def __init__(self, solver: Solver, format_: ProofFormat, scribe: Scribe) -> None:
        self._solver = solver
        self._format = format_
        self._scribe = scribe
        #: file that CaDiCaL writes; lines written before the search must be renumbered
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed in `close`)
        solver.trace_proof(self._file)

    def add(self, formula: Formula) -> None:
        """Give all clauses to the solver. Raises RuntimeError if it does not number them as expected."""
        if self._format is ProofFormat.DRAT:
            self._solver.add_formula(formula)
            self._scribe.write(self._lines())
        else:
            self._add_numbered(formula)
        os.dup2(self._scribe.fileno(), self._file.fileno())

    def close(self) -> None:
        """Have the solver write the remainder of its proof, and free the solver."""
        self._solver.close()
        self._file.close()

    def _add_numbered(self, formula: Formula) -> None:
        self._solver.declare_variables(formula.n_vars)
        late = self._add_in_order(formula)
        if any(_is_addition(line) for line in self._lines()):
            raise RuntimeError("CaDiCaL derived a clause before it had a unit clause: no proof is possible")
        for _, clause in late:
            self._solver.add_clause(clause)
        self._scribe.write(number_late_clauses(self._lines(), late, formula.n_clauses + 1))

    def _add_in_order(self, formula: Formula) -> list[NumberedClause]:
        """Give all clauses but those held back; return the latter in the order in which they must follow."""
        repeating: list[NumberedClause] = []
        units: list[NumberedClause] = []
        starts, ends = formula.bounds()
        special = _special(formula, starts, ends)
        view = np.ascontiguousarray(formula.literals).data
        add = self._solver.add_clause
        bounds = zip(starts.tolist(), ends.tolist(), special.tolist(), strict=True)
        for number, (start, end, is_special) in enumerate(bounds, 1):
            if not is_special:
                add(view[start:end])
                continue
            clause = list(dict.fromkeys(view[start:end].tolist()))
            add([clause[0], -clause[0]])
            if len(clause) == 1:
                units.append((number, clause))
            elif len({abs(literal) for literal in clause}) == len(clause):
                repeating.append((number, clause))
        return repeating + units

    def _lines(self) -> Iterator[str]:
        """Yield the lines that CaDiCaL has written so far; it writes whole lines."""
        # Opened anew, because a copy of the descriptor would share CaDiCaL's position in the file.
        with open(f"/proc/self/fd/{self._file.fileno()}", encoding="ascii") as file:
            yield from file


def number_late_clauses(lines: Iterable[str], late: list[NumberedClause], next_id: int) -> Iterator[str]:
    """Yield CaDiCaL's additions, with the lines of the late clauses between them, up to the empty clause.

    Deletions are left out, because they mostly concern the tautologies, whose numbers belong to other clauses
    in the file. Raises RuntimeError if the numbers do not fit.
    """
    used = 0

    def late_before(id_: int) -> Iterator[str]:
        nonlocal next_id, used
        for taken in range(next_id, id_):
            if used == len(late):
                raise RuntimeError("the numbers in CaDiCaL's proof are not understood: no proof is possible")
            number, clause = late[used]
            yield f"{taken} {' '.join(map(str, clause))} 0 {number} 0\n"
            used += 1
        next_id = id_

    for line in filter(_is_addition, lines):
        words = line.split()
        yield from late_before(int(words[0]))
        yield line
        next_id += 1
        if words[1] == "0":
            return
    yield from late_before(next_id + len(late) - used)


def _is_addition(line: str) -> bool:
    return line.split(None, 2)[1] != "d"


def _special(formula: Formula, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Tell for each clause whether it has fewer than two literals, or a variable twice."""
    special: NDArray[np.bool_] = ends - starts < 2
    literals = formula.literals
    owner = np.repeat(np.arange(starts.size), ends - starts + 1)
    # Sorted by clause, then by variable; the zeros that end clauses do not matter.
    order = np.lexsort((np.abs(literals), owner))
    variables, owners = np.abs(literals)[order], owner[order]
    twice = (variables[1:] == variables[:-1]) & (owners[1:] == owners[:-1])
    special[owners[1:][twice]] = True
    return special


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A request for a proof in a file."""

    file: ResultPath
    format: ProofFormat

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> ProofRequest | None:
        """Return the request; None: no proof is wanted. Raises InputError."""
        name = configuration.get("proof-format", ProofFormat.LRAT.value)
        formats = [format_.value for format_ in ProofFormat]
        if name not in formats:
            raise InputError(f"unknown proof-format {name!r:.40}; known are {', '.join(formats)}", _FIELD)
        file = ResultPath.from_configuration(configuration, "proof")
        return None if file is None else cls(file, ProofFormat(name))

    def portfolio(self, portfolio: Portfolio) -> Portfolio:
        """Return a portfolio of solvers, each of which can write the whole proof. Raises InputError."""
        able = portfolio.restricted_to(PROVERS[self.format], "write such a proof")
        return replace(able, shares=False, renames=False)

    def prepare(self, formula: Formula) -> Payload:
        """Return, at the client, the payload that workers need for the proof. Raises InputError."""
        if formula.assumptions.size:
            raise InputError("a formula with assumptions has no proof", _FIELD)
        return self.file.prepare()


class ProofSearch:
    """An attempt to decide a formula without assumptions, with a proof; for `race`."""

    fds: tuple[int, ...] = ()

    def __init__(self, formula: Formula, strategy: Strategy, proof: ProofRequest, payload: Payload) -> None:
        self._formula = formula
        self._strategy = strategy
        self._proof = proof
        self._payload = payload

    def run(self) -> Result:
        """Search and write a proof. Raises InputError if the file cannot be written."""
        return solve_with_proof(self._formula, self._strategy, self._proof, self._payload)

    def close(self) -> None:
        pass


def solve_with_proof(formula: Formula, strategy: Strategy, proof: ProofRequest, payload: Payload) -> Result:
    """Decide a formula without assumptions. The answer is UNSAT only if the proof in its file is complete.

    Raises InputError if the file cannot be written.
    """
    if not formula.has_empty_clause and (trivial := solve_trivial(formula)) is not None:
        return trivial
    try:
        with writing_to(proof.file.begin(payload)) as scribe:
            return _solve_and_prove(formula, strategy, proof.format, scribe)
    except ResultFileError as error:
        raise proof.file.refusal(error) from None


def _solve_and_prove(formula: Formula, strategy: Strategy, format_: ProofFormat, scribe: Scribe) -> Result:
    if formula.has_empty_clause:
        write_empty_clause_proof(formula, format_, scribe)
        scribe.deliver()
        return Result(UNSATISFIABLE, [])
    assert strategy.renaming_seed is None, "a proof must contain the formula's own variables"
    solver = set_up(strategy, options_for(format_))
    writer = ProofOfSolver(solver, format_, scribe)
    writer.add(formula)
    if strategy.phase_seed is not None:
        solver.set_phases(random_phases(formula.n_vars, strategy.phase_seed))
    fields = {"solver": strategy.title}
    if solver.solve() is Verdict.UNSATISFIABLE:
        writer.close()
        scribe.deliver()
        return Result(UNSATISFIABLE, [], fields)
    model = solver.model()
    check_model(formula, model, strategy)
    return Result(SATISFIABLE, model, fields)
