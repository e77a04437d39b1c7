"""CaDiCaL in a thread of its own, which gives learned clauses and takes foreign clauses during its search.

PySAT's CaDiCaL holds the interpreter's lock for the whole search, so clauses can be exchanged only between
slices of the search, and on some formulas slices cost more than sharing gains. The search of this module runs
without the lock and is never cut into slices. It needs the package in `native/` of the sources (two releases
of CaDiCaL with a few edits), whose installation needs a C++ compiler; nothing else depends on this package.

    solver = NativeSolver("cadical195")
    solver.add_formula(formula)
    solver.start(assumptions)
    while (answer := solver.wait(0.5)) is Verdict.UNDECIDED:
        send(solver.learned())
        for clauses in received():
            solver.give(clauses)

Every clause from `learned` follows from the formula alone if all clauses passed to `give` do (see `sharing`,
Soundness).

Both buffers are bounded: one keeps the shortest learned clauses, the other the foreign clauses that came
first.

`NativeSearch` is an attempt of a race with a native solver; in jobs that share, it replaces PySAT's
cadical195 and cadical300 (the same releases and options).

Foreign clauses change a search for better or worse: they are useful where short clauses are learned, and a
gamble where none are, as on random formulas. So a strategy that only gives (the first one, by default) takes
no clauses until enough unit and binary clauses are learned, or some time has passed: so it decides easy
random formulas as fast as a single worker. After that it takes the best clauses that it has missed, and all
further ones.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit import Result
from mallob_sat.clauses import SIGNATURE_BYTES, ClausePipe, Clauses, HeldBack, KnownClauses, union
from mallob_sat.cryptominisat import CryptoMiniSatSearch
from mallob_sat.figures import FiguredSearch
from mallob_sat.formula import Formula, Literals
from mallob_sat.portfolio import Strategy, Trade
from mallob_sat.renaming import Renaming
from mallob_sat.search import CLAUSE_LENGTH_MAX, Search, Task
from mallob_sat.solvers import Verdict

#: solvers with a native library
NATIVE_SOLVERS = ("cadical195", "cadical300")
#: value that the function engine_interface of a library must return
_INTERFACE = 3
_HOW_TO_INSTALL = "install it from a copy of the sources, with a C++ compiler: pip install ./native"
_VERDICTS = {10: Verdict.SATISFIABLE, 20: Verdict.UNSATISFIABLE, 0: Verdict.UNDECIDED}

_Ints = np.ctypeslib.ndpointer(dtype=np.int32, flags="C_CONTIGUOUS")
_Counts = np.ctypeslib.ndpointer(dtype=np.int64, flags="C_CONTIGUOUS")
_Engine = ctypes.c_void_p
_Size = ctypes.c_size_t
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "engine_interface": (ctypes.c_int, []),
    "engine_new": (_Engine, [ctypes.c_int, _Size, ctypes.c_int]),
    "engine_delete": (None, [_Engine]),
    "engine_set": (ctypes.c_int, [_Engine, ctypes.c_char_p, ctypes.c_int]),
    "engine_load": (ctypes.c_int, [_Engine, _Ints, _Size, ctypes.c_int, _Ints, _Size]),
    "engine_add": (ctypes.c_int, [_Engine, _Ints, _Size]),
    "engine_phases": (None, [_Engine, _Ints, _Size]),
    "engine_ready": (None, [_Engine]),
    "engine_solve": (ctypes.c_int, [_Engine, _Ints, _Size]),
    "engine_interrupt": (None, [_Engine]),
    "engine_learned": (_Size, [_Engine, _Ints, ctypes.POINTER(_Size), _Ints]),
    "engine_give": (ctypes.c_long, [_Engine, _Ints, _Size, _Ints, _Ints]),
    "engine_share": (ctypes.c_int, [_Engine, _Size]),
    "engine_flush": (ctypes.c_uint64, [_Engine]),
    "engine_model": (None, [_Engine, _Ints, ctypes.c_int]),
    "engine_failed": (None, [_Engine, _Ints, _Size]),
    "engine_counts": (None, [_Engine, _Counts]),
}


class NativeSolverMissing(ImportError):
    """The library is not installed, or has another version."""


@dataclass(frozen=True, slots=True)
class ExchangeCounts:
    """Numbers of clauses exchanged since the solver was made."""

    #: number of learned clauses of at most `max_length` literals
    offered: int
    #: number of learned clauses lost because shorter clauses filled the buffer
    displaced: int
    #: number of foreign clauses that the search uses
    taken: int
    #: number of foreign clauses with a literal that is always true
    satisfied: int
    #: number of foreign clauses over variables that the search has eliminated
    removed: int
    #: number of foreign clauses for which the buffer had no room
    refused: int


@cache
def load_library(solver: str) -> ctypes.CDLL:
    """Load a native solver's library and set its functions' types. Raises NativeSolverMissing."""
    try:
        import mallob_native
    except ImportError:
        raise NativeSolverMissing(f"the native solver is not installed; {_HOW_TO_INSTALL}") from None
    try:
        library = ctypes.CDLL(str(mallob_native.library_path(solver)))
        found = library.engine_interface()
    except (OSError, AttributeError, TypeError) as error:  # TypeError: the package has an older version
        reason = f"the native solver cannot be loaded ({error}); {_HOW_TO_INSTALL}"
        raise NativeSolverMissing(reason) from None
    if found != _INTERFACE:
        raise NativeSolverMissing(
            f"the native solver has interface {found}, needed is {_INTERFACE}; {_HOW_TO_INSTALL}"
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def natives_are_installed() -> bool:
    """Tell whether all of NATIVE_SOLVERS can be loaded."""
    try:
        for solver in NATIVE_SOLVERS:
            load_library(solver)
    except NativeSolverMissing:
        return False
    return True


class NativeSolver:
    """One search. Set options, add the formula, set phases, start; then call wait, learned and give in turn.

    Only one thread may use the solver; each search starts its own thread. Raises NativeSolverMissing if the
    library is not installed.
    """

    def __init__(
        self, solver: str, max_length: int = 8, capacity: int = 1 << 18, checker_fd: int = -1
    ) -> None:
        """Make a solver, one of NATIVE_SOLVERS.

        `max_length`: greatest number of literals of a clause from `learned`. `capacity`: greatest number of
        integers in each buffer. `checker_fd`: file descriptor to which each step is written for a checker
        (`share` then replaces `learned`); -1: no checker.
        """
        assert max_length >= 1
        assert capacity > max_length
        self._library = load_library(solver)
        self._capacity = capacity
        engine = self._library.engine_new(max_length, capacity, checker_fd)
        if not engine:
            raise MemoryError
        self._checker_fd = checker_fd
        self._n_vars = 0
        self._loaded = False
        self._assumptions = _as_literals(())
        self._thread: threading.Thread | None = None
        self._status: list[int] = []
        # Also called at exit, because a search must not run while its library is unloaded.
        self._close = weakref.finalize(self, _close, self._library, engine)
        self._address: int = engine

    def set_option(self, name: str, value: int) -> None:
        """Set one of CaDiCaL's options (except `factor`). Must be called before the formula is added."""
        if self._loaded:
            raise ValueError(f"option '{name}' is set after the formula was added")
        if not self._library.engine_set(self._engine, name.encode(), value):
            raise ValueError(f"CaDiCaL has no option '{name}'")

    def add_formula(self, formula: Formula) -> None:
        """Add all clauses. Pass the formula's assumptions to `start`."""
        self._require_idle()
        if self._checker_fd >= 0:
            self._show(formula)
        self._loaded = True
        self._n_vars = max(self._n_vars, formula.n_vars)
        literals = _as_literals(formula.literals)
        if self._library.engine_add(self._engine, literals, literals.size):
            raise MemoryError

    def _show(self, formula: Formula) -> None:
        """Send the checker the formula and its assumptions."""
        if self._loaded:
            raise ValueError("a checked search has one formula")
        literals, assumptions = _as_literals(formula.literals), _as_literals(formula.assumptions)
        shape = literals, literals.size, formula.n_clauses, assumptions, assumptions.size
        if self._library.engine_load(self._engine, *shape):
            raise MemoryError

    def set_phases(self, literals: Sequence[int]) -> None:
        """Prefer these literals in decisions."""
        self._require_idle()
        self._library.engine_phases(self._engine, _as_literals(literals), len(literals))

    def start(self, assumptions: Sequence[int] = ()) -> None:
        """Begin a search; `wait` returns its answer. May be called again after an answer."""
        self._require_idle()
        self._loaded = True
        self._assumptions = _as_literals(assumptions)
        self._status.clear()
        self._library.engine_ready(self._engine)
        self._thread = threading.Thread(
            target=_search,
            args=(self._library, self._engine, self._assumptions, self._status),
            name="native-search",
            daemon=True,
        )
        _running[self._engine] = self._thread
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Tell whether a search has been started and has neither answered nor been interrupted."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, seconds: float = math.inf) -> Verdict:
        """Wait for the answer; UNDECIDED: the search still runs after `seconds`, or was interrupted."""
        if self._thread is None:
            raise ValueError("no search has been started")
        self._thread.join(None if math.isinf(seconds) else seconds)
        if self._thread.is_alive():
            return Verdict.UNDECIDED
        if self._status[0] not in _VERDICTS:
            raise MemoryError("the search ran out of memory")
        return _VERDICTS[self._status[0]]

    def interrupt(self) -> None:
        """Ask the search to end soon without an answer; `wait` returns when it has ended."""
        self._library.engine_interrupt(self._engine)

    def learned(self) -> Clauses:
        """Return the clauses learned since the last call, including earlier searches; shortest first."""
        integers = np.empty(self._capacity, dtype=np.int32)
        lbds = np.empty(self._capacity // 2, dtype=np.int32)
        n_integers = _Size()
        n_clauses = self._library.engine_learned(self._engine, integers, ctypes.byref(n_integers), lbds)
        integers = integers[: n_integers.value]
        is_end = integers == 0
        lengths = np.diff(np.flatnonzero(is_end), prepend=-1) - 1
        return Clauses.of(lengths, integers[~is_end], lbds[:n_clauses])

    def give(self, clauses: Clauses) -> int:
        """Give clauses, which must follow from the formula, to the search.

        The search takes the clauses within a hundred conflicts, or when its present inprocessing has ended.
        It keeps clauses with an LBD of at most 3 for ever. Returns the number of clauses for which the buffer
        had room.
        """
        ends = np.cumsum(clauses.lengths, dtype=np.int64)
        closed = np.insert(clauses.literals, ends, 0)
        lbds = _as_literals(clauses.glues)
        signatures = np.ascontiguousarray(clauses.signatures).view(np.int32).reshape(-1)
        n_ints = SIGNATURE_BYTES // signatures.itemsize if self._checker_fd >= 0 else 0
        assert signatures.size == len(clauses) * n_ints
        accepted: int = self._library.engine_give(self._engine, closed, closed.size, lbds, signatures)
        if accepted < 0:
            raise MemoryError
        return accepted

    def share(self, literals_max: int) -> bool:
        """Have the checker pass on the best clauses learned since the last call; tell if the checker runs."""
        status: int = self._library.engine_share(self._engine, literals_max)
        if status < 0:
            raise MemoryError
        return bool(status)

    def flush(self) -> int:
        """Send the checker all steps of an answer; return the ID of the failed assumptions' clause, or 0."""
        self._require_idle()
        return int(self._library.engine_flush(self._engine))

    def counts(self) -> ExchangeCounts:
        """Return the counts of exchanged clauses so far."""
        counts = np.empty(6, dtype=np.int64)
        self._library.engine_counts(self._engine, counts)
        return ExchangeCounts(*counts.tolist())

    def model(self) -> Literals:
        """Return the last model: variable v's literal at position v - 1."""
        self._require_verdict(Verdict.SATISFIABLE)
        model = np.empty(self._n_vars, dtype=np.int32)
        self._library.engine_model(self._engine, model, self._n_vars)
        return model

    def core(self) -> list[int]:
        """Return assumptions that cannot hold together, after UNSATISFIABLE; smallest variable first."""
        self._require_verdict(Verdict.UNSATISFIABLE)
        core = self._assumptions.copy()
        self._library.engine_failed(self._engine, core, core.size)
        return sorted(set(core[core != 0].tolist()), key=lambda literal: (abs(literal), literal))

    def close(self) -> None:
        """End the search and free its memory. The solver must not be used any more."""
        self._close()

    @property
    def _engine(self) -> int:
        if not self._close.alive:
            raise ValueError("the solver is closed")
        return self._address

    def _require_idle(self) -> None:
        if self.is_running:
            raise ValueError("a search is running")
        if self._thread is not None:
            self.wait(0)  # raises if the last search ran out of memory: its engine is then useless

    def _require_verdict(self, answer: Verdict) -> None:
        if self._thread is None or self._thread.is_alive() or self.wait(0) is not answer:
            raise ValueError(f"the last answer was not {answer.name}")


#: address of an engine -> thread of its search, so that an engine can be closed without its solver
_running: dict[int, threading.Thread] = {}


def _search(library: ctypes.CDLL, engine: int, assumptions: Literals, status: list[int]) -> None:
    status.append(library.engine_solve(engine, assumptions, assumptions.size))


def _close(library: ctypes.CDLL, engine: int) -> None:
    library.engine_interrupt(engine)
    if (thread := _running.pop(engine, None)) is not None:
        thread.join()
    library.engine_delete(engine)


def _as_literals(values: Sequence[int] | NDArray[np.integer]) -> Literals:
    return np.ascontiguousarray(values, dtype=np.int32)


#: time between two exchanges with the solver
EXCHANGE_INTERVAL_S = 0.1
#: greatest number of literals that a solver gives per exchange
SHARED_LITERALS_MAX = 6000
#: limits after either of which a solver that only gave clauses takes clauses, too: time, and number of known
#: unit and binary clauses
LEFT_ALONE_S = 30.0
LEFT_ALONE_SHORT_CLAUSES = 10
#: greatest number of literals of the missed clauses that a solver takes when it begins to take clauses
_MISSED_LITERALS_MAX = 20_000


def search_for(
    formula: Formula, strategy: Strategy, searches: Callable[[], int] = lambda: 1
) -> Search | NativeSearch:
    """Make the best installed search for a strategy. `searches` returns the job's number of searches."""
    if strategy.solver == "cryptominisat":
        return CryptoMiniSatSearch(formula, strategy)
    is_native = strategy.trade is not Trade.NOTHING and strategy.solver in NATIVE_SOLVERS
    if is_native and natives_are_installed():
        return NativeSearch(formula, strategy)
    return Search(formula, strategy, searches)


class NativeSearch(FiguredSearch):
    """An attempt to decide a formula, for `race`. A child calls `run`; the worker process calls the rest."""

    def __init__(
        self, formula: Formula, strategy: Strategy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(strategy.title)
        self._formula = formula
        self._strategy = strategy
        self._clock = clock
        self._takes_from_s = clock() + (LEFT_ALONE_S if strategy.trade is Trade.GIVES else 0.0)
        self._n_short = 0
        self._missed = HeldBack(_MISSED_LITERALS_MAX)
        self._renaming = Renaming.for_strategy(formula, strategy)
        self._known = KnownClauses()
        self._pipe, self._childs_pipe = ClausePipe.pair()
        self.fds: tuple[int, ...] = (self._childs_pipe.fileno(),)

    # --- in the worker process ----------------------------------------------------------------

    def learned(self) -> Clauses:
        """Return the clauses learned since the last call, without clauses known before, best first."""
        learned = union(self._pipe.received())
        return self._new(self._renaming.undo_clauses(learned))

    def skip_learned(self) -> None:
        """Discard learned clauses, because no other search can use them."""
        self._pipe.received()

    def give(self, clauses: Clauses) -> int:
        """Give clauses to the solver; return the number of clauses that are sent."""
        new = self._new(clauses)
        if self._n_short < LEFT_ALONE_SHORT_CLAUSES and self._clock() < self._takes_from_s:
            self._missed.add(new)
            return 0
        together = self._missed.with_new(new)
        self._pipe.send(self._renaming.apply_to_clauses(together))
        return len(together)

    def _new(self, clauses: Clauses) -> Clauses:
        new = self._known.take_new(clauses)
        self._n_short += int(np.count_nonzero(new.lengths <= 2))
        return new

    def close(self) -> None:
        self._board.close()
        self._pipe.close()
        self._childs_pipe.close()

    # --- in the child process -------------------------------------------------------------------

    def run(self) -> Result:
        self._figures = self._board.begin()
        solver = NativeSolver(self._strategy.solver, CLAUSE_LENGTH_MAX)
        for name, value in self._strategy.options:
            solver.set_option(name, value)
        task = Task(self._formula, self._strategy, self._renaming, solver)
        solver.start(task.assumptions)
        while (answer := solver.wait(EXCHANGE_INTERVAL_S)) is Verdict.UNDECIDED:
            best, _ = solver.learned().best(SHARED_LITERALS_MAX)
            self._childs_pipe.send(best)
            self._take_in(solver)
        return task.result(answer)

    def _take_in(self, solver: NativeSolver) -> None:
        """Give the solver the foreign clauses that have come."""
        for clauses in self._childs_pipe.received():
            self._figures.came += len(clauses)
            solver.give(clauses)
        counts = solver.counts()
        self._figures.used, self._figures.removed = counts.taken, counts.removed
        self._figures.waited_s = self._childs_pipe.waited_s
        self._board.write(self._figures)
