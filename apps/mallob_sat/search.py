"""A search: one solver decides a formula, alone, or in its own process while it gives and takes clauses.

This module runs PySAT's solvers; `native` runs native solvers, which exchange clauses during their search.
PySAT's solvers give clauses in this way: the solver writes its proof into memory that the worker process
reads (`ProofStream`) during the search. They take clauses in this way: the solver stops now and then, as its
strategy says, and takes clauses that have come through a socket. PySAT's calls cannot be interrupted, so
solvers that stop have conflict budgets, fitted to slices of time. Slices grow, because each stop disturbs a
search.

A model is checked before it leaves its process, so that a wrong model is an error of the job and no answer.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from mallob_py.kit import Result
from mallob_sat.clauses import ClausePipe, Clauses, HeldBack, KnownClauses, ProofStream
from mallob_sat.declaration import SATISFIABLE, UNSATISFIABLE
from mallob_sat.figures import FiguredSearch
from mallob_sat.formula import Formula, Literals
from mallob_sat.portfolio import Strategy, Trade
from mallob_sat.renaming import Renaming
from mallob_sat.solvers import Solver, Verdict
from mallob_sat.symmetries import breaking_clauses

#: length of the longest clauses that are worth sending; kissats send longer ones, because other kissats can
#: use most of them
CLAUSE_LENGTH_MAX, _KISSATS_LENGTH_MAX = 12, 30
#: number of literals up to which the worker process itself first tries a formula, for about the 10 ms that
#: another process would take to begin
_SMALL_LITERALS = 200_000
_QUICK_CONFLICTS = 200
_FIRST_CONFLICTS = 1000
#: CPU time between two exchanges with a solver that exchanges clauses at restarts
_EXCHANGE_INTERVAL_S = 0.05
#: CPU time for which a search with stable phases takes no clauses if two searches run (less if more run),
#: because it then finds models earlier. Afterwards it takes the best clauses so far, which help proofs, and
#: the first kissat leaves stable phases to the second
UNDISTURBED_S = 3.0
_MISSED_LITERALS_MAX = 5_000
#: number of literals of learned clauses that are read per epoch; the best clauses are given to others
_LEARNED_LITERALS_MAX = 6_000
_SLICE_MIN_S = 0.4
_SLICE_MAX_S = 4.0
#: length of a slice, as a share of the time searched so far
_SLICE_SHARE = 0.1
_CONFLICTS_MIN = 200
_CONFLICTS_MAX = 5_000_000


def solve(formula: Formula, strategy: Strategy) -> Result:
    """Decide a formula. Raises RuntimeError if the solver's model is wrong."""
    trivial = solve_trivial(formula)
    if trivial is not None:
        return trivial
    solver = set_up(strategy)
    task = Task(formula, strategy, Renaming.for_strategy(formula, strategy), solver)
    return task.result(solver.solve(task.assumptions))


def solve_quickly(formula: Formula, strategy: Strategy) -> Result | None:
    """Return the answer if it is found within some milliseconds; else None."""
    trivial = solve_trivial(formula)
    if (
        trivial is not None
        or formula.literals.size > _SMALL_LITERALS
        or not Solver.has_budget(strategy.solver)
    ):
        return trivial
    solver = set_up(strategy)
    task = Task(formula, strategy, Renaming.for_strategy(formula, strategy), solver)
    answer = solver.solve_for(_QUICK_CONFLICTS, task.assumptions)
    return None if answer is Verdict.UNDECIDED else task.result(answer)


def solve_trivial(formula: Formula) -> Result | None:
    """Return the answer if it needs no solver: for an empty clause, no clauses, or assumptions x and -x."""
    if formula.has_empty_clause:
        return Result(UNSATISFIABLE, [])
    assumed = set(formula.assumptions.tolist())
    clashing = [literal for literal in assumed if -literal in assumed]
    if clashing:
        variable = min(abs(literal) for literal in clashing)
        return Result(UNSATISFIABLE, [-variable, variable])
    if formula.n_clauses:
        return None
    model = -np.arange(1, formula.n_vars + 1, dtype=np.int32)
    model[np.abs(formula.assumptions) - 1] = formula.assumptions
    return Result(SATISFIABLE, model)


class _Loadable(Protocol):
    def add_formula(self, formula: Formula) -> None: ...

    def set_phases(self, literals: Sequence[int]) -> None: ...

    def core(self) -> list[int]: ...

    def model(self) -> Literals: ...


class Task:
    """A formula, renamed as its strategy says and loaded into a solver, and the renamed `assumptions`."""

    def __init__(self, formula: Formula, strategy: Strategy, renaming: Renaming, solver: _Loadable) -> None:
        self._formula = formula
        self._strategy = strategy
        self._renaming = renaming
        self._solver = solver
        renamed = renaming.apply(formula)
        self.assumptions: list[int] = renamed.assumptions.tolist()
        solver.add_formula(renamed)
        if strategy.phase_seed is not None:
            solver.set_phases(random_phases(renamed.n_vars, strategy.phase_seed))

    def result(self, answer: Verdict) -> Result:
        """Convert the solver's answer into the formula's variables. Raises RuntimeError for a wrong model."""
        fields = {"solver": self._strategy.title}
        if answer is Verdict.UNSATISFIABLE:
            return Result(UNSATISFIABLE, self._renaming.undo_literals(self._solver.core()), fields)
        model = self._renaming.undo_model(self._solver.model(), self._formula.n_vars)
        check_model(self._formula, model, self._strategy)
        return Result(SATISFIABLE, model, fields)


def set_up(strategy: Strategy, further_options: tuple[tuple[str, int], ...] = ()) -> Solver:
    """Make a solver with its options and without clauses."""
    solver = Solver(strategy.solver)
    if Solver.has_options(strategy.solver):
        for name, value in strategy.options + further_options:
            solver.set_option(name, value)
    return solver


def random_phases(n_vars: int, seed: int) -> list[int]:
    """Return a random literal for each variable."""
    signs = np.random.default_rng(seed).choice(np.array([-1, 1], dtype=np.int64), n_vars)
    phases: list[int] = (np.arange(1, n_vars + 1) * signs).tolist()
    return phases


def check_model(formula: Formula, model: Literals, strategy: Strategy) -> None:
    """Raise RuntimeError unless the model satisfies every clause and assumption."""
    falsified = formula.first_falsified(model)
    if falsified is not None:
        raise RuntimeError(f"{strategy.title} gave a wrong model: clause {falsified + 1} is false")
    assumptions = formula.assumptions
    if not np.array_equal(model[np.abs(assumptions) - 1], assumptions):
        raise RuntimeError(f"{strategy.title} gave a wrong model: an assumption is false")


class Search(FiguredSearch):
    """An attempt to decide a formula, for `race`. A child calls `run`; the worker process calls the rest."""

    def __init__(self, formula: Formula, strategy: Strategy, searches: Callable[[], int] = lambda: 1) -> None:
        """Prepare the search. `searches` returns the job's present number of searches."""
        super().__init__(strategy.title)
        self._formula = formula
        self._strategy = strategy
        self._searches = searches
        self._goes_its_way = ("stable", 2) in strategy.options or strategy.leaves_stable_phases
        #: byte shared with the child: 1 if the child must leave stable phases to another solver
        self._focuses = mmap.mmap(-1, 1)
        self._missed = HeldBack(_MISSED_LITERALS_MAX)
        self._renaming = Renaming.for_strategy(formula, strategy)
        self._proof: ProofStream | None = None
        self._inlet: ClausePipe | None = None
        self._known = KnownClauses()
        self.fds: tuple[int, ...] = ()
        trade = trade_of(formula, strategy)
        if trade is not Trade.NOTHING:
            n_vars, is_kissat = self._renaming.n_vars(formula), Solver.trades_at_restarts(strategy.solver)
            length_max = _KISSATS_LENGTH_MAX if is_kissat else CLAUSE_LENGTH_MAX
            self._proof = ProofStream(length_max, n_vars, Solver.has_binary_proof(strategy.solver))
            self.fds += (self._proof.fd,)
        if trade is Trade.BOTH_WAYS:
            self._inlet, self._childs_inlet = ClausePipe.pair()
            self.fds += (self._childs_inlet.fileno(),)

    # --- in the worker process ----------------------------------------------------------------

    def learned(self) -> Clauses:
        """Return the clauses learned since the last call, without clauses known before, best first."""
        if self._proof is None:
            return Clauses.none()
        self._focuses[0] = self._strategy.leaves_stable_phases and not self._is_undisturbed
        return self._known.take_new(self._renaming.undo_clauses(self._proof.take(_LEARNED_LITERALS_MAX)))

    def skip_learned(self) -> None:
        """Discard learned clauses, because no other search can use them."""
        if self._proof is not None:
            self._focuses[0] = False
            self._proof.skip()

    def give(self, clauses: Clauses) -> int:
        """Give clauses to the solver; return the number of clauses that are sent."""
        if self._inlet is None:
            return 0
        new = self._known.take_new(clauses)
        if self._is_undisturbed:
            self._missed.add(new)
            return 0
        together = self._missed.with_new(new)
        self._inlet.send(self._renaming.apply_to_clauses(together))
        return len(together)

    @property
    def _is_undisturbed(self) -> bool:
        return self._goes_its_way and self.cpu_s() * max(self._searches(), 2) < 2 * UNDISTURBED_S

    def close(self) -> None:
        self._focuses.close()
        self._board.close()
        if self._proof is not None:
            self._proof.close()
        if self._inlet is not None:
            self._inlet.close()
            self._childs_inlet.close()

    # --- in the child process -------------------------------------------------------------------

    def run(self) -> Result:
        self._figures = self._board.begin()
        breaking = self._breaking_clauses()
        strategy = replace(self._strategy, breaks_symmetries=bool(breaking))
        solver = set_up(strategy)
        if self._proof is not None and not breaking:  # clauses learned with `breaking` must not be shared
            solver.trace_proof(os.fdopen(os.dup(self._proof.fd), "w+b", buffering=0))
        task = Task(self._formula, strategy, self._renaming, solver)
        for clause in breaking:
            solver.add_clause(clause)
        if self._proof is not None and Solver.trades_at_restarts(self._strategy.solver):
            solver.at_restarts(lambda: self.trade(solver), _EXCHANGE_INTERVAL_S)
            return task.result(solver.solve(task.assumptions))
        if self._inlet is None:
            return task.result(solver.solve(task.assumptions))
        return task.result(self._search_in_slices(solver, task.assumptions, self._childs_inlet))

    def _breaking_clauses(self) -> list[list[int]]:
        """Return symmetry-breaking clauses over the solver's variables and new variables."""
        if not self._strategy.breaks_symmetries or self._formula.assumptions.size:
            return []
        return breaking_clauses(self._renaming.apply(self._formula))

    def trade(self, solver: Solver) -> None:
        """Give learned clauses and take foreign clauses, at a restart of the search."""
        solver.flush_proof()
        if self._strategy.leaves_stable_phases:
            solver.focus(bool(self._focuses[0]))
        if self._inlet is not None:
            for clauses in self._childs_inlet.received():
                self._figures.came += len(clauses)
                self._figures.used += solver.give(clauses)
            self._figures.removed = solver.removed
            self._figures.waited_s = self._childs_inlet.waited_s
        self._figures.conflicts = solver.conflicts
        self._board.write(self._figures)

    def _search_in_slices(self, solver: Solver, assumptions: list[int], inlet: ClausePipe) -> Verdict:
        conflicts, searched_s, figures = _FIRST_CONFLICTS, 0.0, self._figures
        while True:
            began_s = time.process_time()
            answer = solver.solve_for(conflicts, assumptions)
            if answer is not Verdict.UNDECIDED:
                return answer
            took_s = max(time.process_time() - began_s, 1e-6)
            searched_s += took_s
            wanted_s = min(max(_SLICE_MIN_S, _SLICE_SHARE * searched_s), _SLICE_MAX_S)
            factor = min(max(wanted_s / took_s, 0.3), 3.0)
            conflicts = int(min(max(conflicts * factor, _CONFLICTS_MIN), _CONFLICTS_MAX))
            solver.flush_proof()
            for clauses in inlet.received():
                figures.came += len(clauses)
                for clause in clauses.lists():
                    solver.add_clause(clause)
            figures.used, figures.waited_s, figures.conflicts = figures.came, inlet.waited_s, solver.conflicts
            self._board.write(figures)


def trade_of(formula: Formula, strategy: Strategy) -> Trade:
    """Return the strategy's trade if its solver is capable of it on this formula, else NOTHING.

    Kissat gets assumptions as clauses, so with assumptions its learned clauses would depend on them.
    """
    is_kissat = strategy.trade is not Trade.NOTHING and not Solver.takes_assumptions(strategy.solver)
    if is_kissat and (formula.assumptions.size or not Solver.trades_at_restarts(strategy.solver)):
        return Trade.NOTHING
    return strategy.trade
