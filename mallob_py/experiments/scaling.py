"""Strong scaling of one bag of tasks on 1 to 16 workers, in virtual time.

Source: the ElasticJobScheduler paper, figure 6, which measures rigid GLB programs on 1 to 16 nodes. Here a
node is a worker. The ledgers are the real ones (`kit.bags.ledger`). The tree is like the trees of UTS
(geometric, 4 children on average, of limited depth), sampled by its distribution: nodes higher than
`CLUSTER_HEIGHT` exist one by one, and each lower subtree is only a number of nodes, sampled from the
distribution of such subtrees. All samples are drawn by hashes, so that each worker finds the same tree; the
experiment checks that each node was counted once. `mallob-py batch experiment bags` measures real programs on
the existing cores.

A worker computes for `CHUNK_S` between two looks at its messages. A message costs time at the ranks of both
workers, one after the other, and at the worker itself. So a worker that many others ask answers late. Workers
join layer by layer, as job trees grow. If no request of a worker without work has found work, the worker's
parent and children in the job tree remember the worker.
"""

from __future__ import annotations

import heapq
import math
import random
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from mallob_py.experiments import frame
from mallob_py.experiments.frame import grid
from mallob_py.experiments.intervals import interval
from mallob_py.experiments.output import Output
from mallob_py.kit.bags.bag import Bag
from mallob_py.kit.bags.ledger import Ledger, Neighbours
from mallob_py.kit.bags.messages import Address, AnyBagMessage, Lend
from mallob_py.protocol.splitmix import splitmix64
from mallob_py.simulation.setting import Network
from mallob_py.trees import children_of, parent_of

WORKERS = (1, 2, 4, 8, 16)
DEPTHS = (13, 14, 15, 16)
SEEDS = 5
#: number of nodes that one core searches in a second, measured by scripts/bench/bench_bags.py
NODES_PER_S = 60e6
CHUNK_S = 0.002
#: time to decode a message and to update the ledger
TAKING_S = 30e-6
#: duration of a message between a worker and its rank, through a pipe
PIPE_S = 20e-6
#: delay between two layers of the job tree
LAYER_S = 0.003
#: height of the subtrees that are only a number of nodes; UTS does not share smaller subtrees, either
CLUSTER_HEIGHT = 7
#: number of the root's children; a tree of depth 17 then has about as many nodes as the UTS tree with seed 19
_ROOT_CHILDREN = 12
_MEAN_CHILDREN = 4.0
_QUANTILES = 1 << 12

Node: TypeAlias = tuple[int, int]


def _children_by_quantile() -> list[int]:
    """Return the numbers of children at the quantiles of the geometric distribution, in ascending order."""
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return [int(each) for each in np.log1p(-shares) / math.log(_MEAN_CHILDREN / (1 + _MEAN_CHILDREN))]


#: mean number of nodes of a tree, indexed by its height
_WEIGHTS = [(_MEAN_CHILDREN ** (height + 1) - 1) / (_MEAN_CHILDREN - 1) for height in range(32)]
_CHILDREN = _children_by_quantile()


@cache
def _sizes() -> list[int]:
    """Return the numbers of nodes of random trees of height `CLUSTER_HEIGHT`."""
    rng = np.random.default_rng(1)
    sizes = np.ones(_QUANTILES, dtype=np.int64)
    for _ in range(CLUSTER_HEIGHT):
        born = rng.choice(_CHILDREN, _QUANTILES)
        owner = np.repeat(np.arange(_QUANTILES), born)
        sizes = 1 + np.bincount(owner, rng.choice(sizes, len(owner)), _QUANTILES).astype(np.int64)
    return [int(size) for size in sizes]


class SampledBag(Bag):
    """A bag of nodes (hash, height) of the tree; nodes of small height are searched first."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self._count = 0

    def process(self, count: int) -> int:
        nodes, done, sizes = self.nodes, 0, _sizes()
        while nodes and done < count:
            value, height = nodes.pop()
            if height <= CLUSTER_HEIGHT:
                done += sizes[value % _QUANTILES]
            else:
                done += 1
                born = _CHILDREN[value % _QUANTILES]
                nodes += [(splitmix64(value + 1 + each), height - 1) for each in range(born)]
        self._count += done
        return done

    def split(self) -> SampledBag | None:
        """Split off about half of the expected nodes; the largest subtrees are shared out first."""
        if len(self.nodes) < 2:
            return None
        kept: list[Node] = []
        given: list[Node] = []
        more = 0.0
        for node in sorted(self.nodes, key=lambda node: -node[1]):
            if more > 0:
                given.append(node)
                more -= _WEIGHTS[node[1]]
            else:
                kept.append(node)
                more += _WEIGHTS[node[1]]
        self.nodes = kept
        return SampledBag(given)

    def merge(self, other: Bag) -> None:
        assert isinstance(other, SampledBag)
        self.nodes = other.nodes + self.nodes

    def is_empty(self) -> bool:
        return not self.nodes

    def expected_tasks(self) -> float:
        return sum(_WEIGHTS[height] for _, height in self.nodes)

    def take_result(self) -> int:
        count, self._count = self._count, 0
        return count

    def to_bytes(self) -> bytes:
        return np.array(self.nodes, dtype=np.uint64).tobytes()


class SampledTree:
    """The tree as a job, in the form that the ledgers need."""

    def __init__(self, depth: int, seed: int = 0) -> None:
        self._first = [(splitmix64(seed + each), depth - 1) for each in range(_ROOT_CHILDREN)]

    minimizes = False

    def first_bag(self) -> SampledBag:
        return SampledBag(list(self._first))

    def bag_from_bytes(self, data: bytes) -> SampledBag:
        return SampledBag(
            [(value, height) for value, height in np.frombuffer(data, np.uint64).reshape(-1, 2).tolist()]
        )

    def fold(self, one: int, other: int) -> int:
        return one + other


class Sharing(msgspec.Struct, frozen=True):
    """The course of a job: number of its tree's nodes, time [s], and number of loans of tasks."""

    nodes: int
    seconds: float
    loans: int


class _Worker:
    __slots__ = ("free_s", "inbox", "index", "ledger", "wake_s")

    def __init__(self, index: int, ledger: Ledger) -> None:
        self.index = index
        self.ledger = ledger
        self.inbox: list[tuple[Address, AnyBagMessage]] = []
        #: time until which the worker computes
        self.free_s = 0.0
        self.wake_s = math.inf


class Sharers:
    """One job on workers without faults or resizes."""

    def __init__(self, workers: int, depth: int, seed: int = 0) -> None:
        network = Network()
        self._random = random.Random(seed)
        self._rank_s = (network.handling_us + network.sending_us) * 1e-6
        self._network_s = network.other_host_us * 1e-6 + 2 * PIPE_S
        self._jitter_s = network.jitter_us * 1e-6
        #: indexed by worker: time until which its rank handles other messages
        self._ranks_s = [0.0] * workers
        self._last_arrival_s: dict[tuple[int, int], float] = {}
        self._events: list[tuple[float, int, _Worker, tuple[Address, AnyBagMessage] | None]] = []
        self._number = 0
        tree = SampledTree(depth, seed)
        self._workers = []
        for index in range(workers):
            worker = _Worker(index, Ledger(tree, splitmix64(seed * workers + index)))
            self._workers.append(worker)
            self._wake(worker, ((index + 1).bit_length() - 1) * LAYER_S)
        self._seated = 0
        self._loans = 0
        self._done = 0

    def play(self) -> Sharing:
        """Simulate the job to its end. Its result must be the number of nodes that were searched."""
        events = self._events
        while True:
            at_s, _, worker, message = heapq.heappop(events)
            if message is not None:
                worker.inbox.append(message)
            elif at_s != worker.wake_s:
                continue
            if at_s >= worker.free_s:
                end_s = self._turn(worker, at_s)
                if worker.ledger.books.is_finished:
                    assert worker.ledger.books.result() == self._done, "nodes are lost or counted twice"
                    return Sharing(self._done, end_s, self._loans)

    def _turn(self, worker: _Worker, now: float) -> float:
        worker.wake_s = math.inf
        ledger = worker.ledger
        if worker.index >= self._seated:
            self._seated = worker.index + 1
            if worker.index == 0:
                ledger.open_root(now)
            ledger.neighbours_changed(now)
        inbox, worker.inbox = worker.inbox, []
        for source, message in inbox:
            ledger.receive(source, message, now)
        now += len(inbox) * TAKING_S
        ledger.tick(now)
        self._send_all(worker, now)
        done = ledger.process(int(CHUNK_S * NODES_PER_S), now)
        if done:
            self._done += done
            now += done / NODES_PER_S
            self._send_all(worker, now)
        worker.free_s = now
        self._wake(worker, now if done else max(now, ledger.next_deadline()))
        return now

    def _wake(self, worker: _Worker, at_s: float) -> None:
        worker.wake_s = at_s
        self._push(at_s, worker, None)

    def _send_all(self, worker: _Worker, now: float) -> None:
        outbox, worker.ledger.outbox = worker.ledger.outbox, []
        for dest, message in outbox:
            near = (*children_of(worker.index), parent_of(worker.index))
            for index in near if isinstance(dest, Neighbours) else (dest[0],):
                if 0 <= index < self._seated:
                    self._send(worker, self._workers[index], message, now)

    def _send(self, source: _Worker, dest: _Worker, message: AnyBagMessage, now: float) -> None:
        self._loans += isinstance(message, Lend)
        pair = source.index, dest.index
        at_s = self._through_rank(source, now)
        at_s += self._network_s + self._random.expovariate(1 / self._jitter_s)
        at_s = max(self._through_rank(dest, at_s), self._last_arrival_s.get(pair, 0.0))
        self._last_arrival_s[pair] = at_s
        self._push(at_s, dest, ((source.index, 0), message))

    def _through_rank(self, worker: _Worker, at_s: float) -> float:
        self._ranks_s[worker.index] = at_s = max(at_s, self._ranks_s[worker.index]) + self._rank_s
        return at_s

    def _push(self, at_s: float, worker: _Worker, message: tuple[Address, AnyBagMessage] | None) -> None:
        if at_s < math.inf:
            self._number += 1
            heapq.heappush(self._events, (at_s, self._number, worker, message))


class Run(frame.Run, frozen=True):
    """A tree of this depth and seed on a number of workers."""

    depth: int
    workers: int
    seed: int


def measure(one: Run) -> Sharing:
    return Sharers(one.workers, one.depth, one.seed).play()


def run(folder: Path) -> None:
    """Simulate all trees on all numbers of workers, and print a table. Raises OSError."""
    output = Output(folder, "scaling")
    runs = [Run(depth, workers, seed) for depth in DEPTHS for workers in WORKERS for seed in range(SEEDS)]
    found = output.play(measure, runs, None, Run.name)

    def cell(size: tuple[int, int], what: str) -> str:
        of = [(found[Run(size[0], 1, seed)], found[Run(*size, seed)]) for seed in range(SEEDS)]
        values = {
            "time [s]": [one.seconds for _, one in of],
            "speedup": [alone.seconds / one.seconds for alone, one in of],
            "loans": [float(one.loans) for _, one in of],
        }
        return interval(values[what]).text(0 if what == "loans" else 2)

    rows = {f"depth {depth}, {workers} workers": (depth, workers) for depth in DEPTHS for workers in WORKERS}
    columns = {name: name for name in ("time [s]", "speedup", "loans")}
    output.tables(
        [grid("A tree of UTS's kind on 1 to 16 workers", "tree", rows, columns, cell)],
        f"a ± b is a mean over {SEEDS} trees with its 95 % interval. A worker begins when its layer of the"
        " job tree begins: the start of processes is not included.",
    )
