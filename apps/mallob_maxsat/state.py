"""The knowledge of one worker: the best model, its cost, and a bound that no solution's cost is below.

All of a worker's searches share it, and workers tell each other. A search may assume that only solutions are
wanted that cost less than `upper`: so "no solution" then means that the model known is optimal, or, if there
is none, that the hard clauses have no solution at all.
"""

from __future__ import annotations

from mallob_maxsat.problem import Model, Problem


class Bounds:
    """`lower` <= cost of every solution that is better than `model`; `upper` is one above what can be."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.lower = problem.unavoidable
        self.upper = problem.cost_max + 1
        self.model: Model | None = None
        #: counts changes, for those who look now and then
        self.version = 0

    @property
    def is_closed(self) -> bool:
        """Whether there is nothing left to find."""
        return self.lower >= self.upper

    def found(self, model: Model) -> bool:
        """A model: believed as far as it holds. True if it is better than the one known.

        Raises RuntimeError if it would be and breaks a hard clause.
        """
        cost = self._problem.soft_cost(model)
        if cost >= self.upper:
            return False
        if self._problem.cost(model) is None:
            raise RuntimeError("a solver's model does not satisfy the hard clauses")
        self.model, self.upper = model[: self._problem.n_vars].copy(), cost
        self.version += 1
        return True

    def raise_lower(self, bound: int) -> None:
        """No solution that is better than the model known costs less than that."""
        if bound > self.lower:
            self.lower = min(bound, self.upper)
            self.version += 1

    def close(self) -> None:
        """No solution is better than the model known."""
        self.raise_lower(self.upper)
