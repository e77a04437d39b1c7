"""A turn of a rank's loop ends even if messages keep coming, and a waiting loop turns seldom."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_parts import Parts

from mallob_py.loop_rate import RESTS_BELOW, LoopRate, shown
from mallob_py.protocol.messages import Checkpoint, Description, Epoch, Supply, TreeMessage, encode
from mallob_py.protocol.placement import name_of
from mallob_py.protocol.rank_effects import Tell
from mallob_py.protocol.rank_messages import Beat, Listen, Peer, Place, RankDrains, RankProcess
from mallob_py.protocol.rank_stimuli import RanksStarted, ToPE
from mallob_py.protocol.stimuli import JobParameters, WorkerStarted
from mallob_py.runtime.desk import Desk
from mallob_py.runtime.rank import PeerFailure
from mallob_py.runtime.world.envelope import Arrival, Channel, seal

G = name_of(1, 0)


class Taker:
    """A stand-in that counts the chunks of descriptions that it receives."""

    def __init__(self) -> None:
        self.chunks = 0

    def receive_chunk(self, source: int, data: bytes) -> None:
        self.chunks += 1

    def keep_only(self, jobs: set[int]) -> None:
        assert not jobs


class _Endless:
    """Chunks that arrive without end, turn after turn."""

    def __init__(self) -> None:
        self.turns = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Iterator[Arrival]:
        self.turns += 1
        return itertools.repeat(Arrival(1, Channel.BULK, b"chunk"))


def test_chunks_that_never_cease_let_the_loop_go_on(tmp_path: Path) -> None:
    parts = Parts(tmp_path, until_s=3.0)
    parts.transport.arrivals = chunks = _Endless()  # type: ignore[assignment]
    parts.rank.transfer = taker = Taker()  # type: ignore[assignment]
    parts.rank.run()
    assert chunks.turns >= 3
    assert taker.chunks % chunks.turns == 0


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"short", "less than a header"),
        (seal(G, 2, 0, b"\xc1"), "malformed"),
        (seal(G, 2, 0, encode(Supply(1, 1)) + b"!"), "trailing"),
        (seal(G, 0, 1, encode(Supply(1, 1))), "a message of PE 0, which is not one of its PEs"),
        (seal(G, 5, 1, encode(Supply(1, 1))), "a message of PE 5, which is not one of its PEs"),
        (seal(G, 2, 2, encode(Supply(1, 1))), "a message for PE 2, which is not here"),
        (seal(G, 2, 0, encode(Epoch(7, ()))), "epoch 7 after epoch 0"),
    ],
)
def test_a_message_that_no_rank_can_have_sent_ends_the_system_with_the_name_of_its_sender(
    data: bytes, what: str, tmp_path: Path
) -> None:
    parts = Parts(tmp_path, (2, 1), until_s=10.0)
    parts.transport.arrivals = iter([[Arrival(1, Channel.CONTROL, data)]])
    with pytest.raises(PeerFailure, match=rf"rank 1 \(process 7 on h\) sent what no rank sends .*{what}"):
        parts.rank.run()


def test_a_rank_whose_long_message_keeps_coming_is_not_silent_though_its_beats_wait_behind(
    tmp_path: Path,
) -> None:
    parts = Parts(tmp_path, timeout_s=5.0, until_s=30.0)
    parts.transport.heard = {1}

    def fall_silent() -> None:
        parts.transport.heard = set()
        parts.bells.until_s = 60.0

    parts.bells.at_end = fall_silent
    with pytest.raises(PeerFailure, match="does not answer any more"):
        parts.rank.run()
    assert 30.0 < parts.clock.now_s <= 37.0


def test_messages_between_workers_come_back_from_a_rank_that_is_behind_and_few_others_are_not_sent(
    tmp_path: Path,
) -> None:
    parts = Parts(tmp_path)
    message = TreeMessage(1, 2, 1, 3, 0, False, b"clauses")

    def sent(*messages: Any) -> list[bool]:
        """Return which of these messages the rank sends."""
        parts.node.effects.extend(Tell(1, G, 0, 1, each) for each in messages)
        parts.transport.sent.clear()
        parts.rank.tell_news_to(0)  # any call that makes the rank act
        return [(1, seal(G, 0, 1, encode(each))) in parts.transport.sent for each in messages]

    checkpoint = Checkpoint(1, 2, b"so far")
    assert sent(message, checkpoint) == [True, True]
    parts.transport.is_behind = True
    assert sent(message, message.back(), checkpoint, Supply(7, 7)) == [False, False, False, True]
    assert parts.log.events["dropped message"] == 2


def test_the_last_rank_goes_on_at_once_when_it_finds_out_by_silence_that_the_other_hangs(
    tmp_path: Path,
) -> None:
    parts = Parts(tmp_path, timeout_s=5.0, survives=True, until_s=30.0)
    rank = parts.rank
    rank.set_desk(Desk())
    rank.submit(1, JobParameters(), Description(1, b"x"))
    parts.node.handle(ToPE(0, WorkerStarted(0)), 0.0)
    rank.run()
    assert rank.node.placement.members == (0,)
    assert parts.transport.given_up == {1}
    changes = [done for done in parts.pool.done if done in ("suspend", "resume")]
    assert changes == ["suspend", "resume"], "its worker is at work again"


def test_time_wakes_an_idle_rank_once_a_second_and_it_beats_and_looks_each_time(tmp_path: Path) -> None:
    parts = Parts(tmp_path, until_s=10.0)
    parts.rank.run()
    assert parts.bells.parked_s == [1.0] * 10
    beats = [data for _, data in parts.transport.sent if data == seal(G, 0, 0, encode(Beat()))]
    assert len(beats) == 10


def test_a_rank_that_is_silent_is_found_out_in_time_by_one_that_nothing_else_wakes(tmp_path: Path) -> None:
    parts = Parts(tmp_path, timeout_s=3.0, until_s=60.0)
    with pytest.raises(PeerFailure, match="does not answer any more"):
        parts.rank.run()
    assert 3.0 < parts.clock.now_s <= 5.0


# --- a waiting event loop uses no CPU time ------------------------------------------------------


class ShortOfMemory:
    is_short = True

    def look(self, now: float) -> None:
        pass


class Waiting:
    """Orders that wait for an event, without a deadline."""

    deadline_s = float("inf")

    def fileno(self) -> None:
        return None

    def turn(self, now: float) -> None:
        raise AssertionError("nothing is due")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def _let_hang(parts: Parts) -> None:
    """Halt the rank: as the coordinator, it waits for the other rank."""
    parts.rank.have_leave([1])
    assert parts.node.is_halted


def _let_drain(parts: Parts) -> None:
    parts.rank.set_desk(Desk())
    parts.rank.submit(1, JobParameters(), Description(1, b"x"))
    parts.node.handle(ToPE(0, WorkerStarted(0)), 0.0)
    parts.transport.arrivals = iter(
        [[Arrival(1, Channel.CONTROL, seal(G, 0, 0, encode(RankDrains(1000.0))))]]
    )


def _let_grow(parts: Parts) -> None:
    process = RankProcess(9, "h", 0, 0)
    me = Peer(0, 0, process, Place("link"))
    parts.node.handle(RanksStarted(Listen(3, b"s", wide=False), me, ((2, process),)), 0.0)
    assert parts.node.is_growing


def _let_run_short(parts: Parts) -> None:
    watch: Any = ShortOfMemory()
    parts.rank.set_memory_watch(watch, [0])


def _let_work(parts: Parts) -> None:
    parts.rank.set_desk(Desk())
    parts.rank.submit(1, JobParameters(), Description(1, b"x"))


@pytest.mark.parametrize(
    "state",
    [
        lambda parts: None,
        lambda parts: parts.rank.set_orders(Waiting()),
        _let_work,
        _let_hang,
        _let_drain,
        _let_grow,
        _let_run_short,
    ],
    ids=["idle", "orders", "a process comes up", "halted", "draining", "growing", "short of memory"],
)
def test_a_rank_that_waits_turns_seldom(state: Callable[[Parts], None], tmp_path: Path) -> None:
    parts = Parts(tmp_path, survives=True, patience_s=1000.0, until_s=10.0)
    state(parts)
    parts.rank.run()
    assert parts.clock.now_s >= 10.0
    assert parts.rank.rate.turns < RESTS_BELOW * 10


def test_turns_are_told_in_one_digit_and_not_at_all_if_a_loop_rests() -> None:
    rate = LoopRate()
    assert rate.per_second(1.0) == 0.0
    for _ in range(300):
        rate.turns += 1
    assert rate.per_second(3.0) == 150.0
    assert rate.per_second(4.0) == 0.0
    assert [shown(each) for each in (0.0, 19.9, 20.0, 26.0, 99.0, 150.0, 12345.0)] == [
        *(0, 0, 20, 30, 100, 200, 10000)
    ]
