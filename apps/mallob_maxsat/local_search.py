"""Stochastic local search from the best solution: flips of single variables, while clauses' weights change.

The search proves nothing, and finds good solutions of large formulas soon. If it does not improve the best
solution for long, it restarts from this solution with the initial weights. (After Lei and Cai 2018, SATLike.)
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from mallob_maxsat import flips
from mallob_maxsat.oracle import SLICE_S, Search
from mallob_maxsat.problem import Model, Problem
from mallob_maxsat.state import Bounds

#: greatest factor by which a soft clause's weight grows
_SOFT_GROWTH_MAX = 100.0
#: step by which a hard clause's weight grows; the mean step of soft clauses is 1
_HARD_GROWTH = 3.0
_PATIENCE_FLIPS = 2_000_000
_LITERALS_MAX = 600_000
#: search time after which a compilation of half a second is worthwhile
_COMPILES_AFTER_S = 0.5


class LocalSearch:
    """One local search; searches differ by `seed`."""

    def __init__(self, problem: Problem, bounds: Bounds, seed: int) -> None:
        self._problem = problem
        self._bounds = bounds
        self._seed = seed

    @staticmethod
    def suits(problem: Problem) -> bool:
        """Tell whether a local search is worthwhile for a problem."""
        return bool(problem.soft) and problem.n_literals <= _LITERALS_MAX

    def run(self) -> Search:
        """Search without end once a solution is known. Only other searches can close the gap."""
        bounds = self._bounds
        while bounds.model is None:
            yield
        clauses = _Clauses(self._problem)
        compiled: flips.Walk | None = None
        may_compile = True
        n_flips, in_vain, used_s = 100, 0, 0.0
        is_to_begin = True
        while True:
            if is_to_begin or in_vain > _PATIENCE_FLIPS:
                assert bounds.model is not None
                is_to_begin, in_vain = False, 0
                self._seed = self._seed * 48271 % 2147483647
                at = _Assignment(clauses, bounds.model, self._seed, compiled)
            begin_s = time.perf_counter()
            # If another search has found a better solution, only the cost to beat changes.
            found = at.best(n_flips, (bounds.upper - self._problem.base) / clauses.unit)
            took_s = time.perf_counter() - begin_s
            used_s += took_s
            if found is not None and bounds.found(found):
                in_vain = 0
            else:
                in_vain += n_flips
                n_flips = _fitted(n_flips, took_s)
            yield
            if may_compile and used_s > _COMPILES_AFTER_S:
                may_compile, compiled = False, flips.compiled_walk()
                is_to_begin = compiled is not None


def _fitted(n_flips: int, took_s: float) -> int:
    """Adapt the number of flips so that they take about a slice of time."""
    if took_s > SLICE_S:
        return max(n_flips // 2, 50)
    return n_flips if took_s > SLICE_S / 2 else min(2 * n_flips, _PATIENCE_FLIPS)


class _Clauses:
    """The clauses of the input, hard ones first, without tautologies and repeated literals."""

    def __init__(self, problem: Problem) -> None:
        hard, soft, weights = problem.clauses()
        self.n_vars = problem.n_vars
        self.n_hard = len(hard)
        clauses = hard + soft
        sizes = np.fromiter(map(len, clauses), np.int32, len(clauses))
        self.starts = np.concatenate((np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)))
        self.literals = np.fromiter((lit for clause in clauses for lit in clause), np.int32, int(sizes.sum()))
        self.variables = np.abs(self.literals)
        self.clause_of = np.repeat(np.arange(len(clauses), dtype=np.int32), sizes)
        order = np.argsort(self.variables, kind="stable")
        self.occurs = self.clause_of[order]
        self.signs = (self.literals[order] > 0).astype(np.int8)
        counts = np.bincount(self.variables, minlength=self.n_vars + 1)
        self.occurs_from = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))).astype(np.int32)
        #: mean weight of soft clauses; the search counts in this unit
        self.unit = sum(weights) / max(len(weights), 1)
        relative = np.array([weight / self.unit for weight in weights])
        self.growth = np.concatenate((np.full(self.n_hard, _HARD_GROWTH), relative))
        self.limit = np.concatenate((np.full(self.n_hard, np.inf), relative * _SOFT_GROWTH_MAX))


class _Assignment:
    """The current assignment of the search."""

    def __init__(self, clauses: _Clauses, model: Model, seed: int, compiled: flips.Walk | None) -> None:
        n_clauses, n_vars, n_hard = len(clauses.growth), clauses.n_vars, clauses.n_hard
        value = np.zeros(n_vars + 1, np.int8)
        value[1:] = model[:n_vars] > 0
        is_true = value[clauses.variables] == (clauses.literals > 0)
        n_true = np.bincount(clauses.clause_of[is_true], minlength=n_clauses).astype(np.int32)
        true_sum = np.bincount(
            clauses.clause_of[is_true], weights=clauses.variables[is_true], minlength=n_clauses
        ).astype(np.int64)
        weight = clauses.growth.copy()
        weight[:n_hard] = 1.0
        change = np.where(n_true == 0, weight, 0.0)[clauses.clause_of]
        change -= np.where((n_true == 1)[clauses.clause_of] & is_true, weight[clauses.clause_of], 0.0)
        score = np.bincount(clauses.variables, weights=change, minlength=n_vars + 1)
        good, good_at = _members(np.flatnonzero(score > 1e-9), n_vars + 1)
        false = np.flatnonzero(n_true == 0)
        false_hard, false_soft = false[false < n_hard], false[false >= n_hard]
        unsat = np.zeros(n_clauses + 1, np.int32)
        unsat_at = np.full(n_clauses, -1, np.int32)
        unsat[: len(false_hard)] = false_hard
        unsat[n_hard : n_hard + len(false_soft)] = false_soft
        unsat_at[false_hard] = np.arange(len(false_hard))
        unsat_at[false_soft] = n_hard + np.arange(len(false_soft))
        n_good = np.count_nonzero(good_at >= 0)
        counts = np.array([n_good, len(false_hard), n_hard + len(false_soft), seed], np.int64)
        arrays: list[Any] = [
            clauses.starts,
            clauses.variables,
            clauses.occurs_from,
            clauses.occurs,
            clauses.signs,
            value,
        ]
        arrays += [n_true, true_sum, weight, clauses.growth, clauses.limit, score]
        arrays += [good, good_at, unsat, unsat_at, counts]
        if compiled is None:
            arrays = [array.tolist() for array in arrays]
        self._walk = compiled or flips.walk
        self._n_hard = n_hard
        self.arrays = arrays
        self._value = arrays[5]

    def best(self, n_flips: int, cost: float) -> Model | None:
        """Return a solution that costs less than `cost` if `n_flips` flips find one; else None.

        After a solution the search continues while it finds better ones, for at most a slice of time.
        """
        until_s = time.perf_counter() + SLICE_S
        found = None
        while time.perf_counter() < until_s:
            cost = self._walk(n_flips, cost * (1 - 1e-9), self._n_hard, *self.arrays)
            if cost < 0:
                break
            found = self._value[1:].copy()
        if found is None:
            return None
        variables = np.arange(1, len(found) + 1, dtype=np.int32)
        return np.where(np.array(found) > 0, variables, -variables).astype(np.int32)


def _members(those: Any, n: int) -> tuple[Any, Any]:
    members, where = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    members[: len(those)] = those
    where[those] = np.arange(len(those))
    return members, where
