"""A solver for CPMpy: encodes models in this process, and has a service solve them.

import cpmpy as cp
from mallob_py import register_cpmpy_solver

register_cpmpy_solver()
model.solve(solver="mallob")                     # the service on the folder .api
model.solve(solver="mallob:/srv/sat/.api")       # another one

Constraints become clauses by CPMpy's transformations and Pindakaas, as in the class `CPM_pindakaas`. A model
without an objective is a SAT job, a model with one a MaxSAT job. Each `solve` hands in the whole formula.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import pindakaas
from cpmpy import SolverLookup
from cpmpy.exceptions import NotSupportedError
from cpmpy.expressions.core import Comparison
from cpmpy.solvers.pindakaas import CPM_pindakaas
from cpmpy.solvers.solver_interface import ExitStatus
from cpmpy.transformations.get_variables import get_variables
from cpmpy.transformations.to_cnf import to_cnf_objective

from mallob_py.api import optimization
from mallob_py.api.client import Client
from mallob_py.api.cpmpy_pairs import Integers
from mallob_py.api.formulas import clauses_of, wcnf_text
from mallob_py.api.settled import awaited

#: name of the solver in CPMpy
NAME = "mallob"
#: greatest number of terms of a weighted sum that is not added up in binary: other encodings propagate
#: better, but take thousands of clauses for one sum over large domains
_SHORT_SUM = 12


def register_cpmpy_solver() -> None:
    """Register the solver "mallob" in CPMpy. Raises ImportError without CPMpy or Pindakaas."""
    known = SolverLookup.base_solvers
    if all(name != NAME for name, _ in known()):
        SolverLookup.base_solvers = classmethod(lambda _: [*known(), (NAME, CpmpySolver)])


class CpmpySolver(CPM_pindakaas):  # type: ignore[misc]
    """CPMpy's solver interface; `subsolver` is the folder of a service."""

    def __init__(self, cpm_model: Any = None, subsolver: str | None = None, client: Client | None = None):
        """Use `client`, which stays open; without `client`, make a client on the folder `subsolver`."""
        self.ivarmap: dict[str, Any] = {}
        self._integers = Integers(self.ivarmap)
        self.encoding = "auto"
        self.pdk_solver = _Remote(client, subsolver or ".api")
        self.unsatisfiable = False
        self.core: list[Any] | None = None
        self._objective: Any = None
        super(CPM_pindakaas, self).__init__(name=NAME, cpm_model=cpm_model)

    @staticmethod
    def version() -> str:
        """Return the version of mallob-py."""
        from mallob_py import __version__

        return __version__

    def has_objective(self) -> bool:
        """Tell whether an objective is set."""
        return self._objective is not None

    def objective(self, expr: Any, minimize: bool) -> None:
        """Set the objective; a later objective replaces it."""
        if isinstance(expr, int):
            raise NotSupportedError(f"{self.name}: the objective {expr} has no variables")
        get_variables(expr, collect=self.user_vars)
        weights, literals, _, constraints = to_cnf_objective(
            -expr if minimize else expr,
            encoding=self.encoding,
            csemap=self._csemap,
            ivarmap=self.ivarmap,
            supported=self.supported_global_constraints,
            supported_reified=self.supported_reified_global_constraints,
        )
        self.add(constraints)
        self._objective = expr
        wanted = [int(literal) for literal in self.solver_vars(literals)]
        self.pdk_solver.soft = [
            (int(weight), [literal]) for weight, literal in zip(weights, wanted, strict=True)
        ]

    def _post_constraint(self, cpm_expr: Any, conditions: Sequence[Any] = ()) -> None:
        if isinstance(cpm_expr, Comparison) and cpm_expr.args[0].name in ("sum", "wsum"):
            total, wanted = cpm_expr.args
            weights, literals = total.args if total.name == "wsum" else ([1] * len(total.args), total.args)
            clauses = self._integers.clauses(weights, literals, cpm_expr.name, wanted)
            if clauses is not None:
                for clause in clauses:
                    self._add_clause(clause, list(conditions))
                return
            if total.name == "wsum" and len(weights) > _SHORT_SUM:
                self.pdk_solver.encoder = pindakaas.Encoder.ADDER
        super()._post_constraint(cpm_expr, list(conditions))
        self.pdk_solver.encoder = None

    def solve(self, time_limit: float | None = None, assumptions: Iterable[Any] | None = None) -> bool:
        """Solve the model.

        Args:
            time_limit: seconds that the job may have a PE.
            assumptions: literals assumed for this call; a model with an objective has no core.

        Returns:
            Whether a solution was found. The status is OPTIMAL, or FEASIBLE if better solutions may exist.

        Raises:
            JobError: the service refused the job, or the job failed.
            ServiceError: no service runs.
        """
        self.core = None
        has_solution: bool = super().solve(time_limit=time_limit, assumptions=assumptions)
        if self.cpm_status.exitstatus is not ExitStatus.UNSATISFIABLE:
            self.core = None
        elif self.unsatisfiable and assumptions is not None:
            self.core = []  # the constraints alone cannot hold, so CPMpy has not called Pindakaas
        self.objective_value_ = None
        if has_solution and self._objective is not None:
            if self.pdk_solver.is_optimal:
                self.cpm_status.exitstatus = ExitStatus.OPTIMAL
            self.objective_value_ = self._objective.value()
        return has_solution


class _Remote(pindakaas.CNF):  # type: ignore[misc]
    """Hard and soft clauses that a service solves, with the solver methods that `CPM_pindakaas` calls."""

    def __init__(self, client: Client | None, api_dir: str | os.PathLike[str]) -> None:
        super().__init__()
        self._client = client
        self._api_dir = api_dir
        #: the objective as soft clauses; None: no objective
        self.soft: Sequence[tuple[int, list[int]]] | None = None
        self.is_optimal = False
        #: encoder of sums; None: Pindakaas chooses one
        self.encoder: Any = None

    def add_encoding(self, constraint: Any, conditions: Any = None) -> None:
        super().add_encoding(constraint, self.encoder, conditions)

    @contextmanager
    def solve(
        self, time_limit: timedelta | None = None, assumptions: Sequence[Any] | None = None
    ) -> Iterator[_Found]:
        assumed = [int(literal) for literal in assumptions or ()]
        limit_s = None if time_limit is None else time_limit.total_seconds()
        clauses = np.array(self.to_dimacs().split("\n", 1)[1].split(), dtype=np.int64)
        with Client(self._api_dir) if self._client is None else nullcontext(self._client) as client:
            if self.soft is None:
                answer = awaited(client.submit(clauses, assumed, time_limit_s=limit_s))
                yield _Found(answer.satisfiable, answer.model, answer.core)
                return
            hard = np.append(clauses_of(clauses), clauses_of([[literal] for literal in assumed]))
            task = optimization.Task(None, wcnf_text(hard, self.soft))
            best = awaited(client.optimize(task, time_limit_s=limit_s))
        self.is_optimal = best.is_optimal
        yield _Found(best.satisfiable, best.model, None)


class _Found:
    """An answer in the form of Pindakaas' solvers."""

    def __init__(self, satisfiable: bool | None, model: Any, core: Sequence[int] | None) -> None:
        statuses = pindakaas.solver.Status
        self.status = {True: statuses.SATISFIED, False: statuses.UNSATISFIABLE, None: statuses.UNKNOWN}[
            satisfiable
        ]
        self._true = frozenset(() if model is None else model.tolist())
        self._core = None if core is None else frozenset(core)

    def value(self, literal: Any) -> bool:
        """Return the value of a literal; variables in no clause are false."""
        number = int(literal)
        return number in self._true if number > 0 else -number not in self._true

    def failed(self, literal: Any) -> bool:
        """Tell whether an assumption is in the core; True for all assumptions if there is no core."""
        return self._core is None or int(literal) in self._core
