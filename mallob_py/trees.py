"""The shape of job trees: the root has index 0, and each worker two children.

Indices follow each other from level to level, so that the workers 0..v-1 are a tree for each v (P 3.2).
"""

from __future__ import annotations


def parent_of(index: int) -> int:
    """The parent's index; -1 for the root."""
    return (index - 1) // 2 if index else -1


def children_of(index: int) -> range:
    return range(2 * index + 1, 2 * index + 3)


def level_below(first: int, width: int) -> tuple[int, int]:
    """Where the children of `width` neighbours, the first of them `first`, begin, and how many they are."""
    return 2 * first + 1, 2 * width
