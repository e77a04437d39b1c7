"""The problem that all workers of a job compute alike: formula, soft literals, costs of assignments.

A soft clause of one literal becomes a soft literal. A longer soft clause C gets a new variable b, numbered
from n_vars + 1 in the order of the clauses, the hard clause (C or b), and the soft literal -b. Weights of
equal soft literals add up; if a literal and its negation are soft, the smaller weight is a cost that cannot
be avoided. All workers number these variables alike, so variables up to `Problem.n_all` have the same meaning
in all workers, and clauses over these variables may be exchanged.

The cost of a model must be computed by `Problem.cost`, which checks the clauses of the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Formula, Literals

#: a model: variable v's literal at position v - 1
Model = Literals


class Problem:
    """A weighted formula in normal form. All costs include `base`, which every assignment has."""

    def __init__(self, payload: Mapping[str, NDArray[Any]]) -> None:
        self.n_vars, self.base = (int(number) for number in payload["shape"])
        self.hard = _formula(payload["hard"], self.n_vars)
        self._soft = _formula(payload["soft"], self.n_vars)
        self._weights: NDArray[np.uint64] = payload["weights"]
        self._starts, self._ends = self._soft.bounds()
        #: hard clauses (C or b) of soft clauses with several literals
        self.relaxed: list[list[int]] = []
        #: number of variables that have the same meaning in all workers
        self.n_all = self.n_vars
        #: soft literal -> weight
        self.soft: dict[int, int] = {}
        #: smallest cost that every assignment has
        self.unavoidable = self.base
        self._make_soft_literals()

    @property
    def cost_max(self) -> int:
        """Return the cost of an assignment that falsifies all soft clauses."""
        return self.base + int(self._weights.sum(dtype=np.uint64))

    @property
    def n_literals(self) -> int:
        return len(self.hard.literals) + len(self._soft.literals)

    def clauses(self) -> tuple[list[list[int]], list[list[int]], list[int]]:
        """Return hard clauses, soft clauses and their weights, without repeated literals and tautologies."""
        hard = [clause for clause in _distinct(self.hard) if clause is not None]
        soft = list(zip(_distinct(self._soft), self._weights.tolist(), strict=True))
        kept = [(clause, weight) for clause, weight in soft if clause is not None]
        return hard, [clause for clause, _ in kept], [weight for _, weight in kept]

    def _make_soft_literals(self) -> None:
        literals = self._soft.literals.tolist()
        weights: dict[int, int] = {}
        bounds = zip(self._starts.tolist(), self._ends.tolist(), self._weights.tolist(), strict=True)
        for start, end, weight in bounds:
            clause = literals[start:end]
            distinct = set(clause)
            if any(-literal in distinct for literal in distinct):
                continue  # a tautology
            if len(distinct) == 1:
                literal = clause[0]
            else:
                self.n_all += 1
                self.relaxed.append([*distinct, self.n_all])
                literal = -self.n_all
            weights[literal] = weights.get(literal, 0) + weight
        for literal, weight in weights.items():
            opposite = weights.get(-literal, 0)
            if weight > opposite:
                self.soft[literal] = weight - opposite
            if literal > 0:
                self.unavoidable += min(weight, opposite)

    def cost(self, model: Model) -> int | None:
        """Return the cost of an assignment of variables 1 to n_vars; None if a hard clause is false."""
        model = model[: self.n_vars]
        if self.hard.first_falsified(model) is not None:
            return None
        return self.soft_cost(model)

    def soft_cost(self, model: Model) -> int:
        """Return the cost of an assignment, even if it falsifies hard clauses."""
        if not self._soft.literals.size:
            return self.base
        signed = np.concatenate((np.zeros(1, np.int32), model[: self.n_vars]))
        literals = self._soft.literals
        is_true = (signed[np.abs(literals)] == literals) & (literals != 0)
        satisfied = np.logical_or.reduceat(is_true, self._starts)
        return self.base + int(self._weights[~satisfied].sum(dtype=np.uint64))


def _distinct(formula: Formula) -> Iterator[list[int] | None]:
    """Yield each clause without repeated literals, or None for a tautology."""
    literals = formula.literals.tolist()
    starts, ends = formula.bounds()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        distinct = set(literals[start:end])
        yield None if any(-literal in distinct for literal in distinct) else list(distinct)


def _formula(literals: Literals, n_vars: int) -> Formula:
    return Formula(literals, n_vars, int(np.count_nonzero(literals == 0)), np.zeros(0, np.int32))
