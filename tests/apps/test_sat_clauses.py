"""Sets of clauses as arrays, compared with sets of clauses as Python lists."""

import random
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from seeds import seeds

from mallob_py.runtime.processes import python
from mallob_sat.clauses import SIGNATURE_BYTES, Clauses, KnownClauses, union


def clauses_of(lists: list[list[int]], glues: list[int] | None = None) -> Clauses:
    flat = np.array([literal for clause in lists for literal in clause], dtype=np.int64)
    lengths = np.array([len(clause) for clause in lists], dtype=np.int64)
    return Clauses.of(lengths, flat, None if glues is None else np.array(glues))


def random_lists(choose: random.Random, count: int, variables: int = 40) -> list[list[int]]:
    def clause() -> list[int]:
        names = choose.sample(range(1, variables + 1), choose.randint(1, 6))
        return [choose.choice((-1, 1)) * name for name in names]

    return [clause() for _ in range(count)]


def test_the_shortest_come_first_and_among_these_those_of_least_glue() -> None:
    clauses = clauses_of([[1, 2, 3], [4], [5, 6], [7, -8]], glues=[2, 1, 2, 1])
    assert clauses.lists() == [[4], [7, -8], [5, 6], [1, 2, 3]]


@pytest.mark.parametrize(
    ("literals_max", "count"), [(0, 0), (1, 1), (2, 1), (3, 2), (5, 3), (7, 3), (8, 4), (99, 4)]
)
def test_the_best_ones_fit_and_the_rest_is_left(literals_max: int, count: int) -> None:
    clauses = clauses_of([[1, 2, 3], [4], [5, 6], [7, -8]], glues=[2, 1, 2, 1])
    best, rest = clauses.best(literals_max)
    assert best.lists() == clauses.lists()[:count]
    assert rest.lists() == clauses.lists()[count:]


@pytest.mark.parametrize("seed", seeds(10))
def test_bytes_carry_all_of_it(seed: int) -> None:
    choose = random.Random(seed)
    lists = random_lists(choose, choose.choice((0, 1, 50)), 2**31 - 2)
    clauses = clauses_of(lists, [choose.randint(1, 6) for _ in lists])
    decoded = Clauses.decode(clauses.encode())
    assert decoded.lists() == clauses.lists()
    assert decoded.glues.tolist() == clauses.glues.tolist()


@pytest.mark.parametrize("seed", seeds(10))
def test_signatures_stay_with_their_clauses(seed: int) -> None:
    choose = random.Random(seed)
    lists = random_lists(choose, 30)
    plain = clauses_of(lists)
    signed = {tuple(clause): choose.randbytes(SIGNATURE_BYTES) for clause in plain.lists()}
    rows = np.frombuffer(b"".join(signed[tuple(clause)] for clause in plain.lists()), np.uint8)
    clauses = replace(plain, signatures=rows.reshape(len(lists), SIGNATURE_BYTES))
    chosen = np.array([choose.random() < 0.7 for _ in lists])
    best, rest = clauses.where(chosen).best(40)
    for part in (Clauses.decode(best.encode()), rest, union([Clauses.none(), rest, best])):
        assert [row.tobytes() for row in part.signatures] == [signed[tuple(one)] for one in part.lists()]


@pytest.mark.parametrize("seed", seeds(20))
def test_a_union_has_each_clause_once_whatever_the_order_of_its_literals(seed: int) -> None:
    choose = random.Random(seed)
    lists = random_lists(choose, 60, variables=6)
    shuffled = [choose.sample(clause, len(clause)) for clause in lists]
    together = union([clauses_of(lists[:30]), clauses_of(shuffled), clauses_of(lists[30:]), Clauses.none()])
    found = [frozenset(clause) for clause in together.lists()]
    assert len(found) == len(set(found))
    assert set(found) == {frozenset(clause) for clause in lists}
    assert together.lengths.tolist() == sorted(together.lengths.tolist())


def test_clauses_that_differ_in_a_sign_have_different_hashes() -> None:
    lists = [[1], [-1], [1, 2], [1, -2], [-1, 2], [-1, -2], [3], [1, 2, -3], [1, 2, 3]]
    assert len(set(clauses_of(lists).hashes().tolist())) == len(lists)


def test_the_hash_of_a_million_clauses_is_a_different_number_for_each() -> None:
    pairs = np.stack(np.meshgrid(np.arange(1, 1001), np.arange(-2000, -1000)), axis=-1).reshape(-1)
    hashes = Clauses.of(np.full(1_000_000, 2), pairs).hashes()
    assert np.unique(hashes).size == 1_000_000


def test_a_new_name_is_given_to_every_variable() -> None:
    names = np.array([0, 3, 1, 2], dtype=np.int32)
    assert clauses_of([[1, -2], [3]]).renamed(names).lists() == [[2], [3, -1]]


def test_what_has_been_seen_is_not_new_again() -> None:
    known = KnownClauses()
    assert known.take_new(clauses_of([[1, 2], [3]])).lists() == [[3], [1, 2]]
    assert known.take_new(clauses_of([[2, 1], [4]])).lists() == [[4]]
    assert known.take_new(Clauses.none()).lists() == []


def test_memory_is_bounded_and_nearly_all_recent_ones_are_remembered() -> None:
    known = KnownClauses(places=1 << 12)
    batches = [clauses_of([[first, second] for second in range(2000, 2100)]) for first in range(1, 101)]
    for batch in batches:
        assert len(known.take_new(batch)) == 100
    assert sum(len(known.take_new(batch)) for batch in batches[-5:]) < 50
    assert sum(len(known.take_new(batch)) for batch in batches[:5]) > 300


def test_sharing_imports_nothing_more_in_each_process() -> None:
    """NumPy's `unique` would import masked arrays at its first call, which takes 50 ms in each worker."""
    code = """
import sys
import numpy as np
from mallob_sat import generate
from mallob_sat.clauses import Clauses, union
from mallob_sat.formula import formula_from_list
from mallob_sat.kissat_door import door_is_open
from mallob_sat.solvers import Solver
from mallob_sat.structure import is_random
some = Clauses.of(np.array([2, 2, 1]), np.array([1, 2, 1, 2, 3]))
union([some, some])
formula = formula_from_list([x for c in generate.uniform(60, 240, 5).clauses for x in (*c, 0)])
is_random(formula)
if door_is_open():
    solver = Solver("kissat404")
    solver.add_formula(formula)
    solver.at_restarts(lambda: solver.give(some), 0.0)
    solver.solve()
print("numpy.ma" in sys.modules)
"""
    done = subprocess.run([*python(), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
