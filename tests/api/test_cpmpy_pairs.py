"""CPMpy's comparisons of two integers as clauses: the clauses hold for exactly the values for which the
comparison holds.
"""

from __future__ import annotations

import operator
import random
from itertools import product
from typing import Any

import pytest
from pysat.solvers import Solver
from seeds import seeds

cp = pytest.importorskip("cpmpy", reason="the extra `cpmpy` is not installed")
pytest.importorskip("pindakaas", reason="the extra `cpmpy` is not installed")
_COMPARISONS = {"==": operator.eq, "<=": operator.le, ">=": operator.ge}


def encoding_of(variable: Any, *, is_direct: bool) -> Any:
    from cpmpy.transformations.int2bool import IntVarEncDirect, IntVarEncOrder

    return IntVarEncDirect(variable) if is_direct else IntVarEncOrder(variable)


def integers_of(encodings: list[Any]) -> Any:
    from mallob_py.api.cpmpy_pairs import Integers  # here, because it imports CPMpy

    return Integers({str(number): encoding for number, encoding in enumerate(encodings)})


def true_names(encoding: Any, low: int, value: int, *, is_direct: bool) -> set[str]:
    """Return the true literals if the integer has this value: one literal per value, or one per lower
    bound.
    """
    names = [literal.name for literal in encoding.vars()]
    return {names[value - low]} if is_direct else set(names[: value - low])


def holds(clause: list[Any], true: set[str]) -> bool:
    return any(
        literal.name.removeprefix("~") in true if literal.name[0] != "~" else literal.name[1:] not in true
        for literal in clause
    )


@pytest.mark.parametrize("seed", seeds(300))
def test_clauses_hold_where_the_comparison_does(seed: int) -> None:
    draw = random.Random(seed)
    lows = [draw.randint(-6, 5) for _ in range(2)]
    highs = [low + draw.choice((1, 1, 2, 3, 5, 8)) for low in lows]
    are_direct = [draw.random() < 0.5 for _ in range(2)]
    encodings = [
        encoding_of(cp.intvar(low, high), is_direct=is_direct)
        for low, high, is_direct in zip(lows, highs, are_direct, strict=True)
    ]
    switch = cp.boolvar()
    terms = [(draw.choice((-7, -1, 1, 4)), switch)] * draw.randint(0, 2)
    offset = 0
    for encoding in encodings:
        further, constant = encoding.encode_term(draw.choice((1, 1, -1, 2, -3)))
        terms += further
        offset += constant
    if draw.random() < 0.2:
        terms.append((draw.choice((-1, 1)), draw.choice(list(draw.choice(encodings).vars()))))
    draw.shuffle(terms)
    name, wanted = draw.choice(list(_COMPARISONS)), draw.randint(-10, 10) - offset
    weights, literals = zip(*terms, strict=True)
    clauses = integers_of(encodings).clauses(weights, literals, name, wanted)
    if clauses is None:
        assert not all(are_direct), "only without an order of values"
        return
    for *values, is_on in product(*map(range, lows, [high + 1 for high in highs]), (False, True)):
        true = {switch.name} if is_on else set()
        for encoding, low, value, is_direct in zip(encodings, lows, values, are_direct, strict=True):
            true |= true_names(encoding, low, value, is_direct=is_direct)
        total = sum(weight for weight, literal in terms if literal.name in true)
        assert all(holds(clause, true) for clause in clauses) == _COMPARISONS[name](total, wanted)


def test_what_is_no_sum_of_two_numbers_is_left_to_others() -> None:
    encodings = [encoding_of(one, is_direct=True) for one in cp.intvar(0, 3, shape=3)]
    integers = integers_of(encodings)
    alone = list(encodings[0].vars())
    # the sum says only that the integer has one value
    assert integers.clauses([1] * 4, alone, "==", 1) is None
    of_all = [literal for encoding in encodings for literal in encoding.vars()]
    assert integers.clauses([1] * 12, of_all, "<=", 5) is None


def test_values_that_one_integer_loses_are_lost_to_the_other() -> None:
    encodings = [encoding_of(one, is_direct=True) for one in cp.intvar(0, 4, shape=2)]
    (one_terms, _), (other_terms, _) = encodings[0].encode_term(1), encodings[1].encode_term(-1)
    weights, literals = zip(*one_terms, *other_terms, strict=True)
    numbers = {literal.name: number for number, literal in enumerate(literals, 1)}
    numbers |= {f"~{name}": -number for name, number in numbers.items()}
    clauses = integers_of(encodings).clauses(weights, literals, "==", 0)
    with Solver(
        "cadical153", bootstrap_with=[[numbers[one.name] for one in clause] for clause in clauses]
    ) as sat:
        for here, there in ((3, 8), (8, 3)):
            assert -there in sat.propagate([-here])[1]


def test_an_equation_under_a_condition_takes_some_hundred_clauses() -> None:
    from mallob_py.api.cpmpy_solver import CpmpySolver

    place, first, second = cp.intvar(0, 14, shape=3)
    solver = CpmpySolver(cp.Model((place == 3).implies(second == first + 1)))
    assert len(solver.pdk_solver.to_dimacs().splitlines()) < 400
