"""The trees of UTS: a node's number of children, by its depth and the last word of its state.

The state of a node at depth d determines its number of children by v = last word & 0x7fffffff, which is
uniform. In geometric trees, the mean b(d) depends on the shape and the number of children is int(log(1 - v /
2^31) / log(b / (1 + b))). In binomial trees, the root has `branching` children and any other node has m
children with probability q, else no children. Hybrid trees are geometric in their upper half and binomial
below.

Numbers of children are looked up in a `ChildTable`: for each depth it contains the values of v from which on
a node has one child more. The formula itself computes the table, so that even rounding is the same.

Source: Olivier et al., "UTS: An Unbalanced Tree Search Benchmark" (LCPC 2006). The limit of 100 children per
node is that of the paper's C program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHILDREN_MAX = 100
_V_END = 1 << 31
#: number of bits by which v is shifted to get its bin, at which the search in a table begins
BIN_SHIFT = 21
_BINS = _V_END >> BIN_SHIFT


class TreeType(Enum):
    GEOMETRIC = "geometric"
    BINOMIAL = "binomial"
    HYBRID = "hybrid"


class Shape(Enum):
    """The functions of depth that define the mean number of children in geometric trees."""

    FIXED = "fixed"
    LINEAR = "linear"
    CYCLIC = "cyclic"


@dataclass(frozen=True)
class Tree:
    """A tree. `depth` is for geometric trees (the period of cyclic trees), q and m are for binomial trees."""

    type: TreeType = TreeType.GEOMETRIC
    shape: Shape = Shape.FIXED
    depth: int = 10
    branching: float = 4.0
    seed: int = 19
    q: float = 0.15
    m: int = 4

    def is_geometric_at(self, depth: int) -> bool:
        """Tell whether the numbers of children of nodes at this depth are geometrically distributed."""
        return self.type is TreeType.GEOMETRIC or (self.type is TreeType.HYBRID and 2 * depth < self.depth)

    def mean_children(self, depth: int) -> float:
        """Return b(depth), the mean number of children at a depth where the tree is geometric."""
        if depth == 0:
            return self.branching
        match self.shape:
            case Shape.FIXED:
                return self.branching if depth < self.depth else 0.0
            case Shape.LINEAR:
                return self.branching * (1.0 - depth / self.depth)
            case Shape.CYCLIC:
                if depth > 5 * self.depth:
                    return 0.0
                return math.pow(self.branching, math.sin(2.0 * 3.141592653589793 * depth / self.depth))


class ChildTable(NamedTuple):
    """Numbers of children by the depth of a node. Rows are depths; the last row holds for greater depths,
    too.

    The index in `children` for a node with v is the number of thresholds at or below v. Counting may begin
    with `first`: the number of thresholds at or below the least value with the same upper bits as v.
    """

    thresholds: NDArray[np.uint32]
    children: NDArray[np.int64]
    first: NDArray[np.uint8]
    #: whether no node at the depth can have children
    is_leaf: NDArray[np.bool_]
    #: expected number of nodes below a node, including the node itself
    size: NDArray[np.float64]


@cache
def child_table(tree: Tree) -> ChildTable:
    """Return the table of a tree. The table is cached, because many bags of the same tree arrive."""
    depths = _depths(tree)
    thresholds = np.full((depths, CHILDREN_MAX + 1), _V_END, dtype=np.uint32)
    children = np.zeros((depths, CHILDREN_MAX + 2), dtype=np.int64)
    mean = np.zeros(depths)
    for depth in range(depths):
        if tree.is_geometric_at(depth):
            mean[depth] = b = max(0.0, tree.mean_children(depth))
            steps = geometric_thresholds(b)
            thresholds[depth, : len(steps)] = steps
            children[depth] = np.minimum(np.arange(CHILDREN_MAX + 2), CHILDREN_MAX)
        else:
            mean[depth] = tree.q * tree.m
            thresholds[depth, 0] = _first_at_least(tree.q, lambda v: v / _V_END, round(tree.q * _V_END))
            children[depth, 0] = tree.m
    size = np.ones(depths)
    size[-1] = 1.0 / max(1.0 - mean[-1], 1e-9)
    for depth in reversed(range(depths - 1)):
        size[depth] = 1.0 + mean[depth] * size[depth + 1]
    bins = np.arange(_BINS, dtype=np.uint32) << np.uint32(BIN_SHIFT)
    first = np.array([np.searchsorted(row, bins, side="right") for row in thresholds], dtype=np.uint8)
    return ChildTable(thresholds, children, first, mean == 0.0, size)


def _depths(tree: Tree) -> int:
    """Return the number of depths at which the numbers of children have different distributions."""
    match tree.type:
        case TreeType.BINOMIAL:
            return 1
        case TreeType.HYBRID:
            return (tree.depth + 1) // 2 + 1
        case TreeType.GEOMETRIC:
            return (5 * tree.depth + 1 if tree.shape is Shape.CYCLIC else tree.depth) + 1


def children_of_root(tree: Tree, table: ChildTable, last_word: int) -> int:
    """Return the number of the root's children; in a binomial tree, `branching` is the number."""
    if tree.type is TreeType.BINOMIAL:
        return int(tree.branching)
    v = last_word & (_V_END - 1)
    return int(table.children[0, np.searchsorted(table.thresholds[0], v, side="right")])


@cache
def geometric_thresholds(b: float) -> list[int]:
    """Return, for the mean b, the smallest v with 1 child, with 2 children, ..., as long as such v exist."""
    if b <= 0.0:
        return []
    p = 1.0 / (1.0 + b)
    scale = math.log(1.0 - p)

    def number(v: int) -> float:
        return int(math.log(1.0 - v / _V_END) / scale)

    most = min(int(number(_V_END - 1)), CHILDREN_MAX)
    near = [round(_V_END * (1.0 - math.exp(k * scale))) for k in range(1, most + 1)]
    return [_first_at_least(k, number, v) for k, v in enumerate(near, start=1)]


def _first_at_least(bound: float, rising: Callable[[int], float], near: int) -> int:
    """Return the smallest v at which a rising function reaches a bound; the search begins at `near`."""
    v = min(max(near, 0), _V_END - 1)
    while v > 0 and rising(v - 1) >= bound:
        v -= 1
    while v < _V_END and rising(v) < bound:
        v += 1
    return v
