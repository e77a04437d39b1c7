"""UTS: trees whose numbers of nodes are known, for each kernel, and for each division among workers."""

import hashlib
import math
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from mallob_bags.sha1 import LANES, hash_lanes
from mallob_bags.trees import geometric_thresholds
from mallob_bags.uts import UtsApplication, UtsBag
from mallob_py.kit import InputError

#: numbers of nodes, by depth, of the fixed geometric tree with 4 children on average and seed 19
NODES = [6, 65, 254, 944, 3987, 16000, 63914, 257042, 1031269, 4130071]
#: tree -> configuration; number of nodes, number of leaves, depth
PUBLISHED: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "T5": ({"shape": "linear", "depth": 20, "seed": 34}, (4147582, 2181318, 20)),
    "T2": ({"shape": "cyclic", "depth": 16, "branching": 6, "seed": 502}, (4117769, 2342762, 81)),
    "T3": (
        {"type": "binomial", "branching": 2000, "q": 0.124875, "m": 8, "seed": 42},
        (4112897, 3599034, 1572),
    ),
    "T4": (
        {"type": "hybrid", "shape": "linear", "depth": 16, "branching": 6, "seed": 1, "q": 0.234375, "m": 4},
        (4132453, 3108986, 134),
    ),
}


def first_bag(configuration: dict[str, Any]) -> UtsBag:
    bag = UtsApplication().first_bag({}, configuration)
    assert isinstance(bag, UtsBag)
    return bag


def counted(bag: UtsBag, count: int = 100_000) -> tuple[int, int, int]:
    while not bag.is_empty():
        assert bag.process(count) > 0
    return bag.take_result()


@pytest.mark.parametrize("depth", range(1, 11))
def test_fixed_trees_have_their_known_numbers_of_nodes(depth: int) -> None:
    assert counted(first_bag({"depth": depth}))[0] == NODES[depth - 1]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_trees_come_out(name: str) -> None:
    configuration, expected = PUBLISHED[name]
    assert counted(first_bag(configuration)) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_tree_shared_at_random_is_counted_once(name: str) -> None:
    configuration, expected = PUBLISHED[name]
    rng, application = random.Random(name), UtsApplication()
    bags, total = [first_bag(configuration)], (0, 0, 0)
    while bags:
        bag = bags.pop(rng.randrange(len(bags)))
        bag.process(rng.randrange(1, 200_000))
        total = application.fold(total, bag.take_result())
        if len(bags) > 1 and rng.random() < 0.2:
            bag.merge(bags.pop())
        if len(bags) < 20 and (given := bag.split()) is not None:
            again = application.bag_from_bytes(given.to_bytes(), {}, configuration)
            assert isinstance(again, UtsBag)
            bags.append(again)
        if not bag.is_empty():
            bags.append(bag)
    assert total == expected


def test_what_is_hardly_any_work_is_not_split() -> None:
    bag = first_bag({"depth": 4})
    bag.process(1)
    assert not bag.is_empty()
    assert bag.split() is None


def test_a_split_takes_half_of_what_is_expected_and_leaves_a_single_child() -> None:
    bag = first_bag({"depth": 12})
    bag.process(100_000)
    before = bag.expected_tasks()
    given = bag.split()
    assert given is not None
    assert given.expected_tasks() + bag.expected_tasks() == pytest.approx(before)
    assert 0.3 * before < given.expected_tasks() < 0.7 * before
    row = bag.rows[:1].copy()
    row[0, 6], row[0, 7] = 1, 2
    single = UtsBag(bag.tree, bag.table, row)
    assert single.expected_tasks() > 20_000
    assert single.split() is None
    assert not single.is_empty()


def test_numpy_counts_the_same_where_there_is_no_numba() -> None:
    script = """
import sys
sys.modules["numba"] = None
from mallob_bags.compiled import HAS_NUMBA
from mallob_bags.uts import UtsApplication
assert not HAS_NUMBA
configurations = ({"depth": 8}, {"depth": 1}, {"type": "binomial", "branching": 20000, "q": 0.2, "m": 3},
    {"shape": "cyclic", "depth": 6, "branching": 3}, {"type": "hybrid", "depth": 9})
for configuration in configurations:
    bag = UtsApplication().first_bag({}, configuration)
    while not bag.is_empty():
        bag.process(1)
        if (given := bag.split()) is not None:
            bag.merge(given)
    print(*bag.take_result(), configuration)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    for line in lines:
        *numbers, configuration = line.split(" ", 3)
        assert counted(first_bag(eval(configuration))) == tuple(map(int, numbers))
    assert lines[0].startswith("257042 ")
    assert not done.stderr


def test_hashes_are_those_of_hashlib() -> None:
    words = np.random.default_rng(1).integers(0, 2**32, (6, LANES), dtype=np.uint32)
    states = np.zeros((5, LANES), dtype=np.uint32)
    hash_lanes(words, states)
    for column, state in zip(words.T, states.T, strict=True):
        digest = hashlib.sha1(column.astype(">u4").tobytes(), usedforsecurity=False).digest()
        assert state.astype(">u4").tobytes() == digest


@pytest.mark.parametrize("b", [0.01, 0.5, 1.0, 4.0, 7.0, 100.0])
def test_thresholds_are_those_of_the_formula(b: float) -> None:
    thresholds = geometric_thresholds(b)
    near = [v + d for v in thresholds for d in (-1, 0, 1) if 0 <= v + d < 2**31]
    for v in (0, 2**31 - 1, *near):
        children = int(math.log(1 - v / 2**31) / math.log(1 - 1 / (1 + b)))
        assert sum(v >= threshold for threshold in thresholds) == min(children, 100)


@pytest.mark.parametrize(
    ("configuration", "field"),
    [
        *(({"depth": depth}, "depth") for depth in (0, -1, 10**9, "many", True, None, 2.5, [3])),
        *(({"branching": b}, "branching") for b in (0, 101, "four", None, "nan", True)),
        ({"type": "binomial", "branching": 10**7}, "branching"),
        ({"type": "square"}, "type"),
        ({"shape": ["fixed"]}, "shape"),
        ({"seed": -1}, "seed"),
        ({"q": "1.5"}, "q"),
        ({"m": 0}, "m"),
        ({"type": "binomial", "q": 0.5, "m": 3}, "q"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(configuration: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"'{field}' "):
        UtsApplication().check(configuration)
