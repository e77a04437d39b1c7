"""How many tasks a worker does before it checks for messages: some milliseconds of its own CPU time."""

import math
from types import SimpleNamespace

import pytest
from fake_context import FakeContext

from mallob_py.kit import TreeMessage
from mallob_py.kit.bags import Bag, BagApplication, application
from mallob_py.kit.bags.messages import Lend, encode


class Clock:
    """A clock by which a task takes `task_s` of wall time and `cpu_s` of CPU time.

    In chunks of more than `undisturbed` tasks, nine other processes use the core as long as this one.
    """

    def __init__(self, task_s: float, cpu_s: float, undisturbed: float) -> None:
        self.task_s, self.cpu_s, self._undisturbed = task_s, cpu_s, undisturbed
        self._now_s = self._used_s = 0.0
        self._switches = self._waits = 0

    def do(self, tasks: int) -> None:
        is_disturbed = tasks > self._undisturbed
        self._now_s += tasks * (self.task_s + 9 * is_disturbed * self.cpu_s)
        self._used_s += tasks * self.cpu_s
        self._switches += is_disturbed
        self._waits += self.task_s > self.cpu_s

    def monotonic(self) -> float:
        return self._now_s

    def thread_time(self) -> float:
        return self._used_s

    def rest(self, seconds: float) -> None:
        self._now_s += seconds

    def getrusage(self, _who: int) -> SimpleNamespace:
        return SimpleNamespace(
            ru_utime=self._used_s, ru_stime=0.0, ru_nivcsw=self._switches, ru_nvcsw=self._waits
        )


class Endless(Bag):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.chunks = 0

    def process(self, count: int) -> int:
        self._clock.do(count)
        self.chunks += 1
        return count

    def split(self) -> None: ...

    def merge(self, other: Bag) -> None: ...

    def is_empty(self) -> bool:
        return False

    def take_result(self) -> int:
        return 0

    def to_bytes(self) -> bytes:
        return b""


class EndlessApplication(BagApplication):
    name = "ENDLESS"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def first_bag(self, payload: object, configuration: object) -> Bag:
        return Endless(self._clock)

    def bag_from_bytes(self, data: bytes, payload: object, configuration: object) -> Bag:
        return Endless(self._clock)


@pytest.mark.parametrize(
    ("clock", "right_s"),
    [
        pytest.param(Clock(1e-6, cpu_s=1e-6, undisturbed=math.inf), 2e-3, id="alone on its core"),
        pytest.param(Clock(1e-6, cpu_s=1e-6, undisturbed=900), 4e-3, id="beside nine others"),
        pytest.param(Clock(1e-3, cpu_s=1e-6, undisturbed=1), 2e-3, id="mostly waiting"),
    ],
)
def test_a_chunk_takes_some_milliseconds_without_the_time_that_others_have_the_core(
    clock: Clock, right_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "time", clock)
    monkeypatch.setattr(application, "getrusage", clock.getrusage)
    worker = application.BagWorker(EndlessApplication(clock), FakeContext({}, 1, {}))
    worker.ledger.open_root(0.0)
    for _ in range(20):
        worker.work(clock.monotonic())
    assert right_s / 1.5 <= worker.count * clock.task_s <= 1.5 * right_s


def test_a_worker_does_chunk_after_chunk_until_a_message_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(task_s=1e-6, cpu_s=1e-6, undisturbed=math.inf)
    monkeypatch.setattr(application, "time", clock)
    monkeypatch.setattr(application, "getrusage", clock.getrusage)
    context = FakeContext({}, 1, {})
    worker = application.BagWorker(EndlessApplication(clock), context)
    worker.ledger.open_root(0.0)
    bag = worker.ledger.books.root.bag
    worker.work(clock.monotonic())
    assert bag.chunks > 20
    assert 0.1 <= clock.monotonic() <= 0.11
    context.ring()
    before = bag.chunks
    worker.work(clock.monotonic())
    assert bag.chunks == before + 1


def test_a_new_worker_knows_after_a_few_chunks_how_long_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(task_s=1e-8, cpu_s=1e-8, undisturbed=math.inf)
    monkeypatch.setattr(application, "time", clock)
    monkeypatch.setattr(application, "getrusage", clock.getrusage)
    worker = application.BagWorker(EndlessApplication(clock), FakeContext({}, 1, {}))
    worker.ledger.open_root(0.0)
    bag = worker.ledger.books.root.bag
    while worker.count * clock.task_s < 1e-3:
        worker.ledger.outbox.append(None)  # `work` returns after a chunk if a message must be sent
        worker.work(clock.monotonic())
        worker.ledger.outbox.clear()
    assert bag.chunks <= 8
    clock.task_s = clock.cpu_s = 1e-6
    worker.work(clock.monotonic())
    assert worker.count * clock.task_s < 4e-3, "tasks that take longer all of a sudden are seen at once"


def test_who_borrows_first_does_as_many_at_a_time_as_the_lender(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(task_s=1e-6, cpu_s=1e-6, undisturbed=math.inf)
    monkeypatch.setattr(application, "time", clock)
    monkeypatch.setattr(application, "getrusage", clock.getrusage)
    context = FakeContext({}, 1, {})
    worker = application.BagWorker(EndlessApplication(clock), context)
    worker.take(TreeMessage(0, encode(Lend(9, b"", (), 1800)), sender=(0, 0)))
    bag = worker.ledger.books.accounts[0].bag
    context.ring()  # `work` returns after a chunk if a message has come
    before_s = clock.monotonic()
    worker.work(before_s)
    assert (bag.chunks, worker.count) == (1, 1800)
    assert clock.monotonic() - before_s == pytest.approx(1.8e-3)
    worker.take(TreeMessage(0, encode(Lend(10, b"", (), 7)), sender=(0, 0)))
    worker.work(clock.monotonic())
    assert worker.count == 1800, "it knows better by now"


class Saved(Exception):
    """Raised when the root has saved its job often enough."""


class Saver(FakeContext):
    """The context of a root that ends after `saves` checkpoints; while it saves the first, it is stopped for
    `rest_s`.
    """

    def __init__(self, clock: Clock, rest_s: float = 0.0, last: bytes | None = None, saves: int = 3) -> None:
        super().__init__({}, 0, {})
        self._clock, self._rest_s, self._last, self._saves = clock, rest_s, last, saves
        self.saved_s: list[float] = []
        self.saved = b""

    def last_checkpoint(self) -> bytes | None:
        return self._last

    def report_progress(self, *_: object, **__: object) -> None: ...

    def checkpoint(self, data: bytes) -> None:
        self.saved = data
        self.saved_s.append(self._clock.monotonic())
        if len(self.saved_s) == 1:
            self._clock.rest(self._rest_s)
        if len(self.saved_s) == self._saves:
            raise Saved


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(task_s=1e-6, cpu_s=1e-6, undisturbed=math.inf)
    monkeypatch.setattr(application, "time", clock)
    monkeypatch.setattr(application, "getrusage", clock.getrusage)
    return clock


class Resting(Endless):
    """A bag whose process is stopped for `rest_s` in its first chunk after the first second."""

    def __init__(self, clock: Clock, rest_s: float) -> None:
        super().__init__(clock)
        self._rest_s = rest_s

    def process(self, count: int) -> int:
        if self._clock.monotonic() > 1.0:
            self._clock.rest(self._rest_s)
            self._rest_s = 0.0
        return super().process(count)


@pytest.mark.parametrize(("rest_s", "period_s"), [(0.0, 1.0), (0.05, 1.0), (0.2, 0.1)])
def test_a_root_saves_more_often_when_it_has_rested(rest_s: float, period_s: float, clock: Clock) -> None:
    context = Saver(clock)
    resting = EndlessApplication(clock)
    resting.first_bag = lambda payload, configuration: Resting(clock, rest_s)  # type: ignore[method-assign]
    with pytest.raises(Saved):
        application.BagWorker(resting, context).run()
    assert context.saved_s[2] - context.saved_s[1] == pytest.approx(period_s, rel=0.2)


def test_a_root_that_goes_on_from_another_saves_as_after_a_rest(clock: Clock) -> None:
    first = Saver(clock)
    with pytest.raises(Saved):
        application.BagWorker(EndlessApplication(clock), first).run()
    began_s, second = clock.monotonic(), Saver(clock, last=first.saved, saves=30)
    with pytest.raises(Saved):
        application.BagWorker(EndlessApplication(clock), second).run()
    assert first.saved_s[0] == pytest.approx(1.0, rel=0.2)
    assert [at - began_s for at in second.saved_s[:3]] == pytest.approx([0.1, 0.2, 0.3], rel=0.2)
    assert second.saved_s[-1] - began_s == pytest.approx(3.0, rel=0.2)


def test_a_rest_while_a_root_saves_is_none_of_what_that_costs(clock: Clock) -> None:
    context = Saver(clock, rest_s=0.5)
    with pytest.raises(Saved):
        application.BagWorker(EndlessApplication(clock), context).run()
    assert context.saved_s[1] - context.saved_s[0] < 2.0
