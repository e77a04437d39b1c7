"""The MAXSAT application: finds the smallest cost of an assignment that satisfies all hard clauses.

Workers of a job have different roles (`roles`) and exchange bounds, models and clauses (`talk`). The worker
that sees the bounds meet ends the job. Workers offer earlier results (`WorkerContext.offer`), so that a job
at its limit is answered with the best known solution and the proved bound.

Guarantees: a solution assigns variables 1..n_vars in order and satisfies the hard clauses, and its cost is
counted on the clauses of the input. OPTIMUM FOUND (30) and UNSATISFIABLE (20) rely on a solver's proof that
nothing better exists, which is not checked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from typing import Any

from mallob_maxsat.declaration import OPTIMUM, SATISFIABLE, UNSATISFIABLE, MaxSatDeclaration
from mallob_maxsat.keeping import Keeping
from mallob_maxsat.oracle import Oracle
from mallob_maxsat.problem import Problem
from mallob_maxsat.roles import ROLES_MAX, Running, next_of, searches_of
from mallob_maxsat.state import Bounds
from mallob_maxsat.talk import Talk
from mallob_maxsat.wcnf import read_wcnf
from mallob_py.kit import Application, InputError, JobInput, Payload, Result, WorkerContext
from mallob_py.kit.input_file import read_text
from mallob_sat.clauses import Clauses
from mallob_sat.formula import check_numbering

#: time after which a job that is not solved requests further workers
_ALONE_S = 0.1
#: time between two fetches of learnt clauses from solvers
_SHARING_PERIOD_S = 0.3
_REFUSED = {
    "proof": "MAXSAT writes no proofs; proofs are for SAT",
    "solutions": "MAXSAT gives one solution, of the smallest cost",
    "core": "MAXSAT gives no cores; cores are for SAT",
}


class MaxSatApplication(MaxSatDeclaration, Application):
    """The application MAXSAT. It bounds the cost of a weighted formula from below and from above at once."""

    def check(self, configuration: Mapping[str, Any]) -> None:
        for key, value in configuration.items():
            if key in _REFUSED:
                raise InputError(f"'{key}': {_REFUSED[key]}", "configuration")
            if key != "sharing":
                raise InputError(f"unknown key '{key}'; the only key is 'sharing'", "configuration")
            if not isinstance(value, bool):
                raise InputError(f"'sharing' must be true or false, not {value!r:.40}", "configuration")

    def read(self, job: JobInput) -> Payload:
        if job.literals is not None or job.assumptions:
            raise InputError("MAXSAT takes no literals; name a file with the weighted formula", "literals")
        if len(job.files) != 1:
            raise InputError(f"one formula file is needed, {len(job.files)} given")
        path = job.files[0]
        formula = read_wcnf(read_text(path), path)
        check_numbering(formula.n_vars, formula.hard.size + formula.soft.size, "files")
        return formula.to_payload()

    def run(self, context: WorkerContext) -> Result | None:
        return Worker(context).run()


class Worker:
    """One worker of a job, from its start to the answer."""

    def __init__(self, context: WorkerContext) -> None:
        self._alone_until_s = time.monotonic() + _ALONE_S
        self._context = context
        self._problem = Problem(context.payload)
        self._bounds = Bounds(self._problem)
        self._is_sharing = bool(context.configuration.get("sharing", False))
        self._talk = Talk(context, self._bounds, self._problem.n_vars, with_clauses=self._is_sharing)
        self._keeping = Keeping(context, self._bounds, self._problem.n_vars)
        self._next_sharing_s = 0.0
        self._told = -1
        self._told_upper: int | None = None

    def run(self) -> Result:
        context, bounds = self._context, self._bounds
        if self._problem.hard.has_empty_clause:
            bounds.close()
            return self._answer()
        began_s = time.monotonic()
        running = list(searches_of(context.index, self._problem, bounds, is_told=self._is_sharing))
        while not bounds.is_closed:
            now_s = time.monotonic() - began_s
            following = next_of(
                running, now_s, has_solution=bounds.model is not None, is_helped=self._is_helped
            )
            self._advance(following)
            self._ask_for_workers()
            self._talk.turn(context.poll())
            if self._is_sharing:
                self._share_clauses(running)
            self._offer()
            self._keeping.turn()
        return self._answer()

    def _ask_for_workers(self) -> None:
        if self._context.index == 0 and time.monotonic() >= self._alone_until_s:
            self._alone_until_s = math.inf
            self._context.set_demand(ROLES_MAX)

    @property
    def _is_helped(self) -> bool:
        return self._context.index == 0 and self._context.volume > 1

    def _advance(self, one: Running) -> None:
        begin_s, upper = time.perf_counter(), self._bounds.upper
        if next(one.search, StopIteration) is StopIteration:
            assert self._bounds.is_closed, f"{one.name} has ended without an answer"
        one.charge(time.perf_counter() - begin_s, is_helped=self._is_helped)
        one.found(self._bounds.upper < upper)

    def _share_clauses(self, running: list[Running]) -> None:
        """Exchange learnt clauses with other workers and among this worker's solvers."""
        oracles = list(dict.fromkeys(one.oracle for one in running if one.oracle is not None))
        now_s = time.monotonic()
        if now_s >= self._next_sharing_s:
            self._next_sharing_s = now_s + _SHARING_PERIOD_S
            if self._context.volume == 1 and len(oracles) == 1:
                for oracle in oracles:
                    oracle.skip_learned()
            else:
                for oracle in oracles:
                    self._give(self._talk.note_clauses(oracle.learned()), oracles, but=oracle)
        for one in running:
            if one.below is not None:
                self._give(self._talk.note_clauses(one.below.take_cores()), oracles, but=one.oracle)
        self._give(self._talk.take_heard(), oracles)

    @staticmethod
    def _give(clauses: Clauses, oracles: Collection[Oracle], but: Oracle | None = None) -> None:
        if len(clauses):
            for oracle in oracles:
                if oracle is not but:
                    oracle.add_all(clauses.lists())

    def _offer(self) -> None:
        bounds = self._bounds
        if bounds.version == self._told:
            return
        self._told = bounds.version
        if bounds.model is not None and bounds.upper != self._told_upper:
            self._told_upper = bounds.upper
            self._context.offer(self._result(SATISFIABLE), value=bounds.upper)
        self._context.offer(bound=bounds.lower)

    def _result(self, code: int) -> Result:
        return Result(code, self._bounds.model, {"cost": self._bounds.upper})

    def _answer(self) -> Result:
        if self._bounds.model is None:
            return Result(UNSATISFIABLE)
        return self._result(OPTIMUM)
