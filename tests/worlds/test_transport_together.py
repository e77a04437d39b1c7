"""The transport's promises, tested in one existing MPI world: order, completeness, hosts, a common end.

What needs a world of its own (ranks that die, hang or flood) is in tests/ranks/test_transport.py.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from mallob_py.loop_rate import RESTS_BELOW
from mallob_py.runtime.world.envelope import Channel

pytestmark = pytest.mark.mpi
needs_others = pytest.mark.mpi(min_size=2)

SIZES_BYTES = (0, 1, 40, 300, 5_000, 8_192, 20_000, 100_000)
BIG_SIZES_BYTES = (5_000_000, 262_144, 1, 3_333_333)
MESSAGES, PER_TURN_MAX = 2000, 30


HOSTS = ["several hosts", "links between hosts", "no links between hosts"]


@pytest.fixture(params=["unix sockets", *HOSTS, "no doorbell"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    from mallob_py.runtime.world.mpi import RankLoss, start_mpi
    from mallob_py.runtime.world.transport import Transport

    if "hosts" in request.param:
        monkeypatch.setenv("MALLOB_PY_RANKS_PER_HOST", "2")
    if request.param == "no doorbell":
        monkeypatch.setenv("MALLOB_PY_DOORBELL", "off")
    linked = "links" in request.param
    if request.param == "no links between hosts":
        monkeypatch.setenv("MALLOB_PY_BELL_ADDRESS", "192.0.2.1")  # an address that no host has
    one = Transport(start_mpi(), RankLoss.IF_LINKED if linked else RankLoss.RESTART)
    several = "hosts" in request.param and one.size > 2
    assert (one.rank_loss is RankLoss.SURVIVE) is (linked and not ("no" in request.param and several))
    yield one
    assert one.close()


def run_until(
    transport: Any,
    done: Callable[[], bool],
    handle: Callable[[Any], None],
    act: Callable[[], None] = lambda: None,
) -> None:
    import turns  # this import initialises MPI

    turns.run_until(transport, done, handle, act)


@needs_others
def test_random_traffic_arrives_complete_and_in_order(transport: Any) -> None:
    me, size = transport.rank, transport.size
    others = [rank for rank in range(size) if rank != me]
    randomness = random.Random(me)
    sent = {(peer, channel): 0 for peer in range(size) for channel in Channel}
    received = dict(sent)
    expected: dict[int, list[int]] = {}
    left = MESSAGES // size

    def act() -> None:
        nonlocal left
        for _ in range(min(left, randomness.randint(1, PER_TURN_MAX))):
            peer = randomness.choice(others)
            channel = randomness.choice((Channel.CONTROL, Channel.CONTROL, Channel.BULK))
            number = sent[peer, channel]
            filling = bytes([number % 251]) * randomness.choice(SIZES_BYTES)
            data = b"D" + number.to_bytes(4, "little") + filling
            (transport.send if channel is Channel.CONTROL else transport.send_bulk)(peer, data)
            sent[peer, channel] += 1
            left -= 1
            if left == 0:
                for other in others:
                    counts = b"".join(sent[other, c].to_bytes(4, "little") for c in Channel)
                    transport.send(other, b"E" + counts)

    def handle(arrival: Any) -> None:
        source, channel, data = arrival
        if data[:1] == b"E":
            assert channel is Channel.CONTROL
            expected[source] = [int.from_bytes(data[1 + 4 * c : 5 + 4 * c], "little") for c in Channel]
            assert received[source, Channel.CONTROL] == expected[source][Channel.CONTROL]
            return
        number = int.from_bytes(data[1:5], "little")
        assert number == received[source, channel]
        assert data[5:].count(number % 251) == len(data) - 5
        received[source, channel] += 1

    def done() -> bool:
        return (
            left == 0
            and len(expected) == len(others)
            and all(received[peer, c] == expected[peer][c] for peer in others for c in Channel)
        )

    run_until(transport, done, handle, act)


@needs_others
def test_big_messages_arrive_intact_beside_small_ones(transport: Any) -> None:
    contents = [random.Random(size).randbytes(size) for size in BIG_SIZES_BYTES]
    digests = [hashlib.sha256(content).digest() for content in contents]
    seen: dict[Channel, list[bytes]] = {channel: [] for channel in Channel}

    def note(arrival: Any) -> None:
        data = bytes(arrival.data)
        seen[arrival.channel].append(
            hashlib.sha256(data).digest() if arrival.channel is Channel.BULK else data
        )

    if transport.rank == 0:
        for content, digest in zip(contents, digests, strict=True):
            for peer in range(1, transport.size):
                transport.send_bulk(peer, content)
                transport.send(peer, digest)
        run_until(transport, lambda: len(seen[Channel.CONTROL]) == transport.size - 1, note)
        assert set(seen[Channel.CONTROL]) == {b"intact"}
    else:
        run_until(transport, lambda: all(len(d) == len(digests) for d in seen.values()), note)
        assert seen[Channel.BULK] == seen[Channel.CONTROL] == digests
        transport.send(0, b"intact")
        transport.flush()


@needs_others
def test_long_control_messages_keep_their_place_among_others_of_their_sender(transport: Any) -> None:
    contents = [random.Random(size).randbytes(size) for size in (7, 3_000_001, 20, 131_072, 65_537, 1)]
    seen: dict[int, list[bytes]] = {peer: [] for peer in range(transport.size) if peer != transport.rank}
    for peer in seen:
        for content in contents:
            transport.send(peer, content)
    run_until(
        transport,
        lambda: all(len(received) == len(contents) for received in seen.values()),
        lambda arrival: seen[arrival.source].append(bytes(arrival.data)),
    )
    assert all(received == contents for received in seen.values())
    assert transport.take_heard() == set(seen)
    assert transport.take_heard() == set()


@pytest.mark.mpi(min_size=3)
def test_a_long_control_message_does_not_delay_those_of_other_ranks(transport: Any) -> None:
    """Rank 1 sends a message that takes 100 times as many turns as the exchange with rank 2."""
    long_bytes, order = 50_000_000, []

    def handle(arrival: Any) -> None:
        order.append(len(arrival.data))
        if transport.rank == 2 and arrival.data == b"ping":
            transport.send(0, b"pong")

    if transport.rank == 0:
        transport.send(1, b"go")
        run_until(transport, lambda: transport.take_heard() >= {1}, handle)
        transport.send(2, b"ping")
        run_until(transport, lambda: len(order) == 2, handle)
        assert order == [4, long_bytes]
    elif transport.rank == 1:
        run_until(transport, lambda: bool(order), handle)
        transport.send(0, bytes(long_bytes))
        run_until(transport, lambda: not transport.has_pending(), handle)
    elif transport.rank == 2:
        run_until(transport, lambda: bool(order), handle)
        run_until(transport, lambda: not transport.has_pending(), handle)


@needs_others
def test_a_peer_is_congested_until_it_has_caught_up(transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mallob_py.runtime.world import carrier

    monkeypatch.setattr(carrier, "CONGESTED_BYTES", 2 << 20)
    if transport.rank == 0:
        assert not transport.is_congested(1)
        transport.send(1, bytes(4 << 20))
        assert transport.is_congested(1)
        assert transport.take_lost() == []
        run_until(transport, lambda: not transport.is_congested(1), lambda _: None)
    else:
        seen: list[int] = []
        run_until(transport, lambda: bool(seen) or transport.rank > 1, lambda one: seen.append(len(one.data)))


@pytest.mark.mpi(min_size=3)
def test_what_waits_for_all_peers_together_is_bounded(
    transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mallob_py.runtime.world import carrier

    monkeypatch.setattr(carrier, "CONGESTED_TOGETHER_BYTES", 16 << 20)
    if transport.rank == 0:
        transport.send(1, bytes(12 << 20))
        assert not transport.is_congested(1)
        transport.send(2, bytes(12 << 20))
        assert transport.is_congested(1)
        assert transport.is_congested(2)
        assert not any(map(transport.is_congested, range(3, transport.size)))
        run_until(
            transport, lambda: not (transport.is_congested(1) or transport.is_congested(2)), lambda _: None
        )
    else:
        seen: list[int] = []
        run_until(transport, lambda: bool(seen) or transport.rank > 2, lambda one: seen.append(len(one.data)))


def test_all_ranks_agree_on_who_shares_a_host(transport: Any) -> None:
    from mpi4py import MPI

    hosts = [transport.hosts[rank] for rank in range(transport.size)]
    assert MPI.COMM_WORLD.allgather(hosts) == [hosts] * transport.size
    together = int(os.environ.get("MALLOB_PY_RANKS_PER_HOST", transport.size))
    assert hosts == [rank // together * together for rank in range(transport.size)]
    assert transport.size == 1 or transport.doorbell.available is ("MALLOB_PY_DOORBELL" not in os.environ)
    linked = [transport.links.has(rank) for rank in range(transport.size)]
    assert linked == [any(linked) and host != hosts[transport.rank] for host in hosts]
    assert transport.doorbell.has_remote_peers is (len(set(hosts)) > 1 and not any(linked))


def test_a_rank_that_all_others_can_wake_for_sure_parks_for_as_long_as_it_likes(transport: Any) -> None:
    bell = transport.doorbell
    deque(transport.receive())
    parked_s = transport.park_timeout_s(3600.0)
    assert (parked_s == 3600.0) is (bell.available and not bell.has_remote_peers)
    assert parked_s == 3600.0 or parked_s < 0.1
    time.sleep(0.01)  # earlier rings have arrived
    at_last_s = [transport.park_timeout_s(3600.0) for _ in range(3)][-1]
    assert (at_last_s > 1.0 / RESTS_BELOW) is bell.available, "it rests where nothing comes"


@needs_others
def test_a_rank_rests_while_a_peer_takes_nothing_of_what_it_was_sent(
    transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpi4py import MPI

    from mallob_py.runtime.world import transport as module

    deque(transport.receive())
    MPI.COMM_WORLD.Barrier()
    seen: list[bytes] = []
    parked_s: list[float] = []
    if transport.rank == 0:
        for _ in range(module.ACKNOWLEDGED_EVERY):
            transport.send(1, b"x")
        parked_s.append(transport.park_timeout_s(3600.0))
        monkeypatch.setattr(module, "HUNG_AFTER_S", 0.0)
        parked_s.append(transport.park_timeout_s(3600.0))
    MPI.COMM_WORLD.Barrier()
    if transport.rank == 1:
        run_until(
            transport, lambda: len(seen) == module.ACKNOWLEDGED_EVERY, lambda one: seen.append(one.data)
        )
    run_until(transport, lambda: not transport.has_pending(), lambda _: None)
    if transport.rank == 0 and not transport.links.has(1):
        bell = transport.doorbell
        assert parked_s[0] <= 0.001
        assert (parked_s[1] > 1.0 / RESTS_BELOW) is bell.available


def test_sending_to_oneself_is_refused(transport: Any) -> None:
    with pytest.raises(AssertionError):
        transport.send(transport.rank, b"me")


def test_a_rank_that_will_not_start_keeps_all_from_starting() -> None:
    from mpi4py import MPI

    from mallob_py.runtime.world.mpi import OthersRefused, refuse_to_start, start_mpi

    world = MPI.COMM_WORLD
    for unwilling in range(world.Get_size()):
        if world.Get_rank() == unwilling:
            refuse_to_start()
        else:
            with pytest.raises(OthersRefused):
                start_mpi()
    assert start_mpi() == world
