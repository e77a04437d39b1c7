"""Renaming keeps a formula's meaning, whatever numbers its variables have."""

import numpy as np
import pytest

from mallob_sat.clauses import Clauses
from mallob_sat.formula import formula_from_list
from mallob_sat.portfolio import Strategy
from mallob_sat.renaming import Renaming

DENSE = [1, -2, 0, 3, 0, -4, 2, -1, 0]
#: formulas with few of many variables: names come from a table (SPARSE) or from a search (VERY_SPARSE)
SPARSE = [1, -2000, 0, 1500, 0]
VERY_SPARSE = [7, -2_000_000_000, 0, 5, 0]


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("literals", [DENSE, SPARSE, VERY_SPARSE])
def test_what_is_renamed_can_be_named_back(literals: list[int], seed: int | None) -> None:
    formula = formula_from_list([*literals, 2**31 - 1, -literals[0], 0])
    renaming = Renaming.for_strategy(formula, Strategy("cadical195", renaming_seed=seed))
    renamed = renaming.apply(formula)
    assert renaming.undo_literals(renamed.literals.tolist()) == formula.literals.tolist()
    assert renaming.undo_literals(renamed.assumptions.tolist()) == formula.assumptions.tolist()
    assert renamed.literals.dtype == np.int32
    assert renamed.n_vars == renaming.n_vars(formula) <= 4
    used = set(np.abs(renamed.literals).tolist()) - {0}
    assert used == set(range(1, renamed.n_vars + 1))
    clause = np.array([literals[0], -literals[3]], dtype=np.int32)
    clauses = Clauses.of(np.array([clause.size]), clause)
    there_and_back = renaming.undo_clauses(renaming.apply_to_clauses(clauses))
    assert there_and_back.literals.tolist() == clause.tolist()


def test_a_renamed_formula_without_clauses_is_one() -> None:
    formula = formula_from_list([])
    renamed = Renaming.for_strategy(formula, Strategy("cadical195", renaming_seed=3)).apply(formula)
    assert (renamed.n_vars, renamed.literals.size) == (0, 0)
