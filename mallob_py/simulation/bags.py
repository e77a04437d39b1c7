"""A bag job in virtual time: workers come and go, die, are stopped, and the result must be exact.

The ledgers are the real ones (`kit.bags.ledger`); job trees, messages and processes are played. Messages
take random times, keep their order between two workers, come back if their receiver is gone, and get lost
with a process that dies. Tasks form a random tree whose size is known.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mallob_py.kit.bags.bag import Bag
from mallob_py.kit.bags.ledger import Address, AnyMessage, Ledger, Neighbours, decode, encode
from mallob_py.protocol.splitmix import splitmix64


class TreeBag(Bag):
    """Nodes of a random tree: each is (hash, levels below it); a node of hash h has some 0 to 3 children."""

    def __init__(self, nodes: list[tuple[int, int]]) -> None:
        self.nodes = nodes
        self._found = np.zeros(2, dtype=np.uint64)

    def process(self, count: int) -> int:
        done = 0
        while done < count and self.nodes:
            value, below = self.nodes.pop()
            self._found += np.array([1, value], dtype=np.uint64)
            done += 1
            self.nodes.extend(children(value, below))
        return done

    def split(self) -> TreeBag | None:
        if len(self.nodes) < 2:
            return None
        given, self.nodes = self.nodes[::2], self.nodes[1::2]
        return TreeBag(given)

    def merge(self, other: Bag) -> None:
        assert isinstance(other, TreeBag)
        self.nodes = other.nodes + self.nodes

    def is_empty(self) -> bool:
        return not self.nodes

    def take_result(self) -> NDArray[np.uint64]:
        found, self._found = self._found, np.zeros(2, dtype=np.uint64)
        return found

    def to_bytes(self) -> bytes:
        return np.array(self.nodes, dtype=np.uint64).tobytes()


def children(value: int, below: int) -> list[tuple[int, int]]:
    if below == 0:
        return []
    count = (0, 1, 2, 2, 3)[value % 5]
    return [(splitmix64(value + 1 + each), below - 1) for each in range(count)]


class TreeWork:
    def __init__(self, seed: int, depth: int) -> None:
        self.first = [(splitmix64(seed + each), depth) for each in range(4)]

    def first_bag(self) -> TreeBag:
        return TreeBag(list(self.first))

    def bag_from_bytes(self, data: bytes) -> TreeBag:
        return TreeBag(
            [(int(value), int(below)) for value, below in np.frombuffer(data, np.uint64).reshape(-1, 2)]
        )

    def fold(self, one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return one + other

    def expected(self) -> tuple[int, int]:
        bag = self.first_bag()
        while not bag.is_empty():
            bag.process(1 << 20)
        count, total = bag.take_result()
        return int(count), int(total)


class Deed(Enum):
    VOLUME = "volume"
    LEAVE = "leave"
    CRASH = "crash"
    STOP = "stop"


class Event(NamedTuple):
    """The volume becomes `value`, or worker `value` (modulo the volume) leaves, dies or is stopped."""

    at_s: float
    deed: Deed
    value: int


@dataclass(frozen=True)
class BagPlan:
    """A job, and what happens to it."""

    seed: int
    depth: int
    task_s: float
    delay_s: float
    #: of messages whose receiver is gone, how many come back (the others are lost)
    come_back: float
    checkpoint_s: float
    settle_s: float
    volume: int
    events: tuple[Event, ...]


@dataclass(frozen=True)
class BagOutcome:
    end_s: float
    result: tuple[int, int]
    expected: tuple[int, int]
    #: tasks done for nobody: in truth, and as far as the root has been told
    wasted: int
    wasted_told: int
    messages: int
    busy_s: float
    volume_s: float

    @property
    def is_exact(self) -> bool:
        return self.result == self.expected


class NeverEnds(Exception):
    """The job has not ended by the time it should have; the message tells the open accounts."""


@dataclass(eq=False)
class _Worker:
    address: Address
    index: int
    ledger: Ledger
    is_leaving: bool = False
    #: when the chunk in work is done; inf: it waits
    busy_until_s: float = math.inf
    woken_s: float = math.inf
    checkpoint_s: float = math.inf


_CHUNK_TASKS = 8
_GRACE_S = 1.0
_EVENT, _ARRIVAL, _WAKE, _END_OF_GRACE = range(4)


class BagCluster:
    """One job on workers that come and go."""

    def __init__(self, plan: BagPlan) -> None:
        self.plan = plan
        self.work = TreeWork(plan.seed, plan.depth)
        self.now = 0.0
        self._random = random.Random(plan.seed)
        self._queue: list[tuple[float, int, int, object]] = []
        self._count = 0
        #: by index: who has the seat
        self._seats: dict[int, _Worker] = {}
        self._workers: dict[Address, _Worker] = {}
        self._stopped: list[_Worker] = []
        self._last_arrival: dict[tuple[Address, Address], float] = {}
        self._contexts = 0
        self._volume = 0
        self._checkpoint: bytes | None = None
        self._messages = 0
        self._busy_s = self._volume_s = 0.0
        self._done = 0

    def run(self, limit_s: float = 1e5) -> BagOutcome:
        for event in self.plan.events:
            self._push(event.at_s, _EVENT, event)
        self._set_volume(self.plan.volume)
        while self._queue:
            at_s, _, kind, what = heapq.heappop(self._queue)
            self._volume_s += (at_s - self.now) * self._volume
            self.now = at_s
            if self.now > limit_s:
                break
            self._do(kind, what)
            root = self._seats.get(0)
            if root is not None and root.ledger.is_finished:
                return self._outcome(root)
        raise NeverEnds(f"not done after {self.now:.1f} s")

    def _outcome(self, root: _Worker) -> BagOutcome:
        result = root.ledger.result()
        found = (int(result[0]), int(result[1]))
        expected = self.work.expected()
        return BagOutcome(
            self.now,
            found,
            expected,
            self._done - expected[0],
            root.ledger.wasted_in_all(),
            self._messages,
            self._busy_s,
            self._volume_s,
        )

    def _do(self, kind: int, what: object) -> None:
        if kind == _EVENT:
            assert isinstance(what, Event)
            self._happen(what)
        elif kind == _ARRIVAL:
            assert isinstance(what, tuple)
            self._arrive(*what)
        elif isinstance(what, _Worker) and self._workers.get(what.address) is what:
            if kind == _END_OF_GRACE:
                self._remove(what)
            else:
                self._turn(what)

    def _happen(self, event: Event) -> None:
        if event.deed is Deed.VOLUME:
            self._set_volume(event.value)
            return
        worker = self._seats.get(event.value % max(1, self._volume))
        if worker is None:
            return
        if event.deed is Deed.CRASH:
            self._remove(worker)
        elif event.deed is Deed.LEAVE:
            self._leave(worker)
        else:
            self._stop(worker)
        self._set_volume(self._volume)

    def _set_volume(self, volume: int) -> None:
        self._volume = volume
        for index in sorted(self._seats, reverse=True):
            if index >= volume:
                self._leave(self._seats[index])
        for index in range(volume):
            if index not in self._seats:
                self._seat(index)
        for worker in list(self._seats.values()):
            worker.ledger.neighbours_changed(self.now)
            self._flush(worker)

    def _seat(self, index: int) -> None:
        self._contexts += 1
        if self._stopped and self._random.random() < 0.5:  # one that was stopped goes on, elsewhere maybe
            worker = self._stopped.pop(self._random.randrange(len(self._stopped)))
            worker.address, worker.index = (worker.address[0], self._contexts), index
            if index > 0:
                worker.ledger.close_root()
        else:
            ledger = Ledger(self.work, self._random.getrandbits(60), self.plan.settle_s)
            worker = _Worker((self._contexts, self._contexts), index, ledger)
        self._seats[index] = self._workers[worker.address] = worker
        if index == 0:
            if worker.ledger.root is None:
                worker.ledger.open_root(self.now, self._checkpoint)
            worker.checkpoint_s = self.now + self.plan.checkpoint_s
        worker.busy_until_s = worker.woken_s = math.inf
        self._wake(worker, self.now)

    def _leave(self, worker: _Worker) -> None:
        """Told to leave: the seat is free at once, the process has a grace."""
        del self._seats[worker.index]
        if worker.ledger.root is not None:
            self._checkpoint = worker.ledger.checkpoint()
        worker.is_leaving = True
        worker.ledger.leave(self.now)
        self._flush(worker)
        self._push(self.now + _GRACE_S, _END_OF_GRACE, worker)

    def _stop(self, worker: _Worker) -> None:
        """Stopped where it is, as by SIGSTOP: messages to it come back."""
        del self._seats[worker.index]
        del self._workers[worker.address]
        self._stopped.append(worker)

    def _remove(self, worker: _Worker) -> None:
        if self._seats.get(worker.index) is worker:
            del self._seats[worker.index]
        del self._workers[worker.address]

    # --- turns and messages

    def _turn(self, worker: _Worker) -> None:
        """What a worker's process does between two looks at its messages."""
        if self.now < min(worker.woken_s, worker.busy_until_s):
            return  # an old alarm
        worker.woken_s = worker.busy_until_s = math.inf
        ledger = worker.ledger
        ledger.tick(self.now)
        if worker.index == 0 and not worker.is_leaving and self.now >= worker.checkpoint_s:
            self._checkpoint = ledger.checkpoint()
            worker.checkpoint_s = self.now + self.plan.checkpoint_s
        if worker.is_leaving:
            if ledger.has_left:
                self._flush(worker)
                self._remove(worker)
                return
        elif done := ledger.process(_CHUNK_TASKS, self.now):
            self._done += done
            worker.busy_until_s = self.now + done * self.plan.task_s
            self._busy_s += done * self.plan.task_s
            self._push(worker.busy_until_s, _WAKE, worker)
        self._flush(worker)
        if worker.busy_until_s == math.inf:
            self._wake(worker, ledger.next_deadline())

    def _wake(self, worker: _Worker, at_s: float) -> None:
        if at_s < worker.woken_s:
            worker.woken_s = at_s
            self._push(at_s, _WAKE, worker)

    def _flush(self, worker: _Worker) -> None:
        outbox, worker.ledger.outbox = worker.ledger.outbox, []
        for dest, message in outbox:
            if isinstance(dest, Neighbours):
                for index in ((worker.index - 1) // 2, 2 * worker.index + 1, 2 * worker.index + 2):
                    if index >= 0 and index != worker.index and (peer := self._seats.get(index)) is not None:
                        self._send(worker.address, peer.address, message)
            else:
                self._send(worker.address, dest, message)

    def _send(self, source: Address, dest: Address, message: AnyMessage, back: bool = False) -> None:
        self._messages += 1
        at_s = self.now + self._random.expovariate(1 / self.plan.delay_s)
        at_s = max(at_s, self._last_arrival.get((source, dest), 0.0))
        self._last_arrival[source, dest] = at_s
        self._push(at_s, _ARRIVAL, (source, dest, encode(message), back))

    def _arrive(self, source: Address, dest: Address, data: bytes, back: bool) -> None:
        worker = self._workers.get(dest)
        message = decode(data)
        if worker is None:
            if not back and self._random.random() < self.plan.come_back:
                self._send(dest, source, message, back=True)
            return
        if back:
            worker.ledger.undelivered(source, message, self.now)
        else:
            worker.ledger.receive(source, message, self.now)
        self._flush(worker)
        if worker.busy_until_s == math.inf:
            self._wake(worker, self.now)

    def _push(self, at_s: float, kind: int, what: object) -> None:
        if at_s < math.inf:
            self._count += 1
            heapq.heappush(self._queue, (at_s, self._count, kind, what))


def draw_plan(seed: int) -> BagPlan:
    """A random job with random events."""
    rng = random.Random(seed)
    task_s = 10 ** rng.uniform(-5, -3)
    volume_max = rng.choice((1, 2, 4, 9, 30))
    length_s = 10 ** rng.uniform(-1, 1)
    events = []
    for _ in range(rng.randrange(40)):
        deed = rng.choices(list(Deed), (4, 2, 2, 1))[0]
        value = rng.randint(1, volume_max) if deed is Deed.VOLUME else rng.randrange(volume_max)
        events.append(Event(rng.uniform(0, length_s), deed, value))
    return BagPlan(
        seed=seed,
        depth=rng.randint(0, 16),
        task_s=task_s,
        delay_s=10 ** rng.uniform(-5, -1.5),
        come_back=rng.choice((1.0, 0.9, 0.0)),
        checkpoint_s=rng.choice((0.05, 1.0, math.inf)),
        settle_s=rng.choice((0.02, 0.2, 1.0)),
        volume=rng.randint(1, volume_max),
        events=tuple(sorted(events, key=lambda event: event.at_s)),
    )
