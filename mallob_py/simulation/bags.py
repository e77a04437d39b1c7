"""Bag jobs in virtual time: workers come and go, die, are stopped, and the result must be exact.

What happens to such a job is data, a `BagPlan`: a tree, times, and events of workers. `draw_plan` makes a
plan from a seed. As with plans of clusters (`plan.py`), a plan with a part left out plays like the whole plan
except where the part matters: each random number follows from the seed and from the thing that it is about (a
worker is named by its index and by the number of earlier workers on that seat).

The ledgers are the real ones (`kit.bags.ledger`); job trees, messages and processes are simulated. Messages
take random times, keep their order between two workers, come back if their receiver is gone, and get lost
with a process that dies. Tasks form a random tree of known size.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.kit.bags.bag import Bag
from mallob_py.kit.bags.books import Entry
from mallob_py.kit.bags.ledger import BOUNDS, Bounds, Ledger, Neighbours
from mallob_py.kit.bags.messages import (
    Address,
    AnyBagMessage,
    Better,
    Cut,
    Lifeline,
    WorkWanted,
    decode,
    encode,
)
from mallob_py.protocol.splitmix import splitmix64
from mallob_py.simulation.delays import mixed
from mallob_py.simulation.shrinking import Failure, failure_by
from mallob_py.trees import children_of, parent_of


class EventKind(Enum):
    """The kinds of events of a bag job's workers."""

    VOLUME = "volume"
    LEAVE = "leave"
    CRASH = "crash"
    STOP = "stop"
    CHANGE = "change"


class Event(msgspec.Struct, frozen=True):
    """One event: the volume becomes `value`, or worker `value` (modulo volume) leaves, dies or stops.

    With CHANGE, the rank of that worker is lost and a new generation begins (`protocol/succession.py`): the
    other workers are stopped, messages under way are lost, and the workers go on under new addresses, on old
    or new seats.
    """

    at_s: float
    kind: EventKind
    value: int


class Slow(msgspec.Struct, frozen=True, order=True):
    """Message `number` from one worker to another; (index, turn): worker number `turn` at that index."""

    source: tuple[int, int]
    dest: tuple[int, int]
    number: int


class BagPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A bag job and its events. If `slow` names messages, all other messages take the shortest time."""

    seed: int
    #: depth of the tree whose nodes are the tasks
    depth: int
    task_s: float
    #: average delay of messages; most messages take less
    delay_s: float
    #: share of messages to lost or departed workers that come back to their senders; the others are lost
    come_back: float = 1.0
    #: share of all messages that get lost
    lost: float = 0.0
    #: interval of sending the root's state to the client; None: the state is sent only when the root leaves
    checkpoint_s: float | None = None
    settle_s: float = 1.0
    #: values for `ledger.Bounds`; None: the values that real workers have
    loan_bytes: int | None = None
    told_bytes_per_s: int | None = None
    #: whether each bag can estimate the number of its tasks
    is_measured: bool = False
    #: whether the job must find the cheapest way down the tree, instead of counting all nodes
    is_search: bool = False
    volume: int
    events: tuple[Event, ...] = ()
    slow: tuple[Slow, ...] | None = None


_COMMON_KINDS = (EventKind.VOLUME, EventKind.LEAVE, EventKind.CRASH, EventKind.STOP)


def with_changes(plan: BagPlan) -> BagPlan:
    """Return the plan with some changes of generation."""
    choose = random.Random(f"bag changes {plan.seed}")
    last_s = plan.events[-1].at_s if plan.events else 0.1
    changes = (
        Event(choose.uniform(0, last_s), EventKind.CHANGE, choose.randrange(plan.volume + 2))
        for _ in range(choose.choice((1, 3, 8)))
    )
    events = sorted((*plan.events, *changes), key=lambda event: event.at_s)
    return msgspec.structs.replace(plan, events=tuple(events))


def as_search(plan: BagPlan) -> BagPlan:
    """Return the plan, with changes of generation, as a search for the cheapest leaf."""
    return with_changes(msgspec.structs.replace(plan, is_search=True))


def with_bounds(plan: BagPlan) -> BagPlan:
    """Return the plan, with changes of generation, small loans and rare reports of large states."""
    choose = random.Random(f"bag bounds {plan.seed}")
    loan_bytes, told_bytes_per_s = choose.choice((1, 32, 160)), choose.choice((100, 10_000))
    tight = msgspec.structs.replace(plan, loan_bytes=loan_bytes, told_bytes_per_s=told_bytes_per_s)
    return with_changes(tight)


def draw_plan(seed: int) -> BagPlan:
    """Draw a job with random events, many of them within a few milliseconds."""
    choose = random.Random(f"bag {seed}")
    volume_max = choose.choice((1, 2, 4, 9, 30))
    length_s = 10 ** choose.uniform(-1.5, 1)
    events = []
    for _ in range(choose.choice((0, 5, 20, 60))):
        kind = choose.choices(_COMMON_KINDS, (4, 2, 2, 1))[0]
        value = choose.randint(1, volume_max) if kind is EventKind.VOLUME else choose.randrange(volume_max)
        events.append(Event(choose.uniform(0, length_s), kind, value))
    return BagPlan(
        seed=seed,
        depth=choose.randint(0, 16),
        task_s=10 ** choose.uniform(-5, -3),
        delay_s=10 ** choose.uniform(-5, -1.5),
        come_back=choose.choice((1.0, 0.9, 0.0)),
        lost=choose.choice((0.0, 0.0, 0.01, 0.1)),
        checkpoint_s=choose.choice((0.05, 1.0, None)),
        settle_s=choose.choice((0.02, 0.2, 1.0)),
        volume=choose.randint(1, volume_max),
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        is_measured=choose.random() < 0.5,
    )


# --- simulation ---------------------------------------------------------------------------


_CHILDREN = (0, 1, 2, 2, 3)
#: mean number of nodes of a tree, indexed by the number of levels below the tree's first node
_EXPECTED = [sum((sum(_CHILDREN) / 5) ** level for level in range(below + 1)) for below in range(64)]


class TreeBag(Bag):
    """Nodes of a random tree: each is (hash, levels below it); a node has 0 to 3 children, by its hash."""

    def __init__(self, nodes: list[tuple[int, int]], is_measured: bool = False) -> None:
        self.nodes = nodes
        self._is_measured = is_measured
        self._count = self._sum = 0

    def process(self, count: int) -> int:
        done = 0
        while done < count and self.nodes:
            value, below = self.nodes.pop()
            self._sum += value
            done += 1
            self.nodes.extend(children(value, below))
        self._count += done
        return done

    def split(self) -> TreeBag | None:
        if len(self.nodes) < 2:
            return None
        given, self.nodes = self.nodes[::2], self.nodes[1::2]
        return TreeBag(given, self._is_measured)

    def merge(self, other: Bag) -> None:
        assert isinstance(other, TreeBag)
        self.nodes = other.nodes + self.nodes

    def is_empty(self) -> bool:
        return not self.nodes

    def expected_tasks(self) -> float:
        return sum(_EXPECTED[below] for _, below in self.nodes) if self._is_measured else math.inf

    def take_result(self) -> NDArray[np.uint64]:
        found = np.array([self._count, self._sum % 2**64], dtype=np.uint64)
        self._count = self._sum = 0
        return found

    def to_bytes(self) -> bytes:
        return np.array(self.nodes, dtype=np.uint64).tobytes()


def children(value: int, below: int) -> list[tuple[int, int]]:
    if below == 0:
        return []
    count = _CHILDREN[value % 5]
    return [(splitmix64(value + 1 + each), below - 1) for each in range(count)]


class SearchBag(Bag):
    """A search for the cheapest leaf of the tree of `TreeBag`: nodes are (hash, levels below, cost so far).

    A node costs its hash modulo 64. So no node is cheaper than a node on the way to it.
    """

    counts_vary = True

    def __init__(self, nodes: list[tuple[int, int, int]]) -> None:
        self.nodes = nodes
        self._best: tuple[int, int] | None = None

    def process(self, count: int) -> int:
        done = 0
        while done < count and self.nodes:
            value, below, cost = self.nodes.pop()
            done += 1
            if self._best is not None and cost >= self._best[0]:
                continue
            found = children(value, below)
            if not found:
                self._best = (cost, value)
            self.nodes.extend((each, left, cost + each % 64) for each, left in found)
        return done

    def split(self) -> SearchBag | None:
        if len(self.nodes) < 2:
            return None
        given, self.nodes = self.nodes[::2], self.nodes[1::2]
        return SearchBag(given)

    def merge(self, other: Bag) -> None:
        assert isinstance(other, SearchBag)
        self.nodes = other.nodes + self.nodes

    def is_empty(self) -> bool:
        return not self.nodes

    def best(self) -> tuple[int, int] | None:
        return self._best

    def learn(self, best: tuple[int, int]) -> None:
        self._best = best

    def to_bytes(self) -> bytes:
        return np.array(self.nodes, dtype=np.uint64).tobytes()


class SearchWork:
    """The search as a job: its answer must be the cost of the cheapest leaf, found by any worker."""

    minimizes = True

    def __init__(self, seed: int, depth: int) -> None:
        self._first = [(splitmix64(seed + each), depth, 0) for each in range(4)]

    def first_bag(self) -> SearchBag:
        return SearchBag(list(self._first))

    def bag_from_bytes(self, data: bytes) -> SearchBag:
        nodes = np.frombuffer(data, np.uint64).reshape(-1, 3).tolist()
        return SearchBag([(value, below, cost) for value, below, cost in nodes])

    def fold(self, one: int, other: int) -> int:
        return one + other

    def least(self) -> int:
        """Return the smallest cost by examining all nodes."""
        costs, nodes = [], list(self._first)
        while nodes:
            value, below, cost = nodes.pop()
            found = children(value, below)
            nodes.extend((each, left, cost + each % 64) for each, left in found)
            if not found:
                costs.append(cost)
        return min(costs)


class TreeWork:
    minimizes = False

    def __init__(self, seed: int, depth: int, is_measured: bool = False) -> None:
        self._is_measured = is_measured
        self.first = [(splitmix64(seed + each), depth) for each in range(4)]

    def first_bag(self) -> TreeBag:
        return TreeBag(list(self.first), self._is_measured)

    def bag_from_bytes(self, data: bytes) -> TreeBag:
        nodes = [(int(value), int(below)) for value, below in np.frombuffer(data, np.uint64).reshape(-1, 2)]
        return TreeBag(nodes, self._is_measured)

    def fold(self, one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return one + other

    def expected(self) -> tuple[int, int]:
        bag = self.first_bag()
        while not bag.is_empty():
            bag.process(1 << 20)
        count, total = bag.take_result()
        return int(count), int(total)


@dataclass(frozen=True)
class BagOutcome:
    result: tuple[int, int]
    #: number of tasks done in vain
    wasted: int
    busy_s: float
    volume_s: float


class WrongResult(Exception):
    """The job has ended with a wrong result."""


class NeverEnds(Exception):
    """The job has not ended in time."""


class Delivery(NamedTuple):
    """A message that has arrived at its receiver, or come back to its sender."""

    sent_s: float
    at_s: float
    slow: Slow
    message: AnyBagMessage
    is_back: bool

    def __str__(self) -> str:
        how = "back to" if self.is_back else "to"
        who = f"{_name(self.slow.source)} {how} {_name(self.slow.dest)}"
        return f"{self.sent_s:.6f} -> {self.at_s:.6f}   {who}: {self.message}"[:_WIDTH_MAX]


def _name(address: Address) -> str:
    """Return a worker's name: 3, or 3.1 for the second worker on seat 3."""
    index, turn = address
    return f"{index}.{turn}" if turn else str(index)


@dataclass(eq=False)
class _Worker:
    address: Address
    index: int
    ledger: Ledger
    is_leaving: bool = False
    #: end of the present chunk of tasks; inf: the worker waits
    busy_until_s: float = math.inf
    woken_s: float = math.inf
    checkpoint_s: float = math.inf


_CHUNK_TASKS = 8
_DELIVERIES_KEPT = 40
_WIDTH_MAX = 150
#: time allowed after the last event: lenders give up chains of silent borrowers one after the other
_REST_S = 2000.0
#: numbers of the purposes for which random numbers are derived from a plan
_LEDGER, _BACK, _AGAIN, _LOST, _DELAY, _WHICH, _CHANGED = range(7)
_GRACE_S = 1.0
_EVENT, _ARRIVAL, _WAKE, _END_OF_GRACE = range(4)


class BagCluster:
    """One job on workers that come and go."""

    def __init__(self, plan: BagPlan, is_logged: bool = False) -> None:
        self.plan = plan
        #: logs of workers' books, a list per worker
        self.logs: list[list[Entry]] | None = [] if is_logged else None
        tree = TreeWork(plan.seed, plan.depth, plan.is_measured)
        #: (number of tasks, sum of their hashes); a search does at most this number of tasks
        self._expected = tree.expected()
        search = SearchWork(plan.seed, plan.depth)
        self._least = search.least() if plan.is_search else None
        self.work = search if plan.is_search else tree
        self.now = 0.0
        self._queue: list[tuple[float, int, int, object]] = []
        self._count = 0
        #: index of a seat -> its present worker
        self._seats: dict[int, _Worker] = {}
        self._workers: dict[Address, _Worker] = {}
        self._stopped: list[_Worker] = []
        self._last_arrival: dict[tuple[Address, Address], float] = {}
        self._sent: dict[tuple[Address, Address], int] = {}
        self._slow = None if plan.slow is None else frozenset(plan.slow)
        #: index of a seat -> number of workers that it has had
        self._turns: dict[int, int] = {}
        self._volume = 0
        self._checkpoint: bytes | None = None
        self.deliveries: deque[Delivery] = deque(maxlen=_DELIVERIES_KEPT)
        self._busy_s = self._volume_s = 0.0
        self._done = 0

    def run(self) -> BagOutcome:
        """Simulate the plan to the job's end. Raises NeverEnds or WrongResult."""
        last_s = max((event.at_s for event in self.plan.events), default=0.0)
        limit_s = _REST_S + 2 * (last_s + self._expected[0] * self.plan.task_s)
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
            if root is not None and root.ledger.books.is_finished:
                return self._outcome(root)
        raise NeverEnds(f"not done after {self.now:.1f} s")

    def _outcome(self, root: _Worker) -> BagOutcome:
        result = root.ledger.books.result()
        if self._least is not None:
            best = root.ledger.books.best
            if best is None or best[0] != self._least:
                raise WrongResult(f"the search found {best}, but the cheapest leaf costs {self._least}")
            result = best
        found = (int(result[0]), int(result[1]))
        wasted, told = self._done - self._expected[0], root.ledger.books.wasted_in_all()
        if self._least is not None:
            wasted, told = self._done - root.ledger.books.done(), root.ledger.books.wasted_in_all()
        elif found != self._expected:
            raise WrongResult(f"the result (tasks, sum) is {found}, not {self._expected}")
        if told > wasted:
            raise WrongResult(f"the workers report {told} tasks done in vain, but only {wasted} were")
        return BagOutcome(found, wasted, self._busy_s, self._volume_s)

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
        if event.kind is EventKind.VOLUME:
            self._set_volume(event.value)
            return
        worker = self._seats.get(event.value % max(1, self._volume))
        if event.kind is EventKind.CHANGE:
            self._change(worker)
            return
        if worker is None:
            return
        if event.kind is EventKind.CRASH:
            self._remove(worker)
        elif event.kind is EventKind.LEAVE:
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
        address, seed = self._next_address(index), self.plan.seed
        if self._stopped and mixed(seed, _AGAIN, *address) % 2:
            # a stopped worker goes on, possibly on another seat
            worker = self._stopped.pop(mixed(seed, _WHICH, *address) % len(self._stopped))
        else:
            loan_bytes, told_bytes_per_s = self.plan.loan_bytes, self.plan.told_bytes_per_s
            bounds = BOUNDS
            if loan_bytes is not None and told_bytes_per_s is not None:
                bounds = Bounds(loan_bytes, told_bytes_per_s, small_state_bytes=2 * loan_bytes)
            ledger = Ledger(self.work, mixed(seed, _LEDGER, *address), self.plan.settle_s, bounds=bounds)
            if self.logs is not None:
                ledger.books.log = []
                self.logs.append(ledger.books.log)
            worker = _Worker(address, index, ledger)
        self._take_seat(worker, index, address)

    def _next_address(self, index: int) -> Address:
        turn = self._turns.get(index, 0)
        self._turns[index] = turn + 1
        return index, turn

    def _take_seat(self, worker: _Worker, index: int, address: Address) -> None:
        worker.address, worker.index = address, index
        if index > 0:
            worker.ledger.close_root()
        self._seats[index] = self._workers[address] = worker
        if index == 0:
            if worker.ledger.books.root is None:
                worker.ledger.open_root(self.now, self._checkpoint)
            worker.checkpoint_s = self._next_checkpoint_s()
        worker.busy_until_s = worker.woken_s = math.inf
        self._wake(worker, self.now)

    def _leave(self, worker: _Worker) -> None:
        """Have a worker leave: its seat is free at once, its process may go on for a while."""
        del self._seats[worker.index]
        if worker.ledger.books.root is not None:
            self._checkpoint = worker.ledger.books.checkpoint()
        worker.is_leaving = True
        worker.ledger.leave(self.now)
        self._flush(worker)
        self._push(self.now + _GRACE_S, _END_OF_GRACE, worker)

    def _stop(self, worker: _Worker) -> None:
        """Stop a worker as by SIGSTOP: messages to the worker come back."""
        del self._seats[worker.index]
        del self._workers[worker.address]
        self._stopped.append(worker)

    def _change(self, lost: _Worker | None) -> None:
        """Lose a rank, and begin a new generation; workers that leave continue to leave."""
        if lost is not None:
            self._remove(lost)
        self._queue = [each for each in self._queue if each[2] != _ARRIVAL]
        heapq.heapify(self._queue)
        stopped = sorted(self._seats.values(), key=lambda worker: worker.index)
        for worker in stopped:
            self._stop(worker)
        places = [worker.index for worker in stopped]
        if mixed(self.plan.seed, _CHANGED, len(self._turns), *places) % 2:
            places = places[1:] + places[:1]
        for worker, index in zip(stopped, places, strict=True):
            self._stopped.remove(worker)
            self._take_seat(worker, index, self._next_address(index))
        self._set_volume(self._volume)

    def _remove(self, worker: _Worker) -> None:
        if self._seats.get(worker.index) is worker:
            del self._seats[worker.index]
        del self._workers[worker.address]

    # --- work and messages

    def _turn(self, worker: _Worker) -> None:
        """Let a worker work until it reads its messages again."""
        if self.now < min(worker.woken_s, worker.busy_until_s):
            return  # an outdated alarm has woken the worker
        worker.woken_s = worker.busy_until_s = math.inf
        ledger = worker.ledger
        ledger.tick(self.now)
        if worker.index == 0 and not worker.is_leaving and self.now >= worker.checkpoint_s:
            self._checkpoint = ledger.books.checkpoint()
            worker.checkpoint_s = self._next_checkpoint_s()
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
                for index in (parent_of(worker.index), *children_of(worker.index)):
                    if index >= 0 and index != worker.index and (peer := self._seats.get(index)) is not None:
                        self._send(worker.address, peer.address, message)
            else:
                self._send(worker.address, dest, message)

    def _next_checkpoint_s(self) -> float:
        return math.inf if self.plan.checkpoint_s is None else self.now + self.plan.checkpoint_s

    def _send(self, source: Address, dest: Address, message: AnyBagMessage, back: bool = False) -> None:
        number = self._sent[source, dest] = self._sent.get((source, dest), 0) + 1
        about = Slow(source, dest, number)
        if not back and self._share(_LOST, about) < self.plan.lost:
            return
        delay_s = -math.log(1.0 - self._share(_DELAY, about)) * self.plan.delay_s
        if self._slow is not None and about not in self._slow:
            delay_s = 0.0
        at_s = max(self.now + delay_s, self._last_arrival.get((source, dest), 0.0))
        self._last_arrival[source, dest] = at_s
        self._push(at_s, _ARRIVAL, (self.now, about, encode(message), back))

    def _share(self, what: int, about: Slow) -> float:
        """Return a random number in [0, 1)."""
        return mixed(self.plan.seed, what, *about.source, *about.dest, about.number) / 2**64 % 1.0

    def all_so_far(self) -> list[Slow]:
        """Return all messages sent so far."""
        return [Slow(*pair, number) for pair, count in self._sent.items() for number in range(1, count + 1)]

    def _arrive(self, sent_s: float, about: Slow, data: bytes, back: bool) -> None:
        source, dest = about.source, about.dest
        worker = self._workers.get(dest)
        message = decode(data)
        if worker is None:
            if not back and self._share(_BACK, about) < self.plan.come_back:
                self._send(dest, source, message, back=True)
            return
        if not isinstance(message, WorkWanted | Lifeline | Cut | Better):  # too many to be recorded
            self.deliveries.append(Delivery(sent_s, self.now, about, message, back))
        if back:
            worker.ledger.undelivered(source, message, self.now)
        else:
            worker.ledger.receive(source, message, self.now)
        if worker.ledger.books.root is not None and worker.ledger.books.done() > self._expected[0]:
            raise WrongResult(f"{worker.ledger.books.done()} tasks done, of only {self._expected[0]}")
        self._flush(worker)
        if worker.busy_until_s == math.inf:
            self._wake(worker, self.now)

    def _push(self, at_s: float, kind: int, what: object) -> None:
        if at_s < math.inf:
            self._count += 1
            heapq.heappush(self._queue, (at_s, self._count, kind, what))


def failure_of(plan: BagPlan) -> Failure | None:
    """Simulate a plan to its end, or to a failure; return the failure."""
    return _failure_in(BagCluster(plan))


def _failure_in(cluster: BagCluster) -> Failure | None:
    try:
        cluster.run()
    except Exception as error:
        return failure_by(error, cluster.now)
    return None


def messages_of(plan: BagPlan) -> tuple[Slow, ...]:
    """Return all messages sent when the plan is played."""
    cluster = BagCluster(plan)
    _failure_in(cluster)
    return tuple(cluster.all_so_far())


def schedule_of(plan: BagPlan) -> str:
    """Simulate the plan and describe its events up to the failure."""
    cluster = BagCluster(plan)
    failure = _failure_in(cluster)
    names = (name for name in plan.__struct_fields__ if name not in ("events", "slow"))
    lines = [", ".join(f"{name} {getattr(plan, name)}" for name in names), "events:"]
    lines += [f"  {event.at_s:.6f}   {event.kind.value} {event.value}" for event in plan.events]
    if plan.slow is not None:
        lines.append(f"messages take no time, except {len(plan.slow)}, marked by * below")
    slow = frozenset(plan.slow or ())
    lines.append(
        "the last deliveries, without requests (from index to index; 3.1: the second worker on seat 3):"
    )
    lines += [f"{'*' if each.slow in slow else ' '} {each}" for each in cluster.deliveries]
    lines.append("it ends well" if failure is None else f"failure at {failure.at_s:.6f}: {failure.kind}")
    return "\n".join(lines)
