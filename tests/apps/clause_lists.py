"""Sets of clauses from lists, for the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mallob_sat.clauses import Clauses


def clauses_of(lists: Iterable[Sequence[int]]) -> Clauses:
    """Clauses of unknown glue."""
    lists = list(lists)
    return Clauses.of(
        np.array([len(clause) for clause in lists], dtype=np.int64),
        np.array([literal for clause in lists for literal in clause], dtype=np.int64),
    )
