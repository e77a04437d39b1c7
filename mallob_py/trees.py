"""The shape of job trees: the root has index 0, and each worker has `CHILDREN` children.

Indices are assigned level by level, so that the workers 0..v-1 are a tree for each v (P 3.2). All code that
depends on the number of children stands here.
"""

from __future__ import annotations

#: number of children, as in the paper; the protocol works with more (`tests/simulation/test_liveness.py`)
CHILDREN = 2


def parent_of(index: int) -> int:
    """Return the parent's index; -1 for the root."""
    return (index - 1) // CHILDREN if index else -1


def children_of(index: int) -> range:
    first = CHILDREN * index + 1
    return range(first, first + CHILDREN)


def level_below(first: int, width: int) -> tuple[int, int]:
    """Return the first child, and the number of children, of the `width` neighbours that begin at `first`."""
    return CHILDREN * first + 1, CHILDREN * width


def index_in_subtree(subtree: int, position: int) -> int:
    """Return the index in the job tree of a subtree's worker at `position`, level by level (0: `subtree`)."""
    if position == 0:
        return subtree
    first, width = 0, 1
    while position >= first + width:
        first, width = level_below(first, width)
    return subtree * width + position
