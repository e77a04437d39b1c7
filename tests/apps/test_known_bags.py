"""The bags that come with mallob-py: known answers, and the laws of bags."""

from __future__ import annotations

import pytest

from mallob_bags.queens import QueensApplication, QueensBag
from mallob_py.kit import InputError, JobInput

SOLUTIONS = {1: 1, 2: 0, 3: 0, 4: 2, 5: 10, 6: 4, 7: 40, 8: 92, 9: 352}


def emptied(bag: QueensBag, count: int = 1000) -> int:
    while not bag.is_empty():
        assert bag.process(count) > 0
    return bag.take_result()


def first_bag(n: int) -> QueensBag:
    bag = QueensApplication().first_bag({}, {"n": n})
    assert isinstance(bag, QueensBag)
    return bag


@pytest.mark.parametrize("n", SOLUTIONS)
def test_queens_are_counted(n: int) -> None:
    assert emptied(first_bag(n), count=7) == SOLUTIONS[n]


def test_parts_of_a_bag_are_the_bag() -> None:
    bag, total = first_bag(9), 0
    bag.process(5)
    parts = bag.split_into(3)
    assert len(parts) == 3
    for part in parts:
        again = QueensApplication().bag_from_bytes(part.to_bytes(), {}, {"n": 9})
        assert isinstance(again, QueensBag)
        total += emptied(again)
    assert total + emptied(bag) == SOLUTIONS[9]


def test_a_bag_takes_in_another() -> None:
    bag = first_bag(8)
    bag.process(20)
    other = bag.split()
    assert other is not None
    bag.merge(other)
    assert emptied(bag) == SOLUTIONS[8]


@pytest.mark.parametrize("n", [0, -1, 10**9, "many", True, None, 2.5])
def test_numbers_out_of_bounds_are_refused_by_name(n: object) -> None:
    with pytest.raises(InputError, match="'n' "):
        QueensApplication().check({"n": n})


def test_input_is_refused() -> None:
    with pytest.raises(InputError, match="takes no input"):
        QueensApplication().read(JobInput(files=["x"]))
