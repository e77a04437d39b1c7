"""The structure of formulas: XORs are counted, and random formulas are told from others."""

import random
import tracemalloc
from collections.abc import Sequence
from itertools import product

import pytest
from clause_lists import formula_of
from seeds import seeds

from mallob_sat import generate
from mallob_sat.structure import is_random, xor_share


def xor_of(variables: Sequence[int], parity: int) -> list[list[int]]:
    """Return clauses which say that the sum of these variables is even (0) or odd (1)."""
    return [
        [-variable if value else variable for variable, value in zip(variables, values, strict=True)]
        for values in product((0, 1), repeat=len(variables))
        if sum(values) % 2 != parity
    ]


@pytest.mark.parametrize("seed", seeds(20))
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


def drawn(length: int, n_vars: int, n_clauses: int, seed: int) -> list[list[int]]:
    """Return uniform random clauses of one length."""
    rng = random.Random(seed)
    return [
        [rng.choice((1, -1)) * variable for variable in rng.sample(range(1, n_vars + 1), length)]
        for _ in range(n_clauses)
    ]


@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize(
    "shape", [(3, 250, 1065), (3, 5000, 19_500), (4, 150, 1485), (5, 90, 1900), (7, 60, 5268)]
)
def test_formulas_drawn_by_lot_are_recognised(shape: tuple[int, int, int], seed: int) -> None:
    assert is_random(formula_of(drawn(*shape, seed)))


@pytest.mark.parametrize(
    "formula",
    [
        generate.parity(40, 1),
        generate.pigeonhole(10),
        generate.factoring(3_215_031_751),
        generate.commutativity(6),
    ],
)
def test_formulas_that_encode_something_are_not_random(formula: generate.Formula) -> None:
    assert not is_random(formula_of(formula.clauses))


@pytest.mark.parametrize(
    "clauses",
    [
        [],
        drawn(2, 250, 500, 1),
        [*drawn(3, 250, 1065, 1), [1, 2]],
        [[abs(x) for x in clause] for clause in drawn(3, 250, 1065, 1)],
        # half of the literals are positive, but variables occur equally often, or a few in all clauses
        [[sign * x, -sign * (x % 250 + 1), sign * (x * 7 % 251)] for x in range(1, 251) for sign in (1, -1)],
        [[sign * (x % 5 + 1), -sign * x, sign * (x + 300)] for x in range(6, 250) for sign in (1, -1)],
    ],
    ids=["empty", "pairs", "a pair", "positive", "regular", "centres"],
)
def test_what_differs_from_chance_is_not_random(clauses: list[list[int]]) -> None:
    assert not is_random(formula_of(clauses))


def test_large_variables_take_no_memory() -> None:
    shift = 2_000_000_000
    formula = formula_of(
        [[x + shift if x > 0 else x - shift for x in clause] for clause in drawn(3, 250, 1065, 1)]
    )
    tracemalloc.start()
    try:
        assert is_random(formula)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
