"""The knowledge of one worker: the best model, its cost, and a lower bound on the cost of every solution.

All searches of a worker share this knowledge, and workers exchange it. A search may exclude solutions that
cost `upper` or more: "no solution" then means that the known model is optimal, or, if no model is known, that
the hard clauses have no solution at all.
"""

from __future__ import annotations

from mallob_maxsat.problem import Model, Problem


class Bounds:
    """Bounds on the cost of solutions better than `model`: `lower` <= cost < `upper`."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.lower = problem.unavoidable
        self.upper = problem.cost_max + 1
        self.model: Model | None = None
        #: number of changes so far, so that searches notice changes
        self.version = 0

    @property
    def is_closed(self) -> bool:
        """Tell whether the bounds have met."""
        return self.lower >= self.upper

    def found(self, model: Model) -> bool:
        """Check a model and keep it if it is better than the known model; return whether it is better.

        Raises RuntimeError if a better model falsifies a hard clause.
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
        """Raise the lower bound: no solution better than the known model costs less than `bound`."""
        if bound > self.lower:
            self.lower = min(bound, self.upper)
            self.version += 1

    def close(self) -> None:
        """Close the gap: no solution is better than the known model."""
        self.raise_lower(self.upper)
