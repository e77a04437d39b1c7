"""Renamings of a formula's variables: to search in another order, or to leave out unused variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mallob_sat.clauses import Clauses
from mallob_sat.formula import Formula, Literals
from mallob_sat.portfolio import Strategy

#: a table for renaming is used if the largest variable is at most this many times the number of variables
_TABLE_PER_VARIABLE = 8


@dataclass(frozen=True)
class Renaming:
    """A renaming of variables: `original[w]` is the variable that the solver calls w (w >= 1).

    None: variables keep their names.
    """

    original: Literals | None

    @classmethod
    def for_strategy(cls, formula: Formula, strategy: Strategy) -> Renaming:
        """Make a renaming: random if the strategy has a renaming seed, dense if most variables never occur.

        Dense, because solvers take memory for every variable up to the largest.
        """
        sparse = formula.n_vars > 1000 + 2 * (formula.literals.size + formula.assumptions.size)
        if not sparse and strategy.renaming_seed is None:
            return cls(None)
        if sparse:
            used = np.unique(np.abs(np.concatenate((formula.literals, formula.assumptions))))
            used = used[used > 0]
        else:
            used = np.arange(1, formula.n_vars + 1, dtype=np.int32)
        if strategy.renaming_seed is not None:
            np.random.default_rng(strategy.renaming_seed).shuffle(used)
        return cls(np.concatenate((np.zeros(1, dtype=np.int32), used.astype(np.int32))))

    def n_vars(self, formula: Formula) -> int:
        """Return the number of variables that the solver knows."""
        return formula.n_vars if self.original is None else self.original.size - 1

    def apply(self, formula: Formula) -> Formula:
        if self.original is None:
            return formula
        literals, done = np.empty_like(formula.literals), 0
        for block in formula.blocks():
            literals[done : done + block.size] = self._renamed(block)
            done += block.size
        return Formula(literals, self.n_vars(formula), formula.n_clauses, self._renamed(formula.assumptions))

    def apply_to_clauses(self, clauses: Clauses) -> Clauses:
        """Rename clauses over variables of the formula."""
        if self.original is None:
            return clauses
        renamed = self._renamed(clauses.literals)
        return Clauses(clauses.lengths, clauses.glues, renamed, clauses.signatures)

    def undo_clauses(self, clauses: Clauses) -> Clauses:
        return clauses if self.original is None else clauses.renamed(self.original)

    def _renamed(self, literals: Literals) -> Literals:
        return (self._new_names(np.abs(literals)) * np.sign(literals)).astype(np.int32, copy=False)

    @cached_property
    def _new_names(self) -> Callable[[Literals], Literals]:
        """Return the function that maps variables of the formula to the solver's variables."""
        assert self.original is not None
        n_vars, largest = self.original.size - 1, int(self.original.max())
        if largest <= _TABLE_PER_VARIABLE * n_vars:
            table = np.zeros(largest + 1, dtype=np.int32)
            table[self.original] = np.arange(n_vars + 1, dtype=np.int32)
            return lambda variables: table[variables]
        order = np.argsort(self.original[1:])
        known = self.original[1:][order]
        names = (order + 1).astype(np.int32)
        return lambda variables: names[np.minimum(np.searchsorted(known, variables), n_vars - 1)]

    def undo_literals(self, literals: list[int]) -> list[int]:
        if self.original is None:
            return literals
        return [int(self.original[abs(x)]) * (1 if x > 0 else -1) for x in literals]

    def undo_model(self, model: Literals, n_vars: int) -> Literals:
        """Return the model over all variables of the formula; variables that never occur are false."""
        if self.original is None:
            return model
        full = -np.arange(1, n_vars + 1, dtype=np.int32)
        variables = self.original[1:]
        full[variables - 1] = variables * np.sign(model)
        return full
