"""Neighbourhoods of a solution, in which a better one is looked for with all other variables kept as they
are.

A neighbourhood is either what lies together (variables that share clauses, from a soft literal on that does
not hold), or what is left when most of the soft literals that hold are kept. Its size follows the answers:
where no better solution is found in no time it grows, and where the question is not answered in time it
shrinks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from mallob_maxsat.problem import Model, Problem
from mallob_sat.solvers import Verdict

_GROWTH, _SHRINKAGE = 1.15, 0.7
_SIZE_MIN = 4.0


class Neighbourhoods:
    """The neighbourhoods of one search; `seed` tells it from others."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem = problem
        self._choose = random.Random(seed)
        self._clauses: list[list[int]] = []
        #: of each variable, numbers of clauses
        self._occurrences: list[list[int]] = [[] for _ in range(problem.n_all + 1)]
        hard = problem.hard.literals.tolist()
        starts, ends = problem.hard.bounds()
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            self._note(hard[start:end])
        for clause in problem.relaxed:
            self._note(clause)
        self._soft = list(problem.soft)
        self._is_local = True
        self._local_size, self._kept_share = 20.0, 0.9

    def _note(self, clause: Sequence[int]) -> None:
        variables = [abs(literal) for literal in clause]
        for variable in variables:
            self._occurrences[variable].append(len(self._clauses))
        self._clauses.append(variables)

    def kept(self, model: Model) -> list[int]:
        """Literals to assume: what is outside of a neighbourhood of this solution."""
        self._is_local = self._choose.random() < 0.5
        values = model.tolist()
        if not self._is_local:
            holds = [literal for literal in self._soft if self._holds(literal, values)]
            count = int(len(holds) * self._kept_share)
            return self._choose.sample(holds, count)
        free = self._around(values)
        return [
            values[variable - 1] for variable in range(1, self._problem.n_vars + 1) if variable not in free
        ]

    def _holds(self, literal: int, values: list[int]) -> bool:
        if abs(literal) <= len(values):
            return values[abs(literal) - 1] == literal
        clause = self._problem.relaxed[-literal - self._problem.n_vars - 1]
        return any(values[abs(one) - 1] == one for one in clause if abs(one) <= len(values))

    def _around(self, values: list[int]) -> set[int]:
        lost = [literal for literal in self._soft if not self._holds(literal, values)]
        start = abs(self._choose.choice(lost or self._soft))
        found, front = {start}, [start]
        while front and len(found) < self._local_size:
            at = self._choose.randrange(len(front))
            front[at], front[-1] = front[-1], front[at]
            variable = front.pop()
            occurrences = self._occurrences[variable]
            for number in self._choose.sample(occurrences, min(8, len(occurrences))):
                for other in self._clauses[number]:
                    if other not in found and len(found) < self._local_size:
                        found.add(other)
                        front.append(other)
        return found

    def learn(self, verdict: Verdict) -> None:
        """Note how the question about the last neighbourhood was answered."""
        if verdict is Verdict.SATISFIABLE:
            return
        change = _GROWTH if verdict is Verdict.UNSATISFIABLE else _SHRINKAGE
        if self._is_local:
            self._local_size = float(np.clip(self._local_size * change, _SIZE_MIN, self._problem.n_vars))
        else:
            self._kept_share = 1 - float(np.clip((1 - self._kept_share) * change, 0.01, 0.95))
