"""Random 3-SAT by the million, as `mallob_sat.generate` offers it (kind `large`).

The kind `uniform` draws clause by clause with Python's random numbers, some 4 us each; here numpy draws
all of them at once and text is made in blocks. Both are functions of their arguments alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_CLAUSES_PER_BLOCK = 50_000


class LargeFormula:
    """Clauses of three literals as rows of an array."""

    def __init__(self, n_vars: int, clauses: NDArray[np.int32]) -> None:
        self.n_vars = n_vars
        self.clauses = clauses

    def text(self, comment: str) -> str:
        return f"c {comment}\np cnf {self.n_vars} {len(self.clauses)}\n" + "".join(self._blocks())

    def _blocks(self) -> Iterator[str]:
        for begin in range(0, len(self.clauses), _CLAUSES_PER_BLOCK):
            block = self.clauses[begin : begin + _CLAUSES_PER_BLOCK]
            yield "%d %d %d 0\n" * len(block) % tuple(block.ravel().tolist())


def large(n_vars: int, n_clauses: int, seed: int) -> LargeFormula:
    """Random 3-SAT for millions of clauses (three variables or more)."""
    if n_vars < 3:
        raise ValueError(f"a clause needs 3 variables, n_vars is {n_vars}")
    draw = np.random.Generator(np.random.PCG64(seed))
    variables = draw.integers(1, n_vars + 1, (n_clauses, 3), dtype=np.int32)
    first, second, third = variables.T
    while (again := np.flatnonzero((first == second) | (first == third) | (second == third))).size:
        variables[again] = draw.integers(1, n_vars + 1, (again.size, 3), dtype=np.int32)
    variables *= draw.choice(np.array([-1, 1], dtype=np.int32), (n_clauses, 3))
    return LargeFormula(n_vars, variables)
