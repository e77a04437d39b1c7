"""No model, shown by counting: never of a formula that has one, and of those that it is for."""

import random
from collections.abc import Iterator

import pytest
from clause_lists import formula_of, is_satisfiable
from pysat.card import CardEnc, EncType
from seeds import seeds

from mallob_sat import counting, generate
from mallob_sat.counting import refutation
from mallob_sat.formula import formula_from_list
from mallob_sat.pigeons import has_too_few_holes


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


ENCODINGS = {name: code for name, code in vars(EncType).items() if type(code) is int and name != "native"}


def pigeons_by(encoding: int, pigeons: int, holes: int) -> list[list[int]]:
    """Pigeons in holes, with PySAT's way to say that at most one is in each."""
    place = [[pigeon * holes + hole + 1 for hole in range(holes)] for pigeon in range(pigeons)]
    clauses, top = list(place), pigeons * holes
    for hole in range(holes):
        bound = CardEnc.atmost([row[hole] for row in place], 1, top_id=top, encoding=encoding)
        top = max(top, bound.nv)
        clauses += bound.clauses
    return clauses


def shuffled(clauses: list[list[int]], seed: int) -> list[list[int]]:
    """The same with other names and signs of variables, and in another order."""
    rng = random.Random(seed)
    names = [0, *rng.sample(range(1, 1 + (top := max(abs(x) for clause in clauses for x in clause))), top)]
    names = [name * rng.choice((1, -1)) for name in names]
    renamed = [[names[abs(x)] * (1 if x > 0 else -1) for x in clause] for clause in clauses]
    for clause in renamed:
        rng.shuffle(clause)
    rng.shuffle(renamed)
    return renamed


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_holes_are_seen_however_their_bounds_are_written(encoding: int) -> None:
    assert shown_by(shuffled(pigeons_by(encoding, 11, 10), 1)) == "pigeons"
    assert shown_by(shuffled(pigeons_by(encoding, 10, 10), 2)) is None


def test_pigeons_are_found_among_much_else() -> None:
    elsewhere = [
        [x + 1000 * (x > 0) - 1000 * (x < 0) for x in clause]
        for clause in generate.planted(300, 1200, 3).clauses
    ]
    many_holes = pigeons_by(EncType.ladder, 9, 12)
    top = max(abs(x) for clause in many_holes for x in clause)
    apart = [
        [x + top * (1 if x > 0 else -1) for x in clause] for clause in pigeons_by(EncType.pairwise, 8, 7)
    ]
    assert top + 56 < 1000
    assert shown_by(shuffled(elsewhere + many_holes + apart, 3)) == "pigeons"
    assert shown_by(shuffled(elsewhere + many_holes, 4)) is None


def dominoes_on_chessboard(size: int, missing: set[tuple[int, int]]) -> list[list[int]]:
    """Each field of a board is covered by one of the dominoes that may lie there."""
    fields = [(x, y) for x in range(size) for y in range(size) if (x, y) not in missing]
    names: dict[frozenset[tuple[int, int]], int] = {}
    clauses: list[list[int]] = []
    for x, y in fields:
        beside = [at for at in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)) if at in fields]
        ways = [names.setdefault(frozenset({(x, y), at}), len(names) + 1) for at in beside]
        clauses += [ways, *([-a, -b] for a in ways for b in ways if a < b)]
    return clauses


@pytest.mark.parametrize("size", [4, 8, 16])
def test_a_chessboard_without_two_corners_of_one_colour(size: int) -> None:
    board = dominoes_on_chessboard(size, {(0, 0), (size - 1, size - 1)})
    assert shown_by(board) == "pigeons"
    assert shown_by(dominoes_on_chessboard(size, {(0, 0), (size - 1, 0)})) is None
    for seed in range(5):
        assert shown_by(shuffled(board, seed)) == "pigeons"


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


@pytest.mark.parametrize("seed", seeds(300))
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


def places_and_bounds(rng: random.Random, n_vars: int) -> Iterator[list[int]]:
    """Clauses without common literals, or nearly so, of which many pairs exclude each other."""
    variables = rng.sample(range(1, n_vars + 1), n_vars)
    literals = [variable * rng.choice((1, -1)) for variable in variables]
    while literals:
        size = rng.randint(1, 4)
        place, literals = literals[:size], literals[size:]
        if rng.random() < 0.2:
            place.append(rng.choice((1, -1)) * rng.choice(variables))
        if rng.random() < 0.4:
            yield [*place[1:], rng.choice((1, -1)) * rng.choice(variables)]
        yield place
        share = rng.choice((0.2, 0.7))
        yield from ([-one, -other] for one in place for other in literals if rng.random() < share)
    for _ in range(rng.randint(0, 3)):
        yield [rng.choice((1, -1)) * x for x in rng.sample(variables, rng.randint(1, 3))]


def test_pigeons_are_never_too_many_where_there_is_a_model() -> None:
    shown = 0
    for seed in seeds(600):
        rng = random.Random(seed)
        n_vars = rng.randint(4, 9)
        clauses = list(places_and_bounds(rng, n_vars))
        if has_too_few_holes(formula_of(clauses).literals, 10_000):
            assert not is_satisfiable(clauses, n_vars), seed
            shown += 1
    assert shown > 100


def test_a_repeated_or_a_tautological_clause_is_no_further_one() -> None:
    assert shown_by([[1, 2], [1, 2], [1, -1], [-1, -2]]) is None
    assert shown_by([[1, 1], [2, 2], [-1, -2]]) is None or not is_satisfiable([[1], [2], [-1, -2]], 2)


def test_what_would_take_long_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    dense = [clause for _ in range(90) for clause in xor_of(rng.sample(range(1, 61), 3), rng.randint(0, 1))]
    assert shown_by(dense) == "parity"
    monkeypatch.setattr(counting, "_STEPS_MAX", 20)
    assert shown_by(dense) is None
    monkeypatch.setattr(counting, "_LOOKS_MAX", 200)
    assert shown_by(generate.pigeonhole(20).clauses) is None
    monkeypatch.setattr(counting, "_LITERALS_MAX", 20)
    assert shown_by(generate.pigeonhole(6).clauses) is None
