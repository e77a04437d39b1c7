"""Reductions on simulated job trees that change all the time, and single steps on fake contexts."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest
from seeds import seeds

from mallob_py.kit import Finished, Payload, Result, TreeMessage, TreeReduction, WorkerContext


def merge(parts: list[bytes]) -> bytes:
    """Combine parts; repeated entries are kept, so that double counting shows."""
    return json.dumps([each for part in parts for each in json.loads(part)]).encode()


class Context(WorkerContext):
    """A worker's context; `up` and `down` take the messages to its parent and its children."""

    def __init__(self, index: int, children: tuple[int, ...] = ()) -> None:
        self.job = 1
        self.index = index
        self.volume = 100
        self.children = children
        self.payload: Payload = {}
        self.configuration: Mapping[str, Any] = {}
        self.threads = 1
        self.up: Callable[[bytes], None] = self.sent_up_append
        self.down: Callable[[bytes], None] = self.sent_down_append
        self.sent_up: list[bytes] = []
        self.sent_down: list[bytes] = []

    def sent_up_append(self, data: bytes) -> None:
        self.sent_up.append(data)

    def sent_down_append(self, data: bytes) -> None:
        self.sent_down.append(data)

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        raise AssertionError("not expected")

    def fileno(self) -> int:
        raise AssertionError("not expected")

    def park(self) -> NoReturn:
        raise AssertionError("not expected")

    def set_demand(self, demand: int) -> None:
        raise AssertionError("not expected")

    def finish(self, result: Result) -> NoReturn:
        raise AssertionError("not expected")

    def send_to_parent(self, data: bytes) -> None:
        if self.index > 0:
            self.up(data)

    def send_to_children(self, data: bytes) -> None:
        if self.children:
            self.down(data)


# --- a simulated system ---------------------------------------------------------------------


@dataclass(eq=False)
class Process:
    """A worker process. `inbox`: the rank's messages to the process, in order."""

    number: int
    context: Context
    reduction: TreeReduction
    inbox: deque[TreeMessage | tuple[int, tuple[int, ...]]] = field(default_factory=deque)
    finished: list[Finished] = field(default_factory=list)


@dataclass(eq=False)
class Stay:
    """A worker's stay at one place of the tree; `parent` is known once it has been accepted."""

    index: int
    process: Process
    present: bool = True
    parent: Stay | None = None


@dataclass
class Packet:
    source: Stay
    target: Stay
    data: bytes
    returned: bool = False
    is_acceptance: bool = False


class Tree:
    """One job's tree on many ranks: the rules of `protocol/local_workers.py` in a few lines."""

    def __init__(self, seed: int, loss: float) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.now = 0.0
        self.stays: dict[int, Stay] = {}
        self.suspended: list[Process] = []
        #: (sender, receiver) -> messages, which keep their order only within one pair
        self.channels: dict[tuple[Stay, Stay], deque[Packet]] = {}
        self.processes = 0
        self.results: list[tuple[int, list[str], dict[int, Stay]]] = []
        self.expected: dict[int, Stay] = {}
        self.latest = 0
        self.join(0)

    # --- changes of the tree ----------------------------------------------------------------

    def join(self, index: int) -> None:
        if self.suspended and self.random.random() < 0.7:
            process = self.suspended.pop(self.random.randrange(len(self.suspended)))
        else:
            process = self._process(index)
        stay = self.stays[index] = Stay(index, process)
        process.context.up = lambda data: self._up(process, data)
        process.context.down = lambda data: self._down(process, data)
        self._update(stay)
        if index > 0:
            parent = self.stays[(index - 1) // 2]
            self._post(Packet(parent, stay, b"", is_acceptance=True))
            self._update(parent)

    def leave(self, index: int) -> None:
        """Let a worker leave, with all workers below, as when a volume drops."""
        for child in self._children(index):
            self.leave(child)
        stay = self.stays.pop(index)
        stay.present = False
        self.suspended.append(stay.process)
        self.expected = {at: one for at, one in self.expected.items() if one.present}
        if index > 0:
            self._update(self.stays[(index - 1) // 2])

    def crash(self, index: int) -> None:
        """Let a worker's process die and start anew in the same stay."""
        stay = self.stays[index]
        stay.process = self._process(index)
        process = stay.process
        process.context.up = lambda data: self._up(process, data)
        process.context.down = lambda data: self._down(process, data)
        self.expected = {at: one for at, one in self.expected.items() if not self._is_below(at, index)}
        self._update(stay)

    def _is_below(self, index: int, ancestor: int) -> bool:
        while index > ancestor:
            index = (index - 1) // 2
        return index == ancestor

    def _process(self, index: int) -> Process:
        number = self.processes
        self.processes += 1
        context = Context(index)

        def contribute(epoch: int) -> bytes:
            return json.dumps([f"{number}.{epoch}"]).encode()

        return Process(number, context, TreeReduction(context, contribute, merge, clock=lambda: self.now))

    def _children(self, index: int) -> tuple[int, ...]:
        return tuple(child for child in (2 * index + 1, 2 * index + 2) if child in self.stays)

    def _update(self, stay: Stay) -> None:
        """Send the process its new place; this replaces an older place that was not read yet."""
        inbox = stay.process.inbox
        place = (stay.index, self._children(stay.index))
        for position, old in enumerate(inbox):
            if isinstance(old, tuple):
                inbox[position] = place
                return
        inbox.append(place)

    # --- messages ---------------------------------------------------------------------------

    def _stay_of(self, process: Process) -> Stay | None:
        return next((stay for stay in self.stays.values() if stay.process is process), None)

    def _up(self, process: Process, data: bytes) -> None:
        stay = self._stay_of(process)
        assert stay is not None
        if stay.index == 0:
            return
        if stay.parent is None:
            process.inbox.append(TreeMessage((stay.index - 1) // 2, data, True))
        else:
            self._post(Packet(stay, stay.parent, data))

    def _down(self, process: Process, data: bytes) -> None:
        stay = self._stay_of(process)
        assert stay is not None
        for child in self._children(stay.index):
            self._post(Packet(stay, self.stays[child], data))

    def _post(self, packet: Packet) -> None:
        self.channels.setdefault((packet.source, packet.target), deque()).append(packet)

    def deliver(self) -> None:
        channel = self.random.choice(list(self.channels))
        packet = self.channels[channel].popleft()
        if not self.channels[channel]:
            del self.channels[channel]
        if packet.is_acceptance:
            packet.target.parent = packet.source
        elif self.random.random() < self.loss:
            pass
        elif packet.target.present:
            packet.target.process.inbox.append(TreeMessage(packet.source.index, packet.data, packet.returned))
        elif not packet.returned:
            self._post(Packet(packet.target, packet.source, packet.data, returned=True))

    # --- use by applications ------------------------------------------------------------------

    def advance(self, stay: Stay) -> None:
        """Let a process take in the messages of its rank: all, or only the first."""
        process = stay.process
        messages: list[TreeMessage] = []
        for _ in range(self.random.choice((1, 2, len(process.inbox)))):
            if not process.inbox:
                break
            match process.inbox.popleft():
                case TreeMessage() as message:
                    messages.append(message)
                case (index, children):
                    process.context.index, process.context.children = index, children
        finished, others = process.reduction.advance(messages)
        assert not others
        process.finished += finished
        if stay.index == 0:
            self.results += [(epoch, json.loads(data), self.expected) for epoch, data in finished]

    def start(self) -> int:
        """Let the root start an epoch; note the workers that the epoch must include."""
        root = self.stays[0]
        seen = {0, *root.process.context.children}
        self.expected = {
            at: stay
            for at, stay in self.stays.items()
            if any(self._is_below(at, child) for child in seen - {0}) or at == 0
        }
        epoch = root.process.reduction.start()
        if epoch <= self.latest:
            self.expected = {0: root}  # a new root does not know the others' latest epoch yet
        self.latest = max(self.latest, epoch)
        return epoch

    def step(self) -> None:
        action = self.random.random()
        if action < 0.45 and self.channels:
            self.deliver()
        elif action < 0.85:
            self.advance(self.random.choice(list(self.stays.values())))
        elif action < 0.90:
            self.now += self.random.random()
        elif action < 0.93:
            if self.stays[0].process.context.index == 0:
                self.start()
        elif action < 0.97:
            free = [at for stay in self.stays for at in (2 * stay + 1, 2 * stay + 2) if at not in self.stays]
            self.join(self.random.choice([at for at in free if at < 15] or free))
        elif action < 0.998 and len(self.stays) > 1:
            self.leave(self.random.choice([index for index in self.stays if index > 0]))
        elif action > 0.998:
            # The job is suspended as a whole; when it goes on, another process may be the root.
            self.leave(0)
            self.join(0)

    def settle(self) -> None:
        """Deliver everything, with time for reminders, until nothing happens any more."""
        self.loss = 0.0
        for _ in range(12):
            while self.channels or any(stay.process.inbox for stay in self.stays.values()):
                while self.channels:
                    self.deliver()
                for stay in list(self.stays.values()):
                    self.advance(stay)
            self.now += 40.0
            for stay in list(self.stays.values()):
                self.advance(stay)


def contributors(epoch: int, result: list[str]) -> set[int]:
    """Return the processes that have contributed; check that each did so once and for this epoch."""
    assert len(result) == len(set(result)), f"counted twice: {result}"
    assert all(part.endswith(f".{epoch}") for part in result), f"not of epoch {epoch}: {result}"
    return {int(part.split(".")[0]) for part in result}


@pytest.mark.parametrize("seed", seeds(200))
def test_results_hold_each_worker_that_stayed_exactly_once_whatever_the_others_do(seed: int) -> None:
    tree = Tree(seed, loss=0.0)
    for _ in range(600):
        tree.step()
    tree.settle()
    assert tree.stays[0].process.reduction.unfinished is None, "the epoch never ended"
    assert tree.results
    for epoch, result, expected in tree.results:
        assert {stay.process.number for stay in expected.values()} <= contributors(epoch, result)


@pytest.mark.parametrize("seed", seeds(200))
def test_lost_messages_and_dying_processes_let_no_epoch_hang_and_count_nobody_twice(seed: int) -> None:
    tree = Tree(seed, loss=0.1)
    for _ in range(600):
        tree.step()
        if tree.random.random() < 0.01:
            tree.crash(tree.random.choice(list(tree.stays)))
    tree.settle()
    assert tree.stays[0].process.reduction.unfinished is None, "the epoch never ended"
    for epoch, result, _ in tree.results:
        contributors(epoch, result)


@pytest.mark.parametrize("seed", seeds(40))
def test_once_the_tree_is_quiet_again_everybody_gets_the_result_of_all(seed: int) -> None:
    tree = Tree(seed, loss=0.1)
    for _ in range(400):
        tree.step()
        if tree.random.random() < 0.01:
            tree.crash(tree.random.choice(list(tree.stays)))
    tree.settle()
    # A restarted root learns the others' latest epoch layer by layer.
    for _ in range(4):
        tree.start()
        tree.settle()
    epoch = tree.start()
    tree.settle()
    everybody = {stay.process.number for stay in tree.stays.values()}
    for stay in tree.stays.values():
        assert stay.process.finished[-1].epoch == epoch
        assert contributors(epoch, json.loads(stay.process.finished[-1].data)) == everybody


# --- reductions one after the other ---------------------------------------------------------


def reduction(context: Context, own: list[str], channel: int = 0) -> TreeReduction:
    return TreeReduction(context, lambda epoch: json.dumps(own).encode(), merge, channel)


def down(data: bytes, source: int = 0) -> TreeMessage:
    return TreeMessage(source, data)


def test_a_root_without_children_finishes_at_once() -> None:
    root = reduction(Context(0), ["root"])
    assert root.start() == 1
    assert root.advance([]).finished == [Finished(1, b'["root"]')]
    assert root.start() == 2
    assert root.advance([]).finished == [Finished(2, b'["root"]')]


def test_the_root_combines_its_part_with_its_childs_and_tells_it() -> None:
    above, below = Context(0, children=(1,)), Context(1)
    root, child = reduction(above, ["root"]), reduction(below, ["child"])
    root.start()
    assert child.advance([down(above.sent_down.pop())]) == ([], [])
    assert child.unfinished == root.unfinished == 1
    (finished,) = root.advance([TreeMessage(1, below.sent_up.pop())]).finished
    assert finished == Finished(1, b'["root", "child"]')
    assert child.advance([down(above.sent_down.pop())]).finished == [finished]
    assert child.unfinished is root.unfinished is None


def test_only_the_root_may_start() -> None:
    with pytest.raises(ValueError, match="only the root"):
        reduction(Context(2), []).start()


def test_the_applications_own_messages_pass_through_in_order() -> None:
    above = Context(0, children=(1,))
    reduction(above, []).start()
    call = down(above.sent_down.pop())
    own = [down(b""), down(b"\xf5"), TreeMessage(3, b"clauses", returned=True), down(b"x" * 100)]
    child = reduction(Context(1), [])
    assert child.advance([own[0], own[1], call, *own[2:]]).messages == own
    assert child.unfinished == 1


def test_reductions_of_different_channels_do_not_meet() -> None:
    above, below = Context(0, children=(1,)), Context(1)
    reduction(above, [], channel=7).start()
    call = down(above.sent_down.pop())
    other, same = reduction(below, [], channel=6), reduction(below, [], channel=7)
    assert other.advance([call]).messages == [call]
    assert same.advance(other.advance([call]).messages) == ([], [])
    assert (other.unfinished, same.unfinished) == (None, 1)


def test_a_child_whose_call_comes_back_is_not_waited_for() -> None:
    above = Context(0, children=(1,))
    root = reduction(above, ["root"])
    root.start()
    assert root.advance([TreeMessage(1, above.sent_down.pop(), returned=True)]).finished == [
        Finished(1, b'["root"]')
    ]


def test_a_child_that_left_is_not_waited_for() -> None:
    above = Context(0, children=(1, 2))
    root = reduction(above, ["root"])
    root.start()
    above.children = (2,)
    assert root.advance([]).finished == []
    above.children = ()
    assert root.advance([]).finished == [Finished(1, b'["root"]')]


def test_a_new_epoch_supersedes_an_unfinished_one_and_late_answers_to_that_are_ignored() -> None:
    above, below = Context(0, children=(1,)), Context(1)
    root, child = reduction(above, ["root"]), reduction(below, ["child"])
    root.start()
    child.advance([down(above.sent_down.pop())])
    late = TreeMessage(1, below.sent_up.pop())
    assert root.start() == 2
    assert root.advance([late]).finished == []
    child.advance([down(above.sent_down.pop())])
    assert root.advance([TreeMessage(1, below.sent_up.pop())]).finished == [Finished(2, b'["root", "child"]')]


def test_a_worker_that_was_placed_anew_gives_nothing_more_in_that_epoch() -> None:
    above, elsewhere, below = Context(0, (1,)), Context(2, (5,)), Context(1)
    root, moved = reduction(above, ["root"]), reduction(below, ["moved"])
    root.start()
    call = above.sent_down.pop()
    moved.advance([down(call)])
    late_parent = reduction(elsewhere, ["parent"])
    late_parent.advance([down(call)])
    below.index, below.sent_up = 5, []
    moved.advance([down(elsewhere.sent_down.pop(), source=2)])
    assert moved.unfinished is None
    late_parent.advance([TreeMessage(5, below.sent_up.pop())])
    (gift,) = elsewhere.sent_up
    assert gift.endswith(b'["parent"]')


def test_a_channel_is_one_byte() -> None:
    with pytest.raises(ValueError, match="256"):
        reduction(Context(0), [], channel=256)
