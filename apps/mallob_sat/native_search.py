"""A search that gives and takes clauses without a stop: CaDiCaL in a thread of its child process.

Needs the native solver (see `native_solver`), which takes the part of cadical195 and cadical300, the
same releases and options, in jobs that share.

Foreign clauses change the way that a search takes, for better or worse: they pay where short ones are
learned, and are a gamble on formulas like random ones, where none are. So a strategy that is to give
only (the first one, by default) is left alone until units or binary clauses show up, or for a while:
what it decides soon on a formula of that kind is decided as soon as by one worker. Then it takes what
it has missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from mallob_py.kit import Result
from mallob_sat.clause_pipe import ClausePipe
from mallob_sat.clauses import Clauses, KnownClauses, union
from mallob_sat.cryptominisat import CryptoMiniSatSearch
from mallob_sat.formula import Formula
from mallob_sat.native_solver import NATIVE_SOLVERS, NativeSolver, natives_are_installed
from mallob_sat.portfolio import Strategy, Trade
from mallob_sat.renaming import Renaming
from mallob_sat.search import CLAUSE_LENGTH_MAX, Search, Task
from mallob_sat.solvers import Answer

#: how often clauses go from and to the solver
_EXCHANGE_INTERVAL_S = 0.2
#: what a solver passes on each time
_LITERALS_MAX = 6000
#: when one that gives only is left alone no longer: after so long, or so many units and binary clauses
LEFT_ALONE_S = 30.0
LEFT_ALONE_SHORT_CLAUSES = 10
#: literals of the best clauses that it then takes
_MISSED_LITERALS_MAX = 20_000


def search_for(formula: Formula, strategy: Strategy) -> Search | NativeSearch:
    """The best way that is installed to search by this strategy."""
    if strategy.solver == "cryptominisat":
        return CryptoMiniSatSearch(formula, strategy)
    is_native = strategy.trade is not Trade.NOTHING and strategy.solver in NATIVE_SOLVERS
    if is_native and natives_are_installed():
        return NativeSearch(formula, strategy)
    return Search(formula, strategy)


class NativeSearch:
    """An attempt to decide a formula, for `race`: `run` in a child, all else in the worker process."""

    def __init__(
        self, formula: Formula, strategy: Strategy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._formula = formula
        self._strategy = strategy
        self._clock = clock
        self._takes_from_s = clock() + (LEFT_ALONE_S if strategy.trade is Trade.GIVES else 0.0)
        self._n_short = 0
        self._missed = Clauses.none()
        self._renaming = Renaming.for_strategy(formula, strategy)
        self._known = KnownClauses()
        self._pipe, self._childs_pipe = ClausePipe.pair()
        self.fds: tuple[int, ...] = (self._childs_pipe.fileno(),)

    # --- in the worker process ----------------------------------------------------------------

    def learned(self) -> Clauses:
        """What the solver has learned since the last call and did not get from us, best first."""
        learned = union([Clauses.none(), *self._pipe.received()])
        return self._new(self._renaming.undo_clauses(learned))

    def skip_learned(self) -> None:
        """Nobody is there to share with."""
        self._pipe.received()

    def give(self, clauses: Clauses) -> int:
        """Hand clauses to the solver; how many of them it does not know."""
        new = self._new(clauses)
        together = union([self._missed, new])
        if self._n_short < LEFT_ALONE_SHORT_CLAUSES and self._clock() < self._takes_from_s:
            self._missed, _ = together.best(_MISSED_LITERALS_MAX)
            return 0
        self._missed = Clauses.none()
        self._pipe.send(self._renaming.apply_to_clauses(together))
        return len(together)

    def _new(self, clauses: Clauses) -> Clauses:
        new = self._known.take_new(clauses)
        self._n_short += int(np.count_nonzero(new.lengths <= 2))
        return new

    def close(self) -> None:
        self._pipe.close()
        self._childs_pipe.close()

    # --- in the child ---------------------------------------------------------------------------

    def run(self) -> Result:
        solver = NativeSolver(self._strategy.solver, CLAUSE_LENGTH_MAX)
        for name, value in self._strategy.options:
            solver.set_option(name, value)
        task = Task(self._formula, self._strategy, self._renaming, solver)
        solver.start(task.assumptions)
        while (answer := solver.wait(_EXCHANGE_INTERVAL_S)) is Answer.UNDECIDED:
            best, _ = solver.learned().best(_LITERALS_MAX)
            self._childs_pipe.send(best)
            for clauses in self._childs_pipe.received():
                solver.give(clauses)
        return task.result(answer)
