"""Revisions of a growing formula: one solver, in the worker process itself, answers all of them.

Each revision adds clauses and has assumptions of its own. The solver keeps its clauses and its learned
clauses (which follow from the clauses alone: see `sharing`, Soundness), and gets only the new clauses. So a
revision that changes little is answered quickly. Each revision comes with all clauses so far, so a process
without a solver can make a new one.

The search runs in slices; between slices the worker learns whether its revision is over.

Guarantees: a model is checked against all clauses and assumptions; for UNSAT the solution contains
assumptions that cannot hold together, or nothing if the clauses alone cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mallob_py.kit import InputError, Payload, Result, WorkerContext
from mallob_sat.declaration import SATISFIABLE, UNSATISFIABLE
from mallob_sat.formula import Formula, Literals
from mallob_sat.modes import packed, wants_packed, wishes_of
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.search import check_model, random_phases, set_up
from mallob_sat.solvers import Verdict

#: solvers that take clauses and assumptions between calls and can be stopped. maplesat is left out (it
#: crashes on some revisions), and maplechrono (it is ten times slower than other maple solvers)
ENGINES = (
    "cadical195",
    "cadical153",
    "cadical300",
    "glucose42",
    "glucose4",
    "glucose3",
    "maplecm",
    "mergesat3",
    "minisat22",
    "minisat-gh",
    "ergo",
)
#: number of conflicts of the first slice, which suffices for trivial revisions
_FIRST_CONFLICTS = 1000
_CONFLICTS_MIN = 100
#: length of a slice, the longest time until a process turns to the next revision
_SLICE_S = 0.25


def grown(former: Payload | None, revision: Formula) -> Formula:
    """Return the clauses of all revisions so far, in order, with the assumptions of `revision`."""
    if former is None:
        return revision
    before = Formula.from_payload(former)
    return Formula(
        np.concatenate((before.literals, revision.literals)),
        max(before.n_vars, revision.n_vars),
        before.n_clauses + revision.n_clauses,
        revision.assumptions,
    )


class Revisions:
    """The solver of one chain, which a worker process keeps between revisions."""

    def __init__(self) -> None:
        self._chain = 0
        self._portfolio: Portfolio | None = None
        self._solver: _GrowingSolver | None = None

    @staticmethod
    def check(configuration: Mapping[str, Any]) -> None:
        """Raise InputError for wishes that incremental jobs do not support."""
        for wish in wishes_of(configuration):
            name = "checked answer" if wish == "checked" else wish
            raise InputError(f"incremental jobs support no {name}; leave it out", "configuration")
        if configuration.get("agreement", 1) != 1:
            raise InputError("incremental jobs support no agreement; leave it out", "configuration")
        portfolio_of(configuration)

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        """Decide a revision. Raises RuntimeError if the solver's model is wrong."""
        result = self._solver_for(context, formula).solve(formula, context.poll)
        return packed(result) if wants_packed(context.configuration) else result

    def _solver_for(self, context: WorkerContext, formula: Formula) -> _GrowingSolver:
        portfolio, solver = portfolio_of(context.configuration), self._solver
        is_same = (self._chain, self._portfolio) == (context.chain, portfolio)
        if solver is None or not is_same or not solver.is_prefix_of(formula):
            self._solver = None  # frees the old solver's memory first
            solver = self._solver = _GrowingSolver(portfolio.strategy(context.index * context.threads))
            self._chain, self._portfolio = context.chain, portfolio
        return solver


def portfolio_of(configuration: Mapping[str, Any]) -> Portfolio:
    """Return a portfolio of solvers that support revisions. Raises InputError if others are named."""
    portfolio = Portfolio.from_configuration(configuration).restricted_to(ENGINES, "take revisions")
    return replace(portfolio, shares=False, renames=False)


class _GrowingSolver:
    """A solver, and the length of the part of the formula that it has."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._solver = set_up(strategy)
        self._names: _Names | None = None
        self._is_new = True
        self._taken_in = 0
        #: whether the clauses are unsatisfiable without any assumption
        self._is_refuted = False

    def is_prefix_of(self, formula: Formula) -> bool:
        """Tell whether this solver can take in the formula, and a new solver would not be better."""
        return self._taken_in <= formula.literals.size and (
            self._names is not None or not _is_sparse(formula)
        )

    def solve(self, formula: Formula, look_around: Callable[[], object]) -> Result:
        fields = {"solver": self._strategy.title, "new_clauses": self._take_in(formula)}
        if self._is_refuted:
            return Result(UNSATISFIABLE, [], fields)
        assumed = set(formula.assumptions.tolist())
        if clashing := [literal for literal in assumed if -literal in assumed]:
            variable = min(map(abs, clashing))
            return Result(UNSATISFIABLE, [-variable, variable], fields)
        if self._search(formula, look_around) is Verdict.UNSATISFIABLE:
            core = self._original(self._solver.core())
            self._is_refuted = not core
            return Result(UNSATISFIABLE, core, fields)
        model = self._model(formula)
        check_model(formula, model, self._strategy)
        return Result(SATISFIABLE, model, fields)

    def _take_in(self, formula: Formula) -> int:
        """Give the solver the clauses that it lacks; return their number."""
        is_first, self._is_new = self._is_new, False
        literals = formula.literals[self._taken_in :]
        self._taken_in = formula.literals.size
        new = Formula(literals, formula.n_vars, int(np.count_nonzero(literals == 0)), formula.assumptions)
        if new.has_empty_clause or self._is_refuted:
            self._is_refuted = True
            return new.n_clauses
        if is_first and _is_sparse(formula):
            self._names = _Names()
        if self._names is not None:
            self._names.add(literals)
            self._names.add(formula.assumptions)
            new = Formula(self._names.of(literals), self._names.count, new.n_clauses, formula.assumptions)
        self._solver.add_formula(new)
        if is_first and self._strategy.phase_seed is not None:
            self._solver.set_phases(random_phases(new.n_vars, self._strategy.phase_seed))
        return new.n_clauses

    def _search(self, formula: Formula, look_around: Callable[[], object]) -> Verdict:
        assumptions = formula.assumptions
        named: list[int] = (assumptions if self._names is None else self._names.of(assumptions)).tolist()
        conflicts = _FIRST_CONFLICTS
        while True:
            began_s = time.process_time()
            answer = self._solver.solve_for(conflicts, named)
            if answer is not Verdict.UNDECIDED:
                return answer
            look_around()
            took_s = max(time.process_time() - began_s, 1e-6)
            conflicts = max(_CONFLICTS_MIN, int(conflicts * min(max(_SLICE_S / took_s, 0.3), 3.0)))

    def _original(self, literals: list[int]) -> list[int]:
        return literals if self._names is None else self._names.undo(np.array(literals, np.int32)).tolist()

    def _model(self, formula: Formula) -> Literals:
        """Return a model of all variables; variables that never occur are false."""
        model = self._solver.model()
        if self._names is None:
            return model[: formula.n_vars]
        full = -np.arange(1, formula.n_vars + 1, dtype=np.int32)
        known = self._names.undo(model)
        full[np.abs(known) - 1] = known
        return full


def _is_sparse(formula: Formula) -> bool:
    """Tell whether few variables occur. Solvers take memory for every variable up to the largest."""
    return formula.n_vars > 100_000 + 2 * (formula.literals.size + formula.assumptions.size)


class _Names:
    """Short names 1, 2, 3, ... for variables, in order of appearance."""

    def __init__(self) -> None:
        #: named variables; a variable's index is its name
        self._variables = np.zeros(1, dtype=np.int32)
        #: variables in ascending order, and their names
        self._sorted = np.zeros(1, dtype=np.int32)
        self._names = np.zeros(1, dtype=np.int32)

    @property
    def count(self) -> int:
        return self._variables.size - 1

    def add(self, literals: Literals) -> None:
        """Give names to the variables that have none; 0 stays 0."""
        new = np.setdiff1d(np.abs(literals), self._sorted)
        if new.size:
            self._variables = np.concatenate((self._variables, new)).astype(np.int32)
            order = np.argsort(self._variables, kind="stable")
            self._sorted = self._variables[order]
            self._names = order.astype(np.int32)

    def of(self, literals: Literals) -> Literals:
        """Return the names of literals, which must all have one."""
        names = self._names[np.searchsorted(self._sorted, np.abs(literals))]
        return (names * np.sign(literals)).astype(np.int32)

    def undo(self, literals: Literals) -> Literals:
        return (self._variables[np.abs(literals)] * np.sign(literals)).astype(np.int32)
