"""Clauses against symmetries keep at least one of several symmetric models, and exclude others."""

import random
from itertools import combinations, permutations

import numpy as np
import pytest
from clause_lists import formula_of
from seeds import seeds

from mallob_py.kit import InputError
from mallob_sat import generate, symmetries
from mallob_sat.portfolio import Portfolio
from mallob_sat.portfolio_syntax import parse_portfolio
from mallob_sat.search import Search
from mallob_sat.solvers import Solver, Verdict
from mallob_sat.symmetries import breaking_clauses

Clause = tuple[int, ...]
FORMULAS = 150


def image_of(clause: Clause, images: dict[int, int]) -> Clause:
    return tuple(sorted(images[abs(x)] * (1 if x > 0 else -1) for x in clause))


def closed(clauses: set[Clause], generators: list[dict[int, int]]) -> set[Clause]:
    fresh = set(clauses)
    while fresh:
        fresh = {image_of(one, images) for one in fresh for images in generators} - clauses
        clauses |= fresh
    return clauses


def symmetric_formula(choose: random.Random) -> list[list[int]]:
    """Return random clauses, and all their images under a few random permutations of literals."""
    n_vars = choose.randint(3, 7)
    generators = []
    for _ in range(choose.randint(1, 2)):
        moved = choose.sample(range(1, n_vars + 1), choose.randint(2, n_vars))
        rotated = [*moved[1:], moved[0]] if choose.random() < 0.5 else choose.sample(moved, len(moved))
        images = {v: v for v in range(1, n_vars + 1)}
        signs = [1] if choose.random() < 0.5 else [1, -1]
        images |= {v: w * choose.choice(signs) for v, w in zip(moved, rotated, strict=True)}
        generators.append(images)
    clauses: set[Clause] = set()
    for _ in range(choose.randint(1, 5)):
        variables = choose.sample(range(1, n_vars + 1), choose.randint(1, min(3, n_vars)))
        clauses |= closed({tuple(sorted(v * choose.choice((1, -1)) for v in variables))}, generators)
    return [list(clause) for clause in choose.sample(sorted(clauses), len(clauses))]


def symmetries_of(clauses: list[list[int]], n_vars: int) -> list[tuple[int, ...]]:
    """Return all symmetries of clauses, by trying every permutation with every choice of signs."""
    wanted = {tuple(sorted(clause)) for clause in clauses}
    found = []
    for order in permutations(range(1, n_vars + 1)):
        for bits in range(2**n_vars):
            images = {v: -w if bits >> v - 1 & 1 else w for v, w in enumerate(order, 1)}
            if all(image_of(one, images) in wanted for one in wanted):
                found.append(tuple(images[v] for v in range(1, n_vars + 1)))
    return found


def models_of(clauses: list[list[int]], n_vars: int) -> list[list[int]]:
    signs = ([v if bits >> v - 1 & 1 else -v for v in range(1, n_vars + 1)] for bits in range(2**n_vars))
    return [model for model in signs if all(not set(clause).isdisjoint(model) for clause in clauses)]


def solver_of(clauses: list[list[int]]) -> Solver:
    solver = Solver("minisat22")
    for clause in clauses:
        solver.add_clause(clause)
    return solver


def test_of_the_models_that_are_symmetric_to_each_other_one_is_kept() -> None:
    broken = lost = 0
    for seed in range(FORMULAS):
        clauses = symmetric_formula(random.Random(seed))
        formula = formula_of(clauses)
        breaking = breaking_clauses(formula)
        finder = symmetries._Finder(symmetries._Graph(formula))
        finder.run()
        solver = solver_of([*clauses, *breaking])
        models = models_of(clauses, formula.n_vars)
        kept = {tuple(m): solver.solve(m) is Verdict.SATISFIABLE for m in models}
        seen: set[tuple[int, ...]] = set()
        for model in kept:
            if model in seen:
                continue
            orbit, fresh = {model}, [model]
            while fresh:
                images = {moved(one, images) for one in fresh for images in finder.symmetries}
                fresh = list(images - orbit)
                orbit |= images
            assert orbit <= kept.keys(), f"seed {seed}: what was found is no symmetry"
            assert any(kept[one] for one in orbit), f"seed {seed}: {model} and all like it are lost"
            seen |= orbit
        broken += bool(breaking)
        lost += sum(not one for one in kept.values())
    assert broken > FORMULAS // 2
    assert lost > FORMULAS


def moved(model: tuple[int, ...], images: symmetries.Permutation) -> tuple[int, ...]:
    """Return the assignment in which the image of each literal of the model is true."""
    literals = (int(images[2 * abs(x) - 2 + (x < 0)]) for x in model)
    return tuple(sorted(((-1 if x & 1 else 1) * (x // 2 + 1) for x in literals), key=abs))


def test_what_symmetries_there_are_is_found() -> None:
    """Nearly all symmetries are found, except those that only backtracking would find."""
    found = there = 0
    for seed in seeds(40):
        clauses = symmetric_formula(random.Random(seed))
        formula = formula_of(clauses)
        if formula.n_vars > 4:
            continue
        occurring = {abs(x) for clause in clauses for x in clause}
        all_ = symmetries_of(clauses, formula.n_vars)
        if len(occurring) < formula.n_vars or len(all_) == 1:
            continue
        there += 1
        found += bool(breaking_clauses(formula))
    assert there >= 8
    assert found >= 0.9 * there


def test_pigeons_are_refuted_without_trying_each_in_each_hole() -> None:
    clauses = [list(clause) for clause in generate.pigeonhole(8).clauses]
    plain, broken = solver_of(clauses), solver_of([*clauses, *breaking_clauses(formula_of(clauses))])
    assert plain.solve() is broken.solve() is Verdict.UNSATISFIABLE
    assert broken.conflicts < plain.conflicts // 10


def clique_and_colours(vertices: int, clique: int, colours: int) -> list[list[int]]:
    """Return clauses which say that a graph has a clique of this size and can be coloured."""
    pairs = list(combinations(range(vertices), 2))
    edge = {pair: number for number, pair in enumerate(pairs, 1)}
    place = [[len(pairs) + i * vertices + v + 1 for v in range(vertices)] for i in range(clique)]
    first = len(pairs) + clique * vertices + 1
    colour = [[first + v * colours + c for c in range(colours)] for v in range(vertices)]
    clauses = [*place, *colour]
    clauses += [[-one[v], -two[v]] for one, two in combinations(place, 2) for v in range(vertices)]
    for one, two in permutations(place, 2):
        clauses += [[edge[pair], -one[pair[0]], -two[pair[1]]] for pair in pairs]
    for a, b in pairs:
        clauses += [[-edge[a, b], -colour[a][c], -colour[b][c]] for c in range(colours)]
    return clauses


def test_cliques_and_colours_are_decided_in_a_few_conflicts() -> None:
    clauses = clique_and_colours(8, 4, 3)
    broken = solver_of([*clauses, *breaking_clauses(formula_of(clauses))])
    assert broken.solve() is Verdict.UNSATISFIABLE
    assert broken.conflicts < 200
    fitting = clique_and_colours(8, 3, 3)
    assert solver_of([*fitting, *breaking_clauses(formula_of(fitting))]).solve() is Verdict.SATISFIABLE


@pytest.mark.parametrize("seed", range(3))
def test_drawn_by_lot_nothing_is_symmetric(seed: int) -> None:
    clauses = [list(clause) for clause in generate.uniform(100, 426, seed).clauses]
    occurring = {abs(x) for clause in clauses for x in clause}
    assert len(occurring) == 100
    assert breaking_clauses(formula_of(clauses)) == []


def test_variables_that_occur_nowhere_are_left_alone() -> None:
    assert breaking_clauses(formula_of([[1, 2, 9]])) != []
    named = {abs(x) for clause in breaking_clauses(formula_of([[1, 2, 9]])) for x in clause}
    assert named.isdisjoint(range(3, 9))


def test_too_large_a_formula_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert breaking_clauses(formula_of([[1, 2]])) != []
    monkeypatch.setattr(symmetries, "LITERALS_MAX", 2)
    assert breaking_clauses(formula_of([[1, 2]])) == []


def search_of(
    clauses: list[list[int]], assumptions: tuple[int, ...] = (), *, index: int = 0, members: str = "k= k+= g"
) -> Search:
    formula = formula_of(clauses).assuming(assumptions)
    return Search(formula, Portfolio().following(members).strategy(index))


@pytest.mark.parametrize(
    ("members", "title", "tells"),
    [("k k+", "kissat404(stable=2)", True), ("k k+=", "kissat404(stable=2,symmetries)", False)],
)
def test_a_search_that_breaks_symmetries_tells_nothing_and_says_so(
    members: str, title: str, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[Solver] = []
    monkeypatch.setattr(Solver, "trace_proof", lambda solver, file: traced.append(solver))
    search = search_of(clique_and_colours(6, 4, 3), index=1, members=members)
    result = search.run()
    assert result.code == 20
    assert result.fields["solver"] == title
    assert bool(traced) is tells
    search.close()


def test_models_are_of_the_formula_and_have_its_variables() -> None:
    fitting = clique_and_colours(6, 3, 3)
    search = search_of(fitting, index=1)
    result = search.run()
    assert result.code == 10
    assert len(result.solution) == formula_of(fitting).n_vars
    search.close()


def test_without_symmetries_it_searches_as_ever() -> None:
    search = search_of([list(clause) for clause in generate.uniform(100, 380, 1).clauses], index=1)
    assert search.run().fields["solver"] == "kissat404(stable=2)"
    search.close()


@pytest.mark.parametrize("assumption", [1, 2])
def test_assumptions_are_not_symmetric(assumption: int) -> None:
    clauses = [[1, 2], [-1, -2]]
    search = search_of(clauses, (assumption,))
    result = search.run()
    assert result.code == 10
    assert assumption in np.asarray(result.solution).tolist()
    assert result.fields["solver"] == "kissat404"
    search.close()


def test_only_kissat_is_asked_to() -> None:
    assert parse_portfolio("k+=!").at(0)[0].breaks_symmetries
    assert not parse_portfolio("k+!").at(0)[0].breaks_symmetries
    with pytest.raises(InputError, match="cadical195 has no '='"):
        parse_portfolio("c=")
