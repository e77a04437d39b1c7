"""Formulas are processed block by block, with the same results for any size of blocks."""

import numpy as np
import pytest
from clause_lists import formula_of

from mallob_sat import formula as formula_module

CLAUSES = [[1, 2, 3], [-1, -2], [3], [-3, 1, 2, -2], [2, 3]]


@pytest.fixture(params=[1, 2, 5, 1000], autouse=True)
def block_literals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formula_module, "_BLOCK_LITERALS", request.param)


def test_blocks_are_whole_clauses_and_together_the_formula() -> None:
    formula = formula_of(CLAUSES)
    blocks = list(formula.blocks())
    assert all(block[-1] == 0 for block in blocks)
    assert np.concatenate(blocks).tolist() == formula.literals.tolist()
    assert list(formula_of([]).blocks()) == []


@pytest.mark.parametrize("place", range(len(CLAUSES) + 1))
def test_an_empty_clause_is_found_wherever_it_stands(place: int) -> None:
    assert formula_of([*CLAUSES[:place], [], *CLAUSES[place:]]).has_empty_clause
    assert not formula_of(CLAUSES).has_empty_clause
    assert not formula_of([]).has_empty_clause


@pytest.mark.parametrize("number", range(len(CLAUSES)))
def test_the_first_false_clause_is_named(number: int) -> None:
    model = np.array([-1, 2, 3], dtype=np.int32)
    assert formula_of(CLAUSES).first_falsified(model) is None
    falsified = [*CLAUSES[:number], [1, -2], *CLAUSES[number:], [-3]]
    assert formula_of(falsified).first_falsified(model) == number
    assert formula_of([*CLAUSES[:number], []]).first_falsified(model) == number
    assert formula_of([]).first_falsified(np.zeros(0, dtype=np.int32)) is None
