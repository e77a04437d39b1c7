"""PI: how many random points of a square are in the circle? A bag of chunks of points.

Philox, a counter-based generator, generates a chunk's points from the seed and the chunk's number. So the
points are the same in each worker. Coordinates are odd integers below 2^31, so that nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mallob_bags.declaration import PiDeclaration
from mallob_bags.numbers import refuse_unknown, whole_number
from mallob_bags.ranges import NumberedBag, ranges_from_bytes
from mallob_py.kit import Payload
from mallob_py.kit.bags import Bag, BagApplication

POINTS_MAX = 10**15
SEED_MAX = 2**63 - 1
#: number of points per task; a task takes a few tenths of a millisecond
CHUNK_POINTS = 1 << 15
#: number of points generated at a time; for larger arrays the system would map memory anew each time
_AT_ONCE = 1 << 13
_BITS = np.uint64(0x7FFFFFFF)
_ODD = np.uint64(1)
_HIGH = np.uint64(33)
_RADIUS_SQUARED = np.uint64(1 << 62)


def hits_of_chunk(seed: int, chunk: int, points: int) -> int:
    """Count the points in the circle among the first `points` points of a chunk."""
    generator, hits = np.random.Philox(key=seed, counter=[0, chunk, 0, 0]), 0
    for first in range(0, points, _AT_ONCE):
        drawn = generator.random_raw(min(_AT_ONCE, points - first))
        x, y = (drawn & _BITS) | _ODD, (drawn >> _HIGH) | _ODD
        hits += int(np.count_nonzero(x * x + y * y < _RADIUS_SQUARED))
    return hits


class PiBag(NumberedBag):
    """Chunks whose points are still to be generated."""

    def __init__(self, points: int, seed: int, chunks: NDArray[np.int64]) -> None:
        super().__init__(chunks)
        self._points, self._seed = points, seed
        self._hits = 0

    def _with(self, ranges: NDArray[np.int64]) -> PiBag:
        return PiBag(self._points, self._seed, ranges)

    def process(self, count: int) -> int:
        chunks = self.take(count)
        for chunk in chunks:
            points = min(CHUNK_POINTS, self._points - chunk * CHUNK_POINTS)
            self._hits += hits_of_chunk(self._seed, chunk, points)
        return len(chunks)

    def take_result(self) -> int:
        hits, self._hits = self._hits, 0
        return hits


class PiApplication(PiDeclaration, BagApplication):
    """PI for `points` and a `seed`; reply: `value` (near pi), `hits` of `points`, standard `error`."""

    rehearsal: ClassVar[Mapping[str, Any] | None] = {"points": 4 * CHUNK_POINTS}

    def check(self, configuration: Mapping[str, Any]) -> None:
        refuse_unknown(configuration, ("points", "seed"))
        _points(configuration)
        _seed(configuration)

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        points = _points(configuration)
        chunks = np.array([[0, -(-points // CHUNK_POINTS)]], dtype=np.int64)
        return PiBag(points, _seed(configuration), chunks)

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return PiBag(_points(configuration), _seed(configuration), ranges_from_bytes(data))

    def fields(self, result: int, configuration: Mapping[str, Any]) -> Mapping[str, Any]:
        points = _points(configuration)
        share = result / points
        error = 4 * math.sqrt(share * (1 - share) / points)
        return {"value": 4 * share, "hits": result, "points": points, "error": error}


def _points(configuration: Mapping[str, Any]) -> int:
    return whole_number(configuration, "points", 1, POINTS_MAX, 10**9)


def _seed(configuration: Mapping[str, Any]) -> int:
    return whole_number(configuration, "seed", 0, SEED_MAX, 1)
