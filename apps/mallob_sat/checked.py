"""Checked answers: each derivation is checked while it is made, by a process that trusts no solver.

Beside each search runs `mallob-check` (native/src/check.cpp). The search, in the native solver, sends each
step through a pipe to this checker, which follows the steps (LRAT) and keeps the derived clauses. Clauses for
other workers come from the checker's memory, not the solver's, with a signature; the checker accepts other
workers' clauses by their signatures. Only the checker declares UNSAT, once it has derived the empty clause
or a clause of failed assumptions. It also checks models against the formula's text. No proof is written.

    solver -- steps --> mallob-check -- signed clauses --> worker process -- tree --> other workers
       ^--------------- clauses with their signatures -----------'

Trusted are mallob-check, and in this file the code of the client and the worker process (`SecondReader`,
`Seal`). Not trusted are solvers, sharing, transport, and all other code that handles a clause.

- The client reads the formula twice, by `dimacs` and by mallob-check, and compares the results. It makes a
  key for the job and signs the formula with its assumptions. Key and signature are stored in the job's
  payload.
- A worker process gives the key to the checkers that it starts. Users who can read this process can read the
  key: the key guards against faults, not against malice.
- A signature is a keyed BLAKE2b of the formula's signature and the clause (or answer), so it is invalid for
  any other formula or job.

A wrong step, or a clause with a wrong signature, ends the job with an error that names the step or clause.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from mallob_py.kit import InputError, Payload, Result, WorkerContext, race
from mallob_sat.clauses import SIGNATURE_BYTES, ClausePipe, Clauses, union
from mallob_sat.declaration import SATISFIABLE, UNSATISFIABLE
from mallob_sat.formula import Formula, Literals
from mallob_sat.native import (
    EXCHANGE_INTERVAL_S,
    NATIVE_SOLVERS,
    SHARED_LITERALS_MAX,
    NativeSearch,
    NativeSolver,
    NativeSolverMissing,
    load_library,
)
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.renaming import Renaming
from mallob_sat.search import CLAUSE_LENGTH_MAX, Task
from mallob_sat.sharing import Sharing
from mallob_sat.solvers import Verdict

_FIELD = "configuration"
_KEY_BYTES = 16
#: name of the payload's array that contains the key, then the formula's signature
_SEAL = "seal"
_READ_BYTES = 1 << 16


def checker_path() -> Path:
    """Return the path of `mallob-check`. Raises InputError if it, or the native solver, is not installed."""
    try:
        for solver in NATIVE_SOLVERS:
            load_library(solver)
        from mallob_native import program_path

        path: Path = program_path("mallob-check")
        return path
    except (NativeSolverMissing, ImportError, FileNotFoundError):
        raise InputError(
            "checked answers need the native solver, which is not installed or is of another version; in a "
            "copy of the sources, with a C++ compiler: make native",
            _FIELD,
        ) from None


@dataclass(frozen=True, slots=True)
class Seal:
    """The key of a job, and the signature of its formula."""

    key: bytes
    formula: bytes

    @classmethod
    def new(cls, formula: Formula) -> Seal:
        key = os.urandom(_KEY_BYTES)
        inner = signature(key, np.ascontiguousarray(formula.literals))
        return cls(key, signature(key, b"F", inner, np.ascontiguousarray(formula.assumptions)))

    @classmethod
    def from_payload(cls, payload: Payload) -> Seal:
        data = payload[_SEAL].tobytes()
        return cls(data[:_KEY_BYTES], data[_KEY_BYTES:])

    def to_payload(self) -> Payload:
        return {_SEAL: np.frombuffer(self.key + self.formula, np.uint8)}

    def confirmed(self, result: Result) -> Result:
        """Return the answer of a search if the checker has signed it, else raise InputError."""
        fields = dict(result.fields)
        solution = np.ascontiguousarray(result.solution, dtype=np.int32)
        code = struct.pack("<i", result.code)
        if fields.pop("signature", "") != signature(self.key, b"R", self.formula, code, solution).hex():
            raise InputError(f"{fields.get('solver')} gave an answer that its checker has not signed")
        return replace(result, fields={**fields, "checked": True})


def signature(key: bytes, *parts: Any) -> bytes:
    """Compute the signature of these bytes, in the same way as mallob-check."""
    import hashlib  # here, because it loads a library that other jobs do not need

    hash_ = hashlib.blake2b(key=key, digest_size=SIGNATURE_BYTES)
    for part in parts:
        hash_.update(part)
    return hash_.digest()


class SecondReader:
    """The second reader of the formula's text: the program mallob-check; the first is the module `dimacs`."""

    def __init__(self) -> None:
        self._key = os.urandom(_KEY_BYTES)
        self._process = subprocess.Popen(
            [checker_path(), "read"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def __enter__(self) -> SecondReader:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)

    def passing(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield each block after passing it to the second reader."""
        assert self._process.stdin is not None
        _write_all(self._process.stdin, self._key)
        for block in blocks:
            _write_all(self._process.stdin, block)
            yield block

    def compare(self, formula: Formula, path: str) -> None:
        """Raise InputError unless the second reader has found the same formula."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        answer = _read_all(self._process.stdout)
        if answer[:1] != b"F":
            raise InputError(
                f"{path}: {answer[1:].decode(errors='replace') or 'the second reader has ended'}"
            )
        if answer[1:] != signature(self._key, np.ascontiguousarray(formula.literals)):
            raise InputError(f"{path}: two readers find different formulas; this is a fault of mallob-py")


def _read_all(file: IO[bytes]) -> bytes:
    return b"".join(iter(lambda: file.read(_READ_BYTES), b""))


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Write to mallob-check. If it has ended, write nothing: its answer then says why."""
    left = memoryview(data)
    with suppress(BrokenPipeError):
        while left:
            left = left[file.write(left) :]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process:  # closes the process's pipes and waits for its end
        pass


@dataclass(frozen=True, slots=True)
class Checking:
    """The mode in which native solvers of all workers race and share clauses, and each solver is checked."""

    portfolio: Portfolio

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any], portfolio: Portfolio) -> Checking | None:
        """Return the mode; None: nothing must be checked. Raises InputError."""
        wanted = configuration.get("checked", False)
        if type(wanted) is not bool:
            raise InputError(f"checked is {wanted!r:.40}; it must be true or false", _FIELD)
        if not wanted:
            return None
        able = portfolio.restricted_to(NATIVE_SOLVERS, "have its answers checked")
        checker_path()
        return cls(replace(able, renames=False))

    def prepare(self, formula: Formula) -> Payload:
        return Seal.new(formula).to_payload()

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        seal = Seal.from_payload(context.payload)
        portfolio = self.portfolio
        sharing = Sharing(context, portfolio.has_partners)

        def attempt(number: int) -> CheckedSearch:
            return CheckedSearch(formula, portfolio.strategy(number), seal)

        found = race(context, attempt, sharing.turn, seal.confirmed, pause_s=sharing.pause_s)
        return sharing.counted(found)


class CheckedSearch(NativeSearch):
    """An attempt, for `race`, to decide a formula; a checker follows each step of the solver."""

    def __init__(
        self,
        formula: Formula,
        strategy: Strategy,
        seal: Seal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(formula, strategy, clock)
        self._renaming = Renaming(None)  # no renaming: the checker knows only the formula's variables
        ours, theirs = socket.socketpair()
        with theirs:
            self.checker = subprocess.Popen(
                [checker_path(), "follow", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                bufsize=0,
            )
        self._shared = ClausePipe(ours)
        assert self.checker.stdin is not None
        assert self.checker.stdout is not None
        self._steps, self._verdict = self.checker.stdin, self.checker.stdout
        self.fds += (self._steps.fileno(), self._verdict.fileno())
        _write_all(self._steps, seal.key + seal.formula)

    # --- in the worker process ----------------------------------------------------------------

    def learned(self) -> Clauses:
        """Return the clauses passed on by the checker since the last call, without other workers' clauses."""
        return self._new(union(self._shared.received()))

    def skip_learned(self) -> None:
        """Discard learned clauses, because no other search can use them."""
        self._shared.received()

    def close(self) -> None:
        super().close()
        self._shared.close()
        _end(self.checker)

    # --- in the child process -------------------------------------------------------------------

    def run(self) -> Result:
        """Search. Raises InputError if the checker does not confirm the answer or a step."""
        self._figures = self._board.begin()
        solver = self._solver()
        task = Task(self._formula, self._strategy, self._renaming, solver)
        solver.start(task.assumptions)
        while (answer := solver.wait(EXCHANGE_INTERVAL_S)) is Verdict.UNDECIDED:
            if not solver.is_running or not solver.share(SHARED_LITERALS_MAX):
                self._refuse(_read_all(self._verdict))
            self._take_in(solver)
        if answer is Verdict.SATISFIABLE:
            model = solver.model()
            solver.flush()
            _write_all(self._steps, b"M" + struct.pack("<I", model.size) + model.tobytes())
            return self._signed(SATISFIABLE, b"M", model)
        solver.core()  # has the solver derive the clause of the failed assumptions
        _write_all(self._steps, b"U" + struct.pack("<Q", solver.flush()))
        return self._signed(UNSATISFIABLE, b"U")

    def _solver(self) -> NativeSolver:
        solver = NativeSolver(self._strategy.solver, CLAUSE_LENGTH_MAX, checker_fd=self._steps.fileno())
        for name, value in self._strategy.options:
            solver.set_option(name, value)
        return solver

    def _signed(self, code: int, wanted: bytes, model: Literals | None = None) -> Result:
        """Read the checker's signed answer; for UNSAT it contains the failed assumptions."""
        answer = _read_all(self._verdict)
        if answer[:1] != wanted:
            self._refuse(answer)
        body = answer[1:]
        literals = np.frombuffer(body, np.int32, offset=SIGNATURE_BYTES) if model is None else model
        fields = {"solver": self._strategy.title, "signature": body[:SIGNATURE_BYTES].hex()}
        return Result(code, literals, fields)

    def _refuse(self, answer: bytes) -> NoReturn:
        if answer[:1] != b"E":  # killed, most likely because memory was short: another attempt may succeed
            raise MemoryError("the checker has ended")
        reason = answer[1:].decode(errors="replace")
        raise InputError(f"{self._strategy.title} is refuted by its checker: {reason}")
