"""Requests for work in a bag of tasks on very many workers, in virtual time.

The books are the real ones (`kit.bags.ledger`). The tree is one of UTS's kind (geometric, 4 children in
the mean, of limited depth), drawn by its law: nodes of more than `CLUSTER_HEIGHT` levels are there one by
one, and what hangs below is a number of nodes drawn from the distribution of such trees. All of it follows
from hashes, so that the tree is the same whoever counts it; that each node was counted once is checked.

A worker computes for `CHUNK_S` between two looks at its messages. A message costs time at the ranks of both
workers, one after the other, and at the worker itself; so who is asked by everybody is late for all.
Workers join layer by layer, as job trees grow.

Lifelines, for when no request has found work: who has nothing is remembered by its parent and children in the
job tree, as real workers are; or by all neighbours in a hypercube; or by three others at random.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from mallob_py.experiments.output import Output, Table, side_by_side
from mallob_py.kit.bags.bag import Bag
from mallob_py.kit.bags.ledger import Ledger, Neighbours
from mallob_py.kit.bags.messages import Address, AnyBagMessage, Lend, Return, Settle
from mallob_py.protocol.splitmix import splitmix64
from mallob_py.simulation.setting import Network
from mallob_py.trees import children_of, parent_of

#: nodes that one core looks at in a second, as scripts/bench/bench_bags.py measures it
NODES_PER_S = 60e6
CHUNK_S = 0.002
#: decoding a message and looking into the books
TAKING_S = 30e-6
#: a worker and its rank are connected by a pipe
PIPE_S = 20e-6
#: a worker of the next layer of the job tree begins so much later
LAYER_S = 0.003
#: trees of this height are numbers; UTS does not share what is smaller, either
CLUSTER_HEIGHT = 7
#: the root has so many children; with it a tree of depth 17 has about as many nodes as that of UTS's seed 19
_ROOT_CHILDREN = 12
_MEAN_CHILDREN = 4.0
_QUANTILES = 1 << 12

Node: TypeAlias = tuple[int, int]


def _children_by_quantile() -> list[int]:
    """Return how many children a node has, in the order of their number: a geometric distribution."""
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return [int(each) for each in np.log1p(-shares) / math.log(_MEAN_CHILDREN / (1 + _MEAN_CHILDREN))]


#: nodes that a tree of such a height has in the mean
_WEIGHTS = [(_MEAN_CHILDREN ** (height + 1) - 1) / (_MEAN_CHILDREN - 1) for height in range(32)]
_CHILDREN = _children_by_quantile()


@cache
def _sizes() -> list[int]:
    """Sizes of random trees of `CLUSTER_HEIGHT`."""
    rng = np.random.default_rng(1)
    sizes = np.ones(_QUANTILES, dtype=np.int64)
    for _ in range(CLUSTER_HEIGHT):
        born = rng.choice(_CHILDREN, _QUANTILES)
        owner = np.repeat(np.arange(_QUANTILES), born)
        sizes = 1 + np.bincount(owner, rng.choice(sizes, len(owner)), _QUANTILES).astype(np.int64)
    return [int(size) for size in sizes]


class SampledBag(Bag):
    """Nodes (hash, height) of the tree; the lowest on top."""

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
        """Half by expectation, the largest first."""
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
    """The tree, as far as the ledgers know it."""

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


#: whom worker `index` of `size` asks
Lifelines: TypeAlias = Callable[[int, int, random.Random], Sequence[int]]


def job_tree(index: int, size: int, rng: random.Random) -> Sequence[int]:
    """Parent and children."""
    return [each for each in (*children_of(index), parent_of(index)) if 0 <= each < size]


def hypercube(index: int, size: int, rng: random.Random) -> Sequence[int]:
    """All whose numbers differ in one binary digit."""
    near = [index ^ (1 << digit) for digit in range((size - 1).bit_length())]
    return [each for each in near if each < size]


def at_random(index: int, size: int, rng: random.Random) -> Sequence[int]:
    """Three others, drawn anew each time."""
    return [each for each in (rng.randrange(size) for _ in range(3)) if each != index]


LIFELINES: dict[str, Lifelines] = {"job tree": job_tree, "hypercube": hypercube, "random": at_random}


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """The course of a job."""

    lifelines: str
    workers: int
    depth: int
    nodes: int
    seconds: float
    #: time spent on nodes, of all workers' time
    efficiency: float
    #: of all workers' time, what is lost: before their first node; between nodes without any; on taking
    #: messages in, between nodes; and after their last one
    before_first: float
    searching: float
    taking: float
    after_last: float
    loans: int
    messages_per_worker_s: float
    #: sent and received by one worker
    hottest_messages_per_s: float
    #: of bags and copies, to and from one worker
    hottest_bytes_per_s: float


class _Worker:
    __slots__ = (
        "bytes",
        "first_s",
        "free_s",
        "inbox",
        "index",
        "last_s",
        "ledger",
        "messages",
        "seated_s",
        "taken_s",
        "taking_s",
        "wake_s",
    )

    def __init__(self, index: int, ledger: Ledger, seated_s: float) -> None:
        self.index = index
        self.ledger = ledger
        self.seated_s = seated_s
        self.inbox: list[tuple[Address, AnyBagMessage]] = []
        #: until then it computes
        self.free_s = 0.0
        self.wake_s = math.inf
        self.first_s = math.inf
        self.last_s = seated_s
        #: spent on taking messages in since its first node: up to now, and before its last ones
        self.taking_s = self.taken_s = 0.0
        self.messages = self.bytes = 0


class Sharers:
    """One job on workers that nothing happens to."""

    def __init__(self, workers: int, depth: int, lifelines: str, seed: int = 0) -> None:
        network = Network()
        self._lifelines = lifelines
        self._depth = depth
        self._random = random.Random(seed)
        self._rank_s = (network.handling_us + network.sending_us) * 1e-6
        self._network_s = network.other_host_us * 1e-6 + 2 * PIPE_S
        self._jitter_s = network.jitter_us * 1e-6
        #: by worker: until then its rank deals with other messages
        self._ranks_s = [0.0] * workers
        self._last_arrival_s: dict[tuple[int, int], float] = {}
        self._events: list[tuple[float, int, _Worker, tuple[Address, AnyBagMessage] | None]] = []
        self._number = 0
        tree = SampledTree(depth, seed)
        self._workers = []
        for index in range(workers):
            ledger = Ledger(tree, splitmix64(seed * workers + index))
            worker = _Worker(index, ledger, ((index + 1).bit_length() - 1) * LAYER_S)
            self._workers.append(worker)
            self._wake(worker, worker.seated_s)
        self._seated = 0
        self._loans = 0
        self.done = 0

    def play(self) -> Sharing:
        """To the end. The result is asserted to be the number of nodes that were looked at."""
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
                    return self._outcome(worker.ledger, end_s)

    def _turn(self, worker: _Worker, now: float) -> float:
        worker.wake_s = math.inf
        ledger = worker.ledger
        if worker.index >= self._seated:
            self._seat(worker, now)
        inbox, worker.inbox = worker.inbox, []
        for source, message in inbox:
            ledger.receive(source, message, now)
        now += len(inbox) * TAKING_S
        worker.taking_s += len(inbox) * TAKING_S
        ledger.tick(now)
        self._send_all(worker, now)
        done = ledger.process(int(CHUNK_S * NODES_PER_S), now)
        if done:
            self.done += done
            if worker.first_s == math.inf:
                worker.first_s, worker.taking_s = now, 0.0
            worker.taken_s = worker.taking_s
            now += done / NODES_PER_S
            worker.last_s = now
            self._send_all(worker, now)
        worker.free_s = now
        self._wake(worker, now if done else max(now, ledger.next_deadline()))
        return now

    def _seat(self, worker: _Worker, now: float) -> None:
        self._seated = worker.index + 1
        if worker.index == 0:
            worker.ledger.open_root(now)
        worker.ledger.neighbours_changed(now)

    def _wake(self, worker: _Worker, at_s: float) -> None:
        worker.wake_s = at_s
        self._push(at_s, worker, None)

    def _send_all(self, worker: _Worker, now: float) -> None:
        outbox, worker.ledger.outbox = worker.ledger.outbox, []
        for dest, message in outbox:
            if isinstance(dest, Neighbours):
                for index in LIFELINES[self._lifelines](worker.index, len(self._workers), self._random):
                    if index < self._seated:
                        self._send(worker, self._workers[index], message, now)
            else:
                self._send(worker, self._workers[dest[0]], message, now)

    def _send(self, source: _Worker, dest: _Worker, message: AnyBagMessage, now: float) -> None:
        size = _size_bytes(message)
        for worker in (source, dest):
            worker.messages += 1
            worker.bytes += size
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

    def _outcome(self, root: Ledger, end_s: float) -> Sharing:
        assert root.books.result() == self.done, "nodes are lost or counted twice"
        volume_s = sum(end_s - worker.seated_s for worker in self._workers)
        before_s = sum(min(worker.first_s, end_s) - worker.seated_s for worker in self._workers)
        efficiency = self.done / NODES_PER_S / volume_s
        before_first = before_s / volume_s
        after_last = sum(end_s - worker.last_s for worker in self._workers) / volume_s
        taking = sum(worker.taken_s for worker in self._workers) / volume_s
        return Sharing(
            lifelines=self._lifelines,
            workers=len(self._workers),
            depth=self._depth,
            nodes=self.done,
            seconds=end_s,
            efficiency=efficiency,
            before_first=before_first,
            searching=1.0 - efficiency - before_first - after_last - taking,
            taking=taking,
            after_last=after_last,
            loans=self._loans,
            messages_per_worker_s=sum(worker.messages for worker in self._workers)
            / len(self._workers)
            / end_s,
            hottest_messages_per_s=max(worker.messages for worker in self._workers) / end_s,
            hottest_bytes_per_s=max(worker.bytes for worker in self._workers) / end_s,
        )


def _size_bytes(message: AnyBagMessage) -> int:
    match message:
        case Lend():
            return len(message.bag)
        case Settle() | Return():
            return sum(map(len, message.state.bags))
        case _:
            return 0


class Case(msgspec.Struct, frozen=True):
    """One run."""

    workers: int
    depth: int
    lifelines: str = "job tree"

    def __str__(self) -> str:
        return f"{self.workers} workers, depth {self.depth}, {self.lifelines}"


CASES = (
    Case(128, 14),
    *(Case(128, 15, lifelines) for lifelines in LIFELINES),
    Case(128, 16),
    *(Case(1536, 17, lifelines) for lifelines in LIFELINES),
    Case(1536, 18),
    Case(4096, 18),
)
_HEADER = (
    "workers", "depth", "nodes [G]", "lifelines", "time [s]", "efficiency", "lost: start", "search",
    "messages", "end",
    "loans/worker", "messages/worker/s", "hottest worker: messages/s", "MB/s",
)  # fmt: skip


def measure(case: Case) -> Sharing:
    return Sharers(case.workers, case.depth, case.lifelines).play()


def run(folder: Path, cases: Sequence[Case] = CASES) -> None:
    """Play all cases, as many at a time as there are cores, and print a table."""
    output = Output(folder, "lifelines")
    rows = side_by_side(measure, cases, None, str, output.keep)
    lines = tuple(
        (
            row.workers, row.depth, row.nodes / 1e9, row.lifelines, row.seconds, row.efficiency,
            row.before_first, row.searching, row.taking, row.after_last, row.loans / row.workers,
            row.messages_per_worker_s, row.hottest_messages_per_s, row.hottest_bytes_per_s / 1e6,
        )
        for row in rows
    )  # fmt: skip
    output.tables(
        [Table("A tree of UTS's kind on many workers", _HEADER, lines)],
        f"A core looks at {NODES_PER_S / 1e6:.0f} million nodes/s; a worker looks up every "
        f"{CHUNK_S * 1e3:.0f} ms; layers of the job tree join every {LAYER_S * 1e3:.0f} ms.",
    )
