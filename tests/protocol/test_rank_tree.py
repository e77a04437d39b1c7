"""The in-order tree of ranks and the arithmetic of job trees, by their properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.protocol.rank_tree import place_of

_SIZES = st.integers(1, 300)


@st.composite
def _rank_of_size(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(_SIZES)
    return draw(st.integers(0, size - 1)), size


@given(_SIZES)
def test_the_tree_has_one_root_and_reaches_every_rank_once(size: int) -> None:
    roots = [rank for rank in range(size) if place_of(rank, size).parent is None]
    assert len(roots) == 1
    seen, ahead = set(), roots
    while ahead:
        rank = ahead.pop()
        assert rank not in seen
        seen.add(rank)
        place = place_of(rank, size)
        ahead += [child for child in (place.left, place.right) if child is not None]
    assert seen == set(range(size))


@given(_rank_of_size())
def test_parents_and_children_know_each_other(rank_of_size: tuple[int, int]) -> None:
    rank, size = rank_of_size
    place = place_of(rank, size)
    for child in (place.left, place.right):
        assert child is None or place_of(child, size).parent == rank
    if place.parent is not None:
        parent = place_of(place.parent, size)
        assert rank == (parent.left if rank < place.parent else parent.right)


def _subtree(rank: int | None, size: int) -> list[int]:
    if rank is None:
        return []
    place = place_of(rank, size)
    return [*_subtree(place.left, size), rank, *_subtree(place.right, size)]


@given(_rank_of_size())
def test_a_subtree_is_a_range_of_ranks_in_order(rank_of_size: tuple[int, int]) -> None:
    ranks = _subtree(*rank_of_size)
    assert ranks == list(range(ranks[0], ranks[-1] + 1))


@given(_rank_of_size())
def test_the_tree_is_as_flat_as_can_be(rank_of_size: tuple[int, int]) -> None:
    rank, size = rank_of_size
    depth = 0
    while (parent := place_of(rank, size).parent) is not None:
        rank, depth = parent, depth + 1
    assert depth <= math.ceil(math.log2(size + 1)) - 1


def test_a_rank_outside_the_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 4 is not in"):
        place_of(4, 4)
