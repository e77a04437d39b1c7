"""A SAT solver that several searches of one worker share, a slice of time at a time.

Searches are generators: they yield after each slice, so that one thread can alternate between several
searches and read messages in between. PySAT's solvers cannot be interrupted during a call, so each call has a
budget of conflicts that takes about a slice.

A solver's learnt clauses are read from its proof if their variables have the same meaning in all workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Sequence
from typing import TypeAlias, TypeVar

from mallob_maxsat.problem import Model, Problem
from mallob_sat.clauses import Clauses, ProofStream
from mallob_sat.solvers import Solver, Verdict

Search = Generator[None, None, None]
T = TypeVar("T")
Asking: TypeAlias = Generator[None, None, T]

SLICE_S = 0.1
_CONFLICTS_MIN, _CONFLICTS_MAX = 50, 1_000_000
#: greatest length of learnt clauses that are worth sending
_CLAUSE_LENGTH_MAX = 8


class Oracle:
    """A solver with the hard clauses and the clauses that searches add. Several searches may share it.

    `is_told`: whether the solver's learnt clauses are sent to other workers.
    """

    def __init__(self, problem: Problem, engine: str, *, is_told: bool = False) -> None:
        self._solver = Solver(engine)
        self._proof: ProofStream | None = None
        if is_told:
            self._proof = ProofStream(_CLAUSE_LENGTH_MAX, problem.n_all, Solver.has_binary_proof(engine))
            self._solver.trace_proof(os.fdopen(os.dup(self._proof.fd), "w+b", buffering=0))
        self._solver.add_formula(problem.hard)
        for clause in problem.relaxed:
            self._solver.add_clause(clause)
        #: largest variable in use
        self.top = problem.n_all
        self._solver.declare_variables(self.top)
        #: number of conflicts that take about a slice
        self._slice_conflicts = 1000
        self._gave_way_s = time.perf_counter()
        #: model that answers the last satisfiable question of the search that runs now
        self.model: Model | None = None
        self.core: list[int] = []

    def new_variable(self) -> int:
        self.top += 1
        return self.top

    def new_variables(self, top: int) -> None:
        """Reserve all variables up to `top`."""
        self.top = max(self.top, top)

    def add(self, clause: Sequence[int]) -> None:
        self._solver.add_clause(clause)

    def add_all(self, clauses: Iterable[Sequence[int]]) -> None:
        for clause in clauses:
            self._solver.add_clause(clause)

    def learned(self) -> Clauses:
        """Return the short clauses learned since the last call whose variables all workers know.

        The clauses follow from the added clauses alone, without any assumption.
        """
        if self._proof is None:
            return Clauses.none()
        self._solver.flush_proof()
        return self._proof.take()

    def skip_learned(self) -> None:
        """Discard the clauses that have been learned so far."""
        if self._proof is not None:
            self._solver.flush_proof()
            self._proof.skip()

    def prefer(self, literals: Sequence[int]) -> None:
        """Prefer these literals in decisions."""
        self._solver.set_phases(literals)

    @property
    def conflicts(self) -> int:
        """Return the solver's number of conflicts."""
        return self._solver.conflicts

    def propagate(self, literals: Sequence[int]) -> tuple[bool, list[int]]:
        return self._solver.propagate(literals)

    def ask(self, assumptions: Sequence[int], conflicts: int | None = None) -> Asking[Verdict]:
        """Ask whether a solution satisfies the assumptions; UNDECIDED after about `conflicts` conflicts."""
        left = conflicts
        while True:
            budget = self._slice_conflicts if left is None else min(left, self._slice_conflicts)
            begin_s = time.perf_counter()
            verdict = self._solver.solve_for(budget, assumptions)
            took_s = time.perf_counter() - begin_s
            if verdict is Verdict.SATISFIABLE:
                self._solver.declare_variables(self.top)
                model = self._solver.model()
                yield from self.give_way()
                self.model = model  # other searches may have asked meanwhile
                return verdict
            if verdict is Verdict.UNSATISFIABLE:
                core = self._solver.core()
                yield from self.give_way()
                self.core = core
                return verdict
            if budget == self._slice_conflicts:
                fitted = budget * SLICE_S / max(took_s, 1e-4)
                self._slice_conflicts = int(
                    min(max(fitted, budget / 2, _CONFLICTS_MIN), 2 * budget, _CONFLICTS_MAX)
                )
            if left is not None:
                left -= budget
                if left <= 0:
                    yield from self.give_way()
                    return verdict
            yield from self.give_way()

    def give_way(self) -> Search:
        """Yield to other searches if the slice is over."""
        if time.perf_counter() >= self._gave_way_s + SLICE_S / 2:
            yield
            self._gave_way_s = time.perf_counter()
