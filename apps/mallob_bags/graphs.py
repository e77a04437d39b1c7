"""Random graphs (R-MAT) whose degrees are distributed as in real graphs.

For each bit of the vertex numbers, the bits of an edge's two ends are (0, 0), (0, 1), (1, 0) or (1, 1) with
probabilities a, b, c, d. Loops and repeated edges stay. The random numbers come from a counter-based stream:
the k-th number is a hash of seed and k.

Source: Chakrabarti, Zhan, Faloutsos, "R-MAT: A Recursive Model for Graph Mining" (SDM 2004); stream: Steele,
Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (2014), with the finalizer of MurmurHash3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

EDGES_PER_VERTEX = 8
_A, _B, _C, _D = 0.55, 0.1, 0.1, 0.25
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_33, _11 = np.uint64(33), np.uint64(11)
#: memory needed per edge while a graph is generated
_BYTES_PER_EDGE = 48


class Graph(NamedTuple):
    """A graph. The edges from vertex v lead to targets[offsets[v] : offsets[v + 1]]."""

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]


def size_bytes(scale: int) -> int:
    """Estimate the memory needed to generate a graph of 2^scale vertices."""
    return _BYTES_PER_EDGE * EDGES_PER_VERTEX << scale


def rmat(scale: int, seed: int) -> Graph:
    """Generate a graph of 2^scale vertices."""
    vertices = 1 << scale
    edges = EDGES_PER_VERTEX * vertices
    ends = np.zeros((2, edges), dtype=np.int32)
    for bit in range(scale):
        below = uniform(seed, 2 * bit * edges, edges) > _A + _B
        ends[0] |= below.astype(np.int32) << bit
        bound = np.where(below, _C / (_C + _D), _A / (_A + _B))
        ends[1] |= (uniform(seed, (2 * bit + 1) * edges, edges) > bound).astype(np.int32) << bit
    offsets = np.zeros(vertices + 1, dtype=np.int64)
    np.cumsum(np.bincount(ends[0], minlength=vertices), out=offsets[1:])
    return Graph(offsets, ends[1][np.argsort(ends[0], kind="stable")])


def uniform(seed: int, first: int, count: int) -> NDArray[np.float64]:
    """Return `count` numbers of the stream from index `first` on, uniform in [0, 1)."""
    z = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    z *= _GOLDEN
    z += np.uint64(seed)
    for factor in (_MIX_1, _MIX_2):
        z ^= z >> _33
        z *= factor
    z ^= z >> _33
    z >>= _11
    return z.astype(np.float64) * 2.0**-53
