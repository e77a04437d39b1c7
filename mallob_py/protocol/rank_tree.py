"""In-order binary tree over the ranks 0..m-1: the one tree of all collectives (P 3.2).

Every subtree is a contiguous range of ranks; all ranks left of a node are smaller, all ranks
right of it larger. So sums over "all smaller ranks" can be read off on the way down. The
tree is balanced: depth at most ceil(log2(m + 1)) - 1.
"""

from __future__ import annotations

from typing import NamedTuple


class TreePlace(NamedTuple):
    """One rank's neighbours in the tree; None: no such neighbour."""

    parent: int | None
    left: int | None
    right: int | None

    @property
    def children(self) -> tuple[int, ...]:
        return tuple(child for child in (self.left, self.right) if child is not None)


def _middle(low: int, high: int) -> int | None:
    return (low + high) // 2 if low < high else None


def place_of(rank: int, size: int) -> TreePlace:
    """Return the neighbours of `rank` among `size` ranks, in O(log size)."""
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not in 0..{size - 1}")
    low, high, parent = 0, size, None
    while (node := (low + high) // 2) != rank:
        parent = node
        low, high = (low, node) if rank < node else (node + 1, high)
    return TreePlace(parent, _middle(low, rank), _middle(rank + 1, high))


def root_of(size: int) -> int:
    """Return the rank without parent."""
    return size // 2
