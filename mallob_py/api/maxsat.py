"""MaxSAT solvers with the interfaces of PySAT and IPAMIR; each question is a job of a service.

`RC2` has the methods of PySAT's class of the same name, `Ipamir` the functions of the interface for
incremental MaxSAT. Each question is solved from scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import numpy as np

from mallob_py.api.client import Client
from mallob_py.api.formulas import clauses_of, literal_of, literals_of, wcnf_text, weight_of, weighted_of
from mallob_py.api.optimization import Optimum, Task
from mallob_py.api.settled import awaited


class RC2:
    """Finds the solutions of a weighted formula, the cheapest first."""

    def __init__(self, formula: Any, client: Client, **fields: Any) -> None:
        """Create a solver of a formula.

        Args:
            formula: an object with `hard`, `soft` and `wght`, such as PySAT's `WCNF`.
            client: the client that hands in the jobs.
            **fields: arguments of `Client.submit`, for each job.
        """
        self._client = client
        self._fields = fields
        hard, self._soft = weighted_of(formula)
        self._hard = [hard]
        #: cost of the last solution
        self.cost = 0

    def __enter__(self) -> RC2:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delete()

    def add_clause(self, clause: Iterable[int], weight: int | None = None) -> None:
        """Add a clause: soft if it has a `weight`, else hard."""
        if weight is None:
            self._hard.append(clauses_of([clause]))
        else:
            self._soft.append((weight_of(weight), literals_of(clause)))

    def compute(self) -> list[int] | None:
        """Find a solution of smallest cost, and set `cost`.

        Returns:
            One literal per variable; None if there is no solution.

        Raises:
            TimeoutError: a limit ended the job before an optimum was known.
        """
        task = Task(None, wcnf_text(np.concatenate(self._hard), self._soft))
        best = awaited(self._client.optimize(task, **self._fields))
        if best.satisfiable is False:
            return None
        if not best.is_optimal:
            raise TimeoutError(f"no optimum within the limits; the best cost found is {best.value}")
        assert best.model is not None
        assert best.value is not None
        self.cost = best.value
        return [int(literal) for literal in best.model]

    def enumerate(self) -> Iterator[list[int]]:
        """Yield all solutions, the cheapest first, and set `cost` for each. Raises as `compute` does."""
        while (model := self.compute()) is not None:
            yield model
            self.add_clause([-literal for literal in model])

    def delete(self) -> None:
        """Do nothing: the solver holds nothing to be released."""


class Ipamir:
    """A solver with the IPAMIR interface: hard clauses, soft literals, and assumptions for one question."""

    def __init__(self, client: Client, **fields: Any) -> None:
        self._client = client
        self._fields = fields
        self._hard: list[list[int]] = []
        self._clause: list[int] = []
        self._weights: dict[int, int] = {}
        self._assumptions: list[int] = []
        self._best: Optimum | None = None

    def add_hard(self, literal_or_zero: int) -> None:
        """Add a literal to the open clause; 0 closes the clause."""
        if literal_or_zero != 0:
            self._clause.append(literal_of(literal_or_zero))
        else:
            self._hard.append(self._clause)
            self._clause = []

    def add_soft(self, literal: int, weight: int) -> None:
        """Charge `weight` to solutions in which `literal` is true; a later weight replaces the former one."""
        self._weights[literal_of(literal)] = weight_of(weight)

    def assume(self, literal: int) -> None:
        """Assume a literal for the next question only."""
        self._assumptions.append(literal_of(literal))

    def solve(self) -> int:
        """Solve; return 30 (optimal solution), 20 (no solution), 10 (a solution) or 0 (none in time)."""
        if self._clause:
            raise ValueError(f"the clause {self._clause} is not closed by 0")
        hard = clauses_of([*self._hard, *([literal] for literal in self._assumptions)])
        soft = [(weight, [-literal]) for literal, weight in self._weights.items()]
        self._assumptions = []
        task = Task(None, wcnf_text(hard, soft))
        self._best = awaited(self._client.optimize(task, **self._fields))
        code: int = self._best.reply["result"]["resultcode"]
        return code

    def val_obj(self) -> int:
        """Return the cost of the last solution. Raises ValueError if there is none."""
        if self._best is None or self._best.value is None:
            raise ValueError("there is no solution: the last answer was not 10 or 30")
        return self._best.value

    def val_lit(self, literal: int) -> int:
        """Return the literal if true in the last solution, else its negation; 0: either will do."""
        if self._best is None or self._best.model is None:
            raise ValueError("there is no solution: the last answer was not 10 or 30")
        if abs(literal) > len(self._best.model):
            return 0
        return literal if self._best.model[abs(literal) - 1] == literal else -literal
