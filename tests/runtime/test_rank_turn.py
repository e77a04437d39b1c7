"""A turn of a rank's loop ends, whatever goes on: descriptions that arrive, requests that find nobody."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from mallob_py.protocol import PeerViolation
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import ResumeWorker, StartWorker, SuspendWorker, UpdateWorker
from mallob_py.protocol.generation import Membership
from mallob_py.protocol.messages import Description, Epoch, Supply, TreeMessage, encode
from mallob_py.protocol.pe import PE
from mallob_py.protocol.placement import Placement, first_generation
from mallob_py.protocol.random_walk import NO_LIMIT
from mallob_py.protocol.rank_messages import Beat
from mallob_py.protocol.stimuli import JobParameters, JobSubmitted, WorkerStarted
from mallob_py.runtime.heap import HeapKeeper
from mallob_py.runtime.rank import PeerFailure, Rank
from mallob_py.runtime.world.envelope import Arrival, Channel, seal
from mallob_py.runtime.world.failure_detector import Ring as HeartbeatRing
from mallob_py.runtime.world.mpi import RankLoss


class Flood:
    """A transport on which chunks never cease to arrive."""

    def receive(self) -> Iterator[Arrival]:
        while True:
            yield Arrival(1, Channel.BULK, b"chunk")


class Taker:
    def __init__(self) -> None:
        self.chunks = 0

    def receive_chunk(self, source: int, data: bytes) -> None:
        self.chunks += 1


def test_chunks_that_never_cease_let_the_loop_go_on() -> None:
    rank: Any = object.__new__(Rank)
    rank._transport, rank.transfer = Flood(), Taker()
    rank._settle = lambda *pes: None
    rank._receive(False)
    taken = rank.transfer.chunks
    assert taken > 0
    rank._receive(False)
    assert rank.transfer.chunks == 2 * taken


G = 7


def bare_rank() -> Any:
    """Rank 0 in generation G, which shall not survive others, and lacks all that a test does not give it."""
    rank: Any = object.__new__(Rank)
    rank.rank, rank._first, rank._first_logged = 0, 0, 0
    rank._g, rank._g_heard, rank._gone, rank._rank_loss = G, G, set(), RankLoss.RESTART
    rank._peers, rank._peer_bell, rank._stopping = None, None, False
    rank._membership, rank._growth, rank._orders = Membership(0, first_generation((1, 1)), 30.0), None, None
    rank._started = {}
    rank.log, rank.now = Log(), lambda: 0.0
    rank._arrived, rank._unsettled = deque(), deque()
    return rank


class Workers:
    """Processes that never come up."""

    def __init__(self) -> None:
        self.effects: list[Any] = []

    def execute(self, slot: int, effect: Any, now: float) -> None:
        self.effects.append(effect)


class Log:
    is_kept = True

    def write(self, *_: Any) -> None:
        pass

    def flush(self) -> None:
        pass


class NoDesk:
    def job_sought(self, job: int, now: float) -> None:
        pass


def test_a_request_that_finds_nobody_on_its_walk_lets_the_loop_go_on() -> None:
    rank = bare_rank()
    rank.placement = Placement([2])
    rank._pes = [PE(number, 2, Config(random_hops=NO_LIMIT)) for number in range(2)]
    rank._workers, rank._desk = Workers(), NoDesk()
    rank._settle(*rank._pes)
    for job in (1, 2, 3):
        rank._pes[0].handle(JobSubmitted(job, JobParameters(), Description(1, b"x")), 0.0)
        rank._settle(rank._pes[0])
    started = [effect for effect in rank._workers.effects if isinstance(effect, StartWorker)]
    assert len(started) == 2, "all PEs are busy"
    assert any(pe.matcher.is_asking(3, 0) for pe in rank._pes)


class Ring:
    def describe(self, rank: int) -> str:
        return f"rank {rank} (process 7 on h)"


class Broken:
    """A transport with one message that no rank sends."""

    def __init__(self, channel: Channel, data: bytes) -> None:
        self._arrival = Arrival(1, channel, data)

    def receive(self) -> Iterator[Arrival]:
        yield self._arrival


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"short", "less than a header"),
        (seal(G, 2, 0, b"\xc1"), "malformed"),
        (seal(G, 2, 0, encode(Supply(1, 1)) + b"!"), "trailing"),
        (seal(G, 0, 1, encode(Supply(1, 1))), "a message of PE 0, which is not there"),
        (seal(G, 5, 1, encode(Supply(1, 1))), "a message of PE 5, which is not there"),
        (seal(G, 2, 2, encode(Supply(1, 1))), "a message for PE 2, which is not here"),
    ],
)
def test_a_message_that_no_rank_can_have_sent_ends_the_system_with_the_name_of_its_sender(
    data: bytes, what: str
) -> None:
    rank = bare_rank()
    rank.placement, rank._ring = Placement([2, 1]), Ring()
    rank._pes = [PE(number, 3, Config()) for number in range(2)]
    rank._transport = Broken(Channel.CONTROL, data)
    with pytest.raises(PeerFailure, match=rf"rank 1 \(process 7 on h\) sent what no rank sends .*{what}"):
        rank._receive(False)


class Hearing:
    """A transport on which something of these ranks has come since the last beat."""

    def __init__(self) -> None:
        self.heard: set[int] = set()
        self.congested = False
        self.sent: list[bytes] = []
        self.lost: dict[int, str] = {}

    def take_heard(self) -> set[int]:
        return self.heard

    def is_congested(self, _rank: int) -> bool:
        return self.congested

    def send(self, _rank: int, data: bytes) -> None:
        self.sent.append(data)

    def lose(self, rank: int, how: str) -> None:
        self.lost[rank] = how

    def take_lost(self) -> list[int]:
        return list(self.lost)

    def how_lost(self, rank: int) -> str:
        return self.lost[rank]

    def take_back(self) -> list[int]:
        return []


def rank_that_hears() -> tuple[Any, Hearing]:
    rank = bare_rank()
    rank.placement, rank._ring = Placement([1, 1]), HeartbeatRing(0, {0: "a", 1: "b"}, timeout_s=5.0)
    rank._pes = [PE(0, 2, Config())]
    rank._transport = Hearing()
    return rank, rank._transport


def test_a_rank_whose_long_message_keeps_coming_is_not_silent_though_its_beats_wait_behind() -> None:
    rank, transport = rank_that_hears()
    transport.heard = {1}
    for second in range(30):
        rank._beat(float(second))
    transport.heard = set()
    with pytest.raises(PeerFailure, match="does not answer any more"):
        deque(map(rank._beat, map(float, range(30, 60))))


def test_messages_between_workers_come_back_from_a_rank_that_is_behind_and_others_are_sent() -> None:
    rank, transport = rank_that_hears()
    message = TreeMessage(1, 2, 1, 3, 0, False, b"clauses")
    rank._send(0, 1, message)
    assert len(transport.sent) == 1
    transport.congested = True
    rank._send(0, 1, message)
    rank._send(0, 1, message.back())
    rank._send(0, 1, Supply(1, 1))
    assert len(transport.sent) == 2
    assert list(rank._arrived) == [(1, 0, message.back())]


class Unmoved:
    """What has to be told that the world changes."""

    def halt(self) -> None:
        pass

    go_on = clear = begin_anew = halt


def test_the_last_rank_goes_on_at_once_when_it_finds_out_by_silence_that_the_other_hangs() -> None:
    rank, transport = rank_that_hears()
    rank._rank_loss, rank._membership = RankLoss.SURVIVE, Membership(0, first_generation((1, 1)), 30.0)
    rank.config, rank._workers, rank._desk, rank.transfer = Config(), Workers(), NoDesk(), Unmoved()
    rank.roll, rank._reporter, rank._on_change = Unmoved(), Unmoved(), lambda: None
    rank._ahead, rank._news_ahead = [], []
    rank._fetching, rank._how_lost, rank.news_of_ranks = {}, {}, {}
    rank._memory_watch = rank._stimuli = rank._halted_s = rank._growth = None
    rank._heap = HeapKeeper(None)
    rank._bound, rank.founders = 2, Placement([1, 1])
    transport.give_up_on = lambda lost: None
    (pe,) = rank._pes
    pe.handle(JobSubmitted(1, JobParameters(), Description(1, b"x")), 0.0)
    rank._settle(pe)
    pe.handle(WorkerStarted(0), 0.0)
    rank._settle(pe)
    deque(map(rank._beat, map(float, range(30))))
    assert rank.placement.members == (0,)
    kinds = [type(effect) for effect in rank._workers.effects]
    assert kinds[-3:] == [SuspendWorker, ResumeWorker, UpdateWorker], "its worker is at work again"


def test_a_message_that_no_pe_sends_at_this_time_ends_the_system_with_the_name_of_its_rank() -> None:
    rank, _ = rank_that_hears()
    rank._arrived.append((1, 0, Epoch(7, ())))
    rank._settle()
    with pytest.raises(PeerFailure, match=r"rank 1 .* sent what no rank sends .*epoch 7 after 0"):
        rank._note_losses()
    rank._arrived.append((0, 0, Epoch(7, ())))
    with pytest.raises(PeerViolation, match="epoch 7 after 0"):
        rank._settle()


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Sleeper:
    """Nothing ever wakes it but time; at `until_s` the rank is told to stop."""

    def __init__(self, rank: Any, clock: Clock, until_s: float) -> None:
        self._rank, self._clock, self._until_s = rank, clock, until_s
        self.parked_s: list[float] = []

    def park(self, timeout_s: float) -> set[int]:
        assert timeout_s > 0, "it looks again at once, for nothing"
        self.parked_s.append(timeout_s)
        self._clock.now_s += timeout_s
        self._rank._stopping = self._clock.now_s >= self._until_s
        return set()


class Quiet(Hearing):
    """A transport of one host on which nothing comes."""

    has_lost = False

    def receive(self) -> Iterator[Arrival]:
        return iter(())

    def flush(self) -> None:
        pass

    def park_timeout_s(self, wanted_s: float) -> float:
        return wanted_s


class NoProcesses:
    def next_deadline(self) -> float:
        return math.inf


class IdleWorkers:
    """No workers, whose memory and CPU time are looked at; and what the rest of an idle rank is told."""

    update_at_s = cpu_look_at_s = math.inf

    def __init__(self) -> None:
        self.looks = 0

    def grown_memory(self) -> list[Any]:
        self.looks += 1
        return []

    def jobs(self) -> set[int]:
        return set()

    def keep_only(self, jobs: set[int]) -> None:
        assert not jobs


def idle_rank(timeout_s: float | None = None) -> tuple[Any, Clock]:
    rank, clock = bare_rank(), Clock()
    rank.placement, rank._ring = Placement([1, 1]), HeartbeatRing(0, {0: "a", 1: "b"}, timeout_s)
    rank._pes, rank._desk = [PE(0, 2, Config())], None
    rank._transport, rank.pool = Quiet(), NoProcesses()
    rank._workers = rank.transfer = IdleWorkers()
    rank._fetching, rank._stimuli, rank._memory_watch, rank._news_go_to = {}, None, None, None
    rank._heap = HeapKeeper(None)
    rank._drains_for, rank._drain_look_s = None, math.inf
    rank._unheard_until_s = math.inf
    rank._growth = None
    rank.now, rank._halted_s, rank.end_reason = clock, None, None
    rank._message_bell, rank._worker_bell, rank._signal_bell, rank._desk_bell = 3, 4, 5, None
    rank._stop_at_s, rank._over_at_s, rank._pool_due_s = math.inf, math.inf, math.inf
    return rank, clock


def test_time_wakes_an_idle_rank_once_a_second_and_it_beats_and_looks_each_time() -> None:
    rank, clock = idle_rank()
    rank._parking = Sleeper(rank, clock, 10.0)
    rank.run()
    assert rank._parking.parked_s == [1.0] * 10
    beats = [data for data in rank._transport.sent if data == seal(G, 0, 0, encode(Beat()))]
    assert len(beats) == rank._workers.looks == 10


def test_a_rank_that_is_silent_is_found_out_in_time_by_one_that_nothing_else_wakes() -> None:
    rank, clock = idle_rank(timeout_s=3.0)
    rank._parking = Sleeper(rank, clock, 60.0)
    with pytest.raises(PeerFailure, match="does not answer any more"):
        rank.run()
    assert 3.0 < clock.now_s <= 5.0
