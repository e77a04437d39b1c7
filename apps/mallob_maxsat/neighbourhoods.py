"""Neighbourhoods of a solution: sets of variables that a search may change while all others keep their
values.

A neighbourhood is either a cluster of variables that share clauses, around a false soft literal, or the
variables that are free when most of the true soft literals are kept. Literals that bound the same number,
such as a job's end (`end <= 5` implies `end <= 6`), are kept or freed together, because a single kept literal
would fix the number. Neighbourhoods grow when a search soon proves that there is nothing better, and shrink
when a search is not finished in time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from mallob_maxsat.problem import Model, Problem
from mallob_sat.solvers import Verdict

_GROWTH, _SHRINKAGE = 1.15, 0.7
_SIZE_MIN = 4.0
#: groups of soft literals are used only if the largest has at most 1 / _NUMBERS_MIN of the literals
_NUMBERS_MIN = 4


class Neighbourhoods:
    """The neighbourhoods of one search; searches differ by `seed`."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem = problem
        self._choose = random.Random(seed)
        self._clauses: list[list[int]] = []
        #: for each variable, the indices of its clauses
        self._occurrences: list[list[int]] = [[] for _ in range(problem.n_all + 1)]
        hard = problem.hard.literals.tolist()
        starts, ends = problem.hard.bounds()
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            self._note(hard[start:end])
        for clause in problem.relaxed:
            self._note(clause)
        self._soft = list(problem.soft)
        self._numbers = _numbers(problem)
        self._is_local = True
        self._local_size, self._kept_share = 20.0, 0.9

    def _note(self, clause: Sequence[int]) -> None:
        variables = [abs(literal) for literal in clause]
        for variable in variables:
            self._occurrences[variable].append(len(self._clauses))
        self._clauses.append(variables)

    def kept(self, model: Model) -> list[int]:
        """Choose a neighbourhood of a solution; return literals that fix the variables outside of it."""
        self._is_local = self._choose.random() < 0.5
        values = model.tolist()
        if not self._is_local:
            held = [[one for one in number if self._holds(one, values)] for number in self._numbers]
            held = [number for number in held if number]
            kept = self._choose.sample(held, int(len(held) * self._kept_share))
            return [literal for number in kept for literal in number]
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
        """Adapt the size of neighbourhoods to the answer of the search in the last neighbourhood."""
        if verdict is Verdict.SATISFIABLE:
            return
        change = _GROWTH if verdict is Verdict.UNSATISFIABLE else _SHRINKAGE
        if self._is_local:
            self._local_size = float(np.clip(self._local_size * change, _SIZE_MIN, self._problem.n_vars))
        else:
            self._kept_share = 1 - float(np.clip((1 - self._kept_share) * change, 0.01, 0.95))


def _numbers(problem: Problem) -> list[list[int]]:
    """Return groups of soft literals: a literal that implies another one is in the same group (one number).

    If the largest group has too large a share of the soft literals, each literal is a group of its own.
    """
    number_of = {literal: [literal] for literal in problem.soft}
    literals = problem.hard.literals
    starts, ends = problem.hard.bounds()
    pairs = starts[ends - starts == 2]
    for one, other in zip(literals[pairs].tolist(), literals[pairs + 1].tolist(), strict=True):
        for implying, implied in ((-one, other), (-other, one)):
            if implying in number_of and implied in number_of:
                larger, smaller = number_of[implying], number_of[implied]
                if larger is smaller:
                    continue
                if len(larger) < len(smaller):
                    larger, smaller = smaller, larger
                larger += smaller
                number_of.update(dict.fromkeys(smaller, larger))
    numbers = {id(number): number for number in number_of.values()}.values()
    if max(map(len, numbers), default=0) * _NUMBERS_MIN > len(number_of):
        return [[literal] for literal in number_of]
    return list(numbers)
