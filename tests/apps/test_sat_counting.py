"""No model, shown by counting: never of a formula that has one, and of those that it is for."""

from __future__ import annotations

import random

import pytest
from clause_lists import is_satisfiable

from mallob_sat import counting, generate
from mallob_sat.counting import refutation
from mallob_sat.formula import formula_from_list


def shown_by(clauses: list[tuple[int, ...]] | list[list[int]]) -> str | None:
    return refutation(formula_from_list([x for clause in clauses for x in (*clause, 0)]))


def xor_of(variables: list[int], value: int) -> list[list[int]]:
    """The clauses of `variables` that exclude each assignment of another sum."""
    clauses = []
    for bits in range(2 ** len(variables)):
        if bits.bit_count() % 2 != value:
            clauses.append([-x if bits >> place & 1 else x for place, x in enumerate(variables)])
    return clauses


@pytest.mark.parametrize("holes", [1, 2, 5, 20, 30])
def test_pigeons_without_a_hole_for_each(holes: int) -> None:
    assert shown_by(generate.pigeonhole(holes).clauses) in ("pigeons", "parity")


def test_a_pigeon_less_fits() -> None:
    clauses = generate.pigeonhole(6).clauses
    first = next(clause for clause in clauses if len(clause) == 6)
    assert shown_by([clause for clause in clauses if clause != first]) is None


def test_pigeons_that_are_in_one_hole_at_most_and_are_named_at_random() -> None:
    rng = random.Random(1)
    holes = 8
    names = list(range(1, (holes + 1) * holes + 1))
    rng.shuffle(names)
    place = [[names[pigeon * holes + hole] for hole in range(holes)] for pigeon in range(holes + 1)]
    clauses = [list(row) for row in place]
    clauses += [[-row[a], -row[b]] for row in place for a in range(holes) for b in range(a)]
    clauses += [
        [-place[a][h], -place[b][h]] for h in range(holes) for a in range(holes + 1) for b in range(a)
    ]
    rng.shuffle(clauses)
    assert shown_by(clauses) == "pigeons"
    assert shown_by([clause for clause in clauses if clause != place[0]]) is None


@pytest.mark.parametrize("vertices", [6, 40, 200])
def test_parities_that_do_not_add_up(vertices: int) -> None:
    assert shown_by(generate.parity(vertices, 1).clauses) == "parity"


def test_equations_of_all_lengths_up_to_six_are_added_up() -> None:
    chain = [[1], [1, 2], [2, 3, 4], [1, 3, 4, 5], [1, 2, 3, 5, 6], [1, 2, 3, 4, 5, 6]]
    assignment = {x: x % 3 % 2 for x in range(1, 7)}
    sums = [sum(assignment[x] for x in row) % 2 for row in chain]
    holding = [clause for row, value in zip(chain, sums, strict=True) for clause in xor_of(row, value)]
    assert shown_by(holding) is None
    for wrong in range(len(chain)):
        # Each variable is determined by the others, so one more equation contradicts.
        assert shown_by(holding + xor_of([wrong + 1], 1 - assignment[wrong + 1])) == "parity"


@pytest.mark.parametrize("seed", range(300))
def test_nothing_is_shown_of_a_formula_that_has_a_model(seed: int) -> None:
    rng = random.Random(seed)
    n_vars = rng.randint(2, 7)
    clauses: list[list[int]] = []
    for _ in range(rng.randint(1, 8)):
        variables = rng.sample(range(1, n_vars + 1), rng.randint(1, min(4, n_vars)))
        kind = rng.random()
        if kind < 0.4:
            clauses += xor_of(variables, rng.randint(0, 1))
        elif kind < 0.7:
            clauses.append(variables)
            clauses += [
                [-a, -b] for a in variables for b in range(1, n_vars + 1) if a != b and rng.random() < 0.6
            ]
        else:
            clauses.append([x * rng.choice((1, -1)) for x in variables])
    if shown_by(clauses) is not None:
        assert not is_satisfiable(clauses, n_vars)


def test_a_repeated_or_a_tautological_clause_is_no_further_one() -> None:
    assert shown_by([[1, 2], [1, 2], [1, -1], [-1, -2]]) is None
    assert shown_by([[1, 1], [2, 2], [-1, -2]]) is None or not is_satisfiable([[1], [2], [-1, -2]], 2)


def test_what_would_take_long_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    dense = [clause for _ in range(90) for clause in xor_of(rng.sample(range(1, 61), 3), rng.randint(0, 1))]
    assert shown_by(dense) == "parity"
    monkeypatch.setattr(counting, "_STEPS_MAX", 20)
    assert shown_by(dense) is None
    assert shown_by(generate.pigeonhole(20).clauses) is None
    monkeypatch.setattr(counting, "_LITERALS_MAX", 20)
    assert shown_by(generate.pigeonhole(6).clauses) is None
