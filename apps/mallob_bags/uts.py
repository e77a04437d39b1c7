"""UTS, unbalanced tree search: how many nodes has a tree that is generated while it is searched?

A node is a SHA-1 state. The state of its child is a hash of the node's state and the child's number (`sha1`),
so all workers generate the same tree, although no memory contains it. `trees` defines a node's number of
children. The bag is a stack of nodes with the ranges of their unsearched children. Children at the depth
where all nodes are leaves are counted without being hashed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mallob_bags.compiled import HAS_NUMBA, compiled, kernel
from mallob_bags.declaration import UtsDeclaration
from mallob_bags.numbers import chosen, real_number, refuse_unknown, whole_number
from mallob_bags.sha1 import LANES, hash_arrays, hash_lanes
from mallob_bags.trees import (
    BIN_SHIFT,
    CHILDREN_MAX,
    ChildTable,
    Shape,
    Tree,
    TreeType,
    child_table,
    children_of_root,
)
from mallob_py.kit import InputError, Payload
from mallob_py.kit.bags import Bag, BagApplication

#: number of nodes, number of leaves, greatest depth
Counts: TypeAlias = tuple[int, int, int]
Rows: TypeAlias = NDArray[np.uint32]

DEPTH_MAX = 100
#: greatest number of children of a binomial tree's root
BRANCHING_MAX = 1_000_000
#: greatest q times m: binomial and hybrid trees above it are refused as endless (a known tree has 1.00007)
CRITICAL = 1.001
SEED_MAX = 2**31 - 1
#: a bag with fewer expected nodes than this number is not worth a message
NODES_NOT_SHARED = 20_000

# A row of the stack: the state (5 words), the depth, and the range of unsearched children (lower, upper).
_DEPTH, _LOWER, _UPPER, _WORDS = 5, 6, 7, 8
_V_BITS = 0x7FFFFFFF
#: number of children hashed at once without Numba
_BATCH = 16384


@compiled("i8(u4[:,::1], i8, i8, u4[:,::1], i8[:,::1], u1[:,::1], b1[::1], i8[::1])")
def _expand(
    stack: NDArray[np.uint32],
    size: int,
    count: int,
    thresholds: NDArray[np.uint32],
    children: NDArray[np.int64],
    first: NDArray[np.uint8],
    is_leaf: NDArray[np.bool_],
    counts: NDArray[np.int64],
) -> int:
    """Search children until `count` nodes are counted or the stack is full; return the stack's new size."""
    parents, states = np.zeros((6, LANES), dtype=np.uint32), np.zeros((5, LANES), dtype=np.uint32)
    depths = np.zeros(LANES, dtype=np.int64)
    last_depth = len(is_leaf) - 1
    nodes, leaves, deepest = 0, 0, counts[2]
    while size > 0 and nodes < count and size + LANES <= len(stack):
        taken = 0
        while taken < LANES and size > 0:
            top = size - 1
            lower, upper = np.int64(stack[top, 6]), np.int64(stack[top, 7])
            begin = max(lower, upper - (LANES - taken))
            depth = np.int64(stack[top, 5]) + 1
            for number in range(begin, upper):
                for i in range(5):
                    parents[i, taken] = stack[top, i]
                parents[5, taken] = number
                depths[taken] = depth
                taken += 1
            if begin == lower:
                size = top
            else:
                stack[top, 7] = begin
        hash_lanes(parents, states)
        nodes += taken
        for j in range(taken):
            depth = depths[j]
            row = min(depth, last_depth)
            v = states[4, j] & np.uint32(_V_BITS)
            step = np.int64(first[row, v >> np.uint32(BIN_SHIFT)])
            while v >= thresholds[row, step]:
                step += 1
            born = children[row, step]
            if born == 0:
                leaves += 1
                deepest = max(deepest, depth)
            elif is_leaf[min(depth + 1, last_depth)]:
                nodes += born
                leaves += born
                deepest = max(deepest, depth + 1)
            else:
                for i in range(5):
                    stack[size, i] = states[i, j]
                stack[size, 5] = depth
                stack[size, 6] = 0
                stack[size, 7] = born
                size += 1
    counts[0] += nodes
    counts[1] += leaves
    counts[2] = deepest
    return size


def _expand_arrays(
    stack: NDArray[np.uint32], size: int, table: ChildTable, counts: NDArray[np.int64]
) -> Rows:
    """Search one batch of children with NumPy; return the stack plus the children that have children."""
    rows = stack[max(0, size - _BATCH) : size][::-1]
    is_open = (rows[:, _UPPER] - rows[:, _LOWER]).astype(np.int64)
    before = np.cumsum(is_open) - is_open
    taken = np.clip(_BATCH - before, 0, is_open)
    within = np.arange(taken.sum()) - np.repeat(before, taken)
    parents = np.repeat(rows, taken, axis=0)
    states = hash_arrays([*parents[:, :_DEPTH].T, parents[:, _UPPER] - 1 - within.astype(np.uint32)])
    rows[:, _UPPER] -= taken.astype(np.uint32)
    kept = stack[: size - np.count_nonzero(taken == is_open)]

    last_depth = len(table.is_leaf) - 1
    depths = parents[:, _DEPTH].astype(np.int64) + 1
    table_row = np.minimum(depths, last_depth)
    v = states[4] & np.uint32(_V_BITS)
    step = table.first[table_row, v >> np.uint32(BIN_SHIFT)].astype(np.int64)
    while (more := v >= table.thresholds[table_row, step]).any():
        step += more
    born = table.children[table_row, step]
    childless = born == 0
    counted = ~childless & table.is_leaf[np.minimum(depths + 1, last_depth)]
    leaves = int(born[counted].sum())
    counts[0] += len(parents) + leaves
    counts[1] += np.count_nonzero(childless) + leaves
    deepest = max(depths[childless].max(initial=0), depths[counted].max(initial=-1) + 1)
    counts[2] = max(int(counts[2]), int(deepest))
    fresh = ~childless & ~counted
    words = [
        *(state[fresh] for state in states),
        depths[fresh],
        np.zeros(np.count_nonzero(fresh)),
        born[fresh],
    ]
    return np.concatenate([kept, np.stack(words, axis=1).astype(np.uint32)])


@compiled("f8(u4[:,::1], i8, f8[::1])")
def _expected_nodes(stack: Rows, size: int, expected_size: NDArray[np.float64]) -> float:
    """Return the expected number of nodes in the subtrees of all unsearched children."""
    nodes = 0.0
    for at in range(size):
        row = min(np.int64(stack[at, 5]) + 1, np.int64(len(expected_size) - 1))
        nodes += expected_size[row] * (np.int64(stack[at, 7]) - np.int64(stack[at, 6]))
    return nodes


@compiled("UniTuple(i8, 2)(u4[:,::1], i8, u4[:,::1])")
def _give_half(stack: Rows, size: int, given: Rows) -> tuple[int, int]:
    """Move half of each node's unsearched children to `given` (a single child every second time).

    Return the number of remaining rows and the number of moved rows.
    """
    left, gone, gives_single = 0, 0, False
    for at in range(size):
        lower, upper = np.int64(stack[at, 6]), np.int64(stack[at, 7])
        share = (upper - lower) // 2
        if upper - lower == 1:
            share = np.int64(gives_single)
            gives_single = not gives_single
        if share > 0:
            given[gone] = stack[at]
            given[gone, 6] = upper - share
            gone += 1
        if share < upper - lower:
            stack[left] = stack[at]
            stack[left, 7] = upper - share
            left += 1
    return left, gone


class UtsBag(Bag):
    """Nodes with unsearched children, as a stack with the deepest node on top.

    The root is no node's child, so it is in the stack with an empty range of children until it is searched.
    """

    def __init__(self, tree: Tree, table: ChildTable, rows: Rows) -> None:
        self.tree, self.table = tree, table
        self._set(rows)
        self._counts = np.zeros(3, dtype=np.int64)

    def _set(self, rows: Rows) -> None:
        """Replace the stack by these rows, with room for further nodes on top."""
        self._size = len(rows)
        self._stack = np.zeros((2 * len(rows) + 64 * LANES, _WORDS), dtype=np.uint32)
        self._stack[: self._size] = rows

    @property
    def rows(self) -> Rows:
        return self._stack[: self._size]

    def expected_tasks(self) -> float:
        if HAS_NUMBA:
            return float(_expected_nodes(self._stack, self._size, self.table.size))
        rows, sizes = self.rows, self.table.size
        is_open = (rows[:, _UPPER] - rows[:, _LOWER]).astype(np.int64)
        return float((sizes[np.minimum(rows[:, _DEPTH] + 1, len(sizes) - 1)] * is_open).sum())

    def process(self, count: int) -> int:
        before = int(self._counts[0])
        if self._size and self._stack[0, _UPPER] == 0:
            self._look_at_root()
        elif HAS_NUMBA:
            if self._size + LANES > len(self._stack):
                self._set(self.rows)
            self._size = int(_expand(self._stack, self._size, count, *self.table[:4], self._counts))
        else:
            while self._size and int(self._counts[0]) - before < count:
                self._set(_expand_arrays(self._stack, self._size, self.table, self._counts))
        return int(self._counts[0]) - before

    def _look_at_root(self) -> None:
        born = children_of_root(self.tree, self.table, int(self._stack[0, 4]))
        self._stack[0, _UPPER] = born
        self._counts[0] += 1
        if born == 0:
            self._counts[1] += 1
            self._size = 0
        elif self.table.is_leaf[min(1, len(self.table.is_leaf) - 1)]:
            self._counts += (born, born, 1)
            self._size = 0

    def split(self) -> UtsBag | None:
        """Split off half of each node's unsearched children (a single child every second time)."""
        if self.expected_tasks() < NODES_NOT_SHARED:
            return None
        given = np.empty((self._size, _WORDS), dtype=np.uint32)
        self._size, gone = map(int, _give_half(self._stack, self._size, given))
        return UtsBag(self.tree, self.table, given[:gone]) if gone else None

    def merge(self, other: Bag) -> None:
        assert isinstance(other, UtsBag)
        self._set(np.concatenate([other.rows, self.rows]))

    def is_empty(self) -> bool:
        return self._size == 0

    def take_result(self) -> Counts:
        nodes, leaves, depth = map(int, self._counts)
        self._counts[:] = 0
        return nodes, leaves, depth

    def to_bytes(self) -> bytes:
        return self.rows.astype("<u4").tobytes()


class UtsApplication(UtsDeclaration, BagApplication):
    """UTS for a tree by `type`, `shape`, `depth` and so on; reply: `value` (nodes), `leaves`, `depth`."""

    rehearsal: ClassVar[Mapping[str, Any] | None] = {"depth": 8}

    def check(self, configuration: Mapping[str, Any]) -> None:
        refuse_unknown(configuration, [each.name for each in dataclasses.fields(Tree)])
        tree_of(configuration)

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        tree = tree_of(configuration)
        row = np.zeros((1, _WORDS), dtype=np.uint32)
        state = hashlib.sha1(bytes(16) + tree.seed.to_bytes(4, "big"), usedforsecurity=False).digest()
        row[0, :_DEPTH] = np.frombuffer(state, dtype=">u4")
        return UtsBag(tree, child_table(tree), row)

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        tree = _checked_tree(tuple(configuration.items()))
        return UtsBag(tree, child_table(tree), np.frombuffer(data, dtype="<u4").reshape(-1, _WORDS))

    def fold(self, one: Counts, other: Counts) -> Counts:
        return one[0] + other[0], one[1] + other[1], max(one[2], other[2])

    def fields(self, result: Counts, configuration: Mapping[str, Any]) -> Mapping[str, Any]:
        nodes, leaves, depth = result
        return {"value": nodes, "leaves": leaves, "depth": depth, "kernel": kernel("numpy")}


@lru_cache(maxsize=8)
def _checked_tree(configuration: tuple[tuple[str, Any], ...]) -> Tree:
    """Return the tree of a checked configuration. It is cached, because many bags of the same tree arrive."""
    return tree_of(dict(configuration))


def tree_of(configuration: Mapping[str, Any]) -> Tree:
    """Return the tree of a configuration. Raises InputError.

    Keys that do not apply to the tree's type may have any value within bounds.
    """
    tree_type = TreeType(chosen(configuration, "type", [each.value for each in TreeType], "geometric"))
    is_binomial = tree_type is TreeType.BINOMIAL
    tree = Tree(
        type=tree_type,
        shape=Shape(chosen(configuration, "shape", [each.value for each in Shape], "fixed")),
        depth=whole_number(configuration, "depth", 1, DEPTH_MAX, Tree.depth),
        branching=real_number(
            configuration, "branching", 1.0, BRANCHING_MAX if is_binomial else CHILDREN_MAX, Tree.branching
        ),
        seed=whole_number(configuration, "seed", 0, SEED_MAX, Tree.seed),
        q=real_number(configuration, "q", 0.0, 1.0, Tree.q),
        m=whole_number(configuration, "m", 1, CHILDREN_MAX, Tree.m),
    )
    if tree_type is not TreeType.GEOMETRIC and tree.q * tree.m > CRITICAL:
        raise InputError(
            f"'q' times 'm' is {tree.q * tree.m:g}; above {CRITICAL:g} a tree has no end", "configuration"
        )
    return tree
