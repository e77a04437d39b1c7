"""BC, betweenness centrality: on how many shortest paths of a graph is each vertex?

A vertex's centrality is the sum, over all sources s, of the vertex's dependency: for each target, the share
of the shortest paths from s that contain the vertex. The bag contains sources; the graph is the payload,
generated once for all workers.

The result does not depend on the order of sources: all workers compute the same floats as dependencies of a
source, and each dependency is rounded to a multiple of 2^-(62 - 2n) and added as an integer. A vertex is on
fewer than 4^n paths, so sums of 64 bits do not overflow.

Processing a source of a large graph takes longer than a worker may ignore messages. So a source is processed
in parts. Its intermediate state stays in this process; a worker that receives the bag as bytes restarts the
source.

Source: Brandes, "A Faster Algorithm for Betweenness Centrality" (2001).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mallob_bags.compiled import compiled, kernel
from mallob_bags.declaration import BetweennessDeclaration
from mallob_bags.graphs import Graph, rmat, size_bytes
from mallob_bags.numbers import refuse_unknown, whole_number
from mallob_bags.ranges import NumberedBag, ranges_from_bytes
from mallob_py.kit import InputError, JobInput, Payload
from mallob_py.kit.bags import Bag, BagApplication

N_MAX = 26
SEED_MAX = 2**63 - 1

# phases of the current source (progress[0]): not begun; vertices are being reached; dependencies are summed
_NONE, _OUT, _BACK = 0, 1, 2

_READ_ONLY = 'Array(int64, 1, "C", True), Array(int32, 1, "C", True)'


@compiled(f"i8({_READ_ONLY}, i8, i4[::1], f8[::1], f8[::1], i4[::1], i8[::1], f8, i8[::1], i8)")
def _advance(
    offsets: NDArray[np.int64],
    targets: NDArray[np.int32],
    source: int,
    distance: NDArray[np.int32],
    paths: NDArray[np.float64],
    dependency: NDArray[np.float64],
    queue: NDArray[np.int32],
    progress: NDArray[np.int64],
    scale: float,
    total: NDArray[np.int64],
    budget: int,
) -> int:
    """Continue a source until about `budget` edges are processed; return the remaining budget."""
    phase, at, reached = progress[0], progress[1], progress[2]
    if phase == _NONE:
        phase, at, reached = _OUT, 0, 1
        queue[0] = source
        distance[source] = 0
        paths[source] = 1.0
    if phase == _OUT:
        while at < reached and budget > 0:
            v = queue[at]
            at += 1
            next_distance = distance[v] + 1
            begin, end = offsets[v], offsets[v + 1]
            budget -= end - begin + 1
            for edge in range(begin, end):
                w = targets[edge]
                if distance[w] < 0:
                    distance[w] = next_distance
                    queue[reached] = w
                    reached += 1
                if distance[w] == next_distance:
                    paths[w] += paths[v]
        if at == reached:
            phase = _BACK
    if phase == _BACK:
        while at > 0 and budget > 0:
            at -= 1
            v = queue[at]
            next_distance = distance[v] + 1
            begin, end = offsets[v], offsets[v + 1]
            budget -= end - begin + 1
            share = 0.0
            for edge in range(begin, end):
                w = targets[edge]
                if distance[w] == next_distance:
                    share += paths[v] / paths[w] * (1.0 + dependency[w])
            dependency[v] = share
        if at == 0:
            for i in range(reached):
                v = queue[i]
                if v != source:
                    total[v] += int(dependency[v] * scale + 0.5)
                distance[v] = -1
                paths[v] = 0.0
            phase = _NONE
    progress[0], progress[1], progress[2] = phase, at, reached
    return budget


class _Desk(NamedTuple):
    """Arrays with an element per vertex, for the source that is being processed; they are never sent."""

    distance: NDArray[np.int32]
    paths: NDArray[np.float64]
    dependency: NDArray[np.float64]
    queue: NDArray[np.int32]

    @classmethod
    def of(cls, vertices: int) -> _Desk:
        return cls(
            np.full(vertices, -1, dtype=np.int32),
            np.zeros(vertices),
            np.zeros(vertices),
            np.zeros(vertices, dtype=np.int32),
        )


class BetweennessBag(NumberedBag):
    """Sources to process. A task is a visit to an edge or a vertex. A source visits each one twice."""

    def __init__(self, graph: Graph, sources: NDArray[np.int64]) -> None:
        super().__init__(sources)
        self._graph = graph
        #: the source that is being processed
        self._source: int | None = None
        self._progress = np.zeros(3, dtype=np.int64)
        self._desk: _Desk | None = None
        self._total = np.zeros(0, dtype=np.int64)

    def _with(self, ranges: NDArray[np.int64]) -> BetweennessBag:
        return BetweennessBag(self._graph, ranges)

    def process(self, count: int) -> int:
        vertices = len(self._graph.offsets) - 1
        scale = float(1 << fraction_bits(vertices))
        if self._desk is None:
            self._desk = _Desk.of(vertices)
        desk = self._desk
        if len(self._total) == 0:
            self._total = np.zeros(vertices, dtype=np.int64)
        left = count
        while left > 0 and not self.is_empty():
            if self._source is None:
                self._source = self.take(1)[0]
            left = _advance(
                *self._graph,
                self._source,
                desk.distance,
                desk.paths,
                desk.dependency,
                desk.queue,
                self._progress,
                scale,
                self._total,
                left,
            )
            if self._progress[0] == _NONE:
                self._source = None
        return count - left

    def is_empty(self) -> bool:
        return self._source is None and super().is_empty()

    def expected_tasks(self) -> float:
        """Estimate the tasks left: per source, twice the number of all edges and vertices of the graph."""
        return 2.0 * (len(self._graph.targets) + len(self._graph.offsets) - 1) * super().expected_tasks()

    def to_bytes(self) -> bytes:
        """Encode the sources, including the current one: no result contains its dependencies yet."""
        begun = b"" if self._source is None else np.array([self._source, self._source + 1], "<i8").tobytes()
        return super().to_bytes() + begun

    def take_result(self) -> NDArray[np.int64]:
        total, self._total = self._total, np.zeros(0, dtype=np.int64)
        return total if len(total) else np.zeros(len(self._graph.offsets) - 1, dtype=np.int64)


def fraction_bits(vertices: int) -> int:
    """Return the number of fractional bits in the sums of dependencies for a graph of that size."""
    return 62 - 2 * (vertices - 1).bit_length()


class BetweennessApplication(BetweennessDeclaration, BagApplication):
    """BC for a random graph of 2^`n` vertices and a `seed`; reply: `value` (a sum), `max`, its `vertex`."""

    rehearsal: ClassVar[Mapping[str, Any] | None] = {"n": 4}

    def check(self, configuration: Mapping[str, Any]) -> None:
        refuse_unknown(configuration, ("n", "seed"))
        n = _n(configuration)
        whole_number(configuration, "seed", 0, SEED_MAX, 2)
        needed, available = size_bytes(n), _available_bytes()
        if needed > available:
            raise InputError(
                f"a graph of 2^{n} vertices takes {needed >> 20} MiB, and {available >> 20} MiB are free; "
                "choose a smaller 'n'",
                "configuration",
            )

    def read(self, job: JobInput) -> Payload:
        super().read(job)
        seed = whole_number(job.configuration, "seed", 0, SEED_MAX, 2)
        return rmat(_n(job.configuration), seed)._asdict()

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return BetweennessBag(Graph(**payload), np.array([[0, 1 << _n(configuration)]]))

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return BetweennessBag(Graph(**payload), ranges_from_bytes(data))

    def fields(self, result: NDArray[np.int64], configuration: Mapping[str, Any]) -> Mapping[str, Any]:
        scale = 1 << fraction_bits(len(result))
        vertex = int(result.argmax())
        return {
            "value": round(sum(map(int, result)) / scale, 3),
            "max": round(int(result[vertex]) / scale, 6),
            "vertex": vertex,
            "kernel": kernel("python"),
        }


def _n(configuration: Mapping[str, Any]) -> int:
    return whole_number(configuration, "n", 1, N_MAX, 10)


def _available_bytes() -> int:
    """Return the available memory of this host [bytes]."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62
