"""How much of a formula is XORs: counted right, and adders on one side, parity problems on the other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest
from clause_lists import formula_of

from mallob_sat import generate
from mallob_sat.xors import xor_share


def xor_of(variables: Sequence[int], parity: int) -> list[list[int]]:
    """The clauses that say that the sum of these variables is even (0) or odd (1)."""
    return [
        [-variable if value else variable for variable, value in zip(variables, values, strict=True)]
        for values in product((0, 1), repeat=len(variables))
        if sum(values) % 2 != parity
    ]


@pytest.mark.parametrize("seed", range(20))
def test_clauses_of_xors_are_counted_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    xors = {tuple(sorted(rng.sample(range(1, 60), rng.randint(3, 6)))): rng.randint(0, 1) for _ in range(12)}
    clauses = [clause for variables, parity in xors.items() for clause in xor_of(variables, parity)]
    others = [
        [rng.choice((1, -1)) * v for v in rng.sample(range(60, 99), 7)] for _ in range(rng.randint(0, 90))
    ]
    expected = len(clauses) / len(clauses + others)
    clauses += others
    rng.shuffle(clauses)
    for clause in clauses:
        rng.shuffle(clause)
    assert xor_share(formula_of(clauses)) == pytest.approx(expected)


def test_both_parities_of_the_same_variables_are_two_xors() -> None:
    assert xor_share(formula_of(xor_of([3, 1, 2], 0) + xor_of([1, 2, 3], 1))) == 1.0


@pytest.mark.parametrize(
    "clauses",
    [
        [],
        [[]],
        [[1, 2], [-1, -2]],
        xor_of([1, 2, 3], 0)[1:],
        xor_of([1, 2, 3, 4], 1)[:-1],
        xor_of([1, 2, 3, 4], 1)[:-1] + xor_of([1, 2, 3, 4], 1)[:1],
        [[1, 1, 2], [1, -1, -2], [-1, 1, -2], [-1, -1, 2]],
        xor_of([1, 2, 3, 4, 5, 6, 7], 0),
    ],
)
def test_what_is_no_xor_of_three_to_six_variables_does_not_count(clauses: list[list[int]]) -> None:
    assert xor_share(formula_of(clauses)) == 0.0


def test_parity_problems_stand_out_from_multipliers_and_random_formulas() -> None:
    def share(formula: generate.Formula) -> float:
        return xor_share(formula_of(formula.clauses))

    assert share(generate.parity(30, 1)) > 0.9
    assert share(generate.factoring(8051)) < 0.5
    assert share(generate.commutativity(4)) < 0.5
    assert share(generate.uniform(50, 200, 1)) == 0.0
