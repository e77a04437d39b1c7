"""Connections to ranks that joined later, both ends in one process."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import poll_until

from mallob_py.runtime.world.envelope import Arrival, Channel
from mallob_py.runtime.world.links import SECRET_BYTES, LinkError, Links, Place

SECRET = os.urandom(SECRET_BYTES)


@pytest.fixture
def links() -> Iterator[tuple[Links, Links]]:
    """Of rank 0, which was there, and of rank 7, which joins."""
    both = Links(0), Links(7)
    yield both
    for each in both:
        each.close()


def connect(links: tuple[Links, Links], folder: Path, *, wide: bool = False) -> None:
    old, new = links
    place = old.listen(SECRET, folder, wide=wide)
    new.listen(SECRET, folder, wide=False)
    new.connect(0, Place("", place.address, place.port) if wide else place)
    poll_until(lambda: list(old.receive()) == [] and old.has(7))


def take(links: Links, count: int, sender: Links) -> list[Arrival]:
    """So many messages, while both have their turns."""
    found: list[Arrival] = []

    def turn() -> bool:
        sender.flush()
        assert list(sender.receive()) == []
        found.extend(links.receive())
        return len(found) >= count

    poll_until(turn)
    return found


@pytest.mark.parametrize("wide", [False, True], ids=["unix", "tcp"])
def test_messages_arrive_in_order_both_ways(
    links: tuple[Links, Links], tmp_path: Path, *, wide: bool
) -> None:
    connect(links, tmp_path, wide=wide)
    old, new = links
    sizes = [0, 1, 100, 300_000, 5_000_000, 7]
    messages = [os.urandom(size) for size in sizes]
    for sender, receiver, peer in ((old, new, 7), (new, old, 0)):
        for message in messages:
            sender.send(peer, Channel.CONTROL, message)
        found = take(receiver, len(messages), sender)
        assert [each.data for each in found] == messages
        assert {(each.source, each.channel) for each in found} == {(sender.rank, Channel.CONTROL)}


def test_control_messages_overtake_large_data(links: tuple[Links, Links], tmp_path: Path) -> None:
    connect(links, tmp_path)
    old, new = links
    for _ in range(4):
        old.send(7, Channel.BULK, bytes(1 << 20))
    old.flush()
    old.send(7, Channel.CONTROL, b"news")
    found = take(new, 5, old)
    assert [each.channel for each in found].index(Channel.CONTROL) < 4


def test_who_breaks_off_gets_the_rest_the_next_time_and_nothing_twice(
    links: tuple[Links, Links], tmp_path: Path
) -> None:
    connect(links, tmp_path)
    old, new = links
    for number in range(10):
        new.send(0, Channel.BULK, bytes([number]))
    new.flush()
    found: list[int] = []

    def take_one() -> bool:
        for arrival in old.receive():
            found.append(arrival.data[0])
            break
        return len(found) == 10

    poll_until(take_one)
    assert found == list(range(10))
    assert not old.has_more


def test_an_end_is_told_after_all_that_was_said(links: tuple[Links, Links], tmp_path: Path) -> None:
    connect(links, tmp_path)
    old, new = links
    new.send(0, Channel.CONTROL, b"last words")
    new.flush()
    new.close()
    said: list[bytes | bytearray] = []

    def has_ended() -> bool:
        said.extend(each.data for each in old.receive())
        return any(peer == 7 and said == [b"last words"] for peer, _ in old.take_ended())

    poll_until(has_ended)
    old.send(7, Channel.CONTROL, b"nobody hears this")
    old.flush()


def test_an_end_that_is_met_while_sending_is_there_to_be_told_at_once(
    links: tuple[Links, Links], tmp_path: Path
) -> None:
    connect(links, tmp_path)
    old, new = links
    new.close()
    assert not old.has_more
    old.send(7, Channel.CONTROL, b"nobody hears this")
    old.flush()
    assert old.has_more, "no descriptor will ever tell"
    assert [peer for peer, _ in old.take_ended()] == [7]
    assert not old.has_more


def test_what_is_sent_to_a_peer_that_does_not_read_waits_and_is_counted(
    links: tuple[Links, Links], tmp_path: Path
) -> None:
    connect(links, tmp_path)
    old, new = links
    for _ in range(40):
        old.send(7, Channel.BULK, bytes(1 << 20))
    old.flush()
    assert old.waiting_bytes(7) > 10 << 20
    old.give_up_on(7)
    assert old.waiting_bytes(7) <= 1 << 20
    old.send(7, Channel.CONTROL, b"you are thought dead")
    found: list[bytes | bytearray] = []
    poll_until(lambda: found.extend(each.data for each in take(new, 1, old)) or found[-1] != bytes(1 << 20))
    assert found[-1] == b"you are thought dead"


def test_who_is_given_up_on_hears_what_was_said_before(links: tuple[Links, Links], tmp_path: Path) -> None:
    connect(links, tmp_path)
    old, new = links
    old.send(7, Channel.CONTROL, b"you may leave")
    old.give_up_on(7)
    assert [each.data for each in take(new, 1, old)] == [b"you may leave"]


def test_both_part_when_both_have_said_so(links: tuple[Links, Links], tmp_path: Path) -> None:
    connect(links, tmp_path)
    old, new = links
    old.part()
    assert not old.has_parted()
    new.part()

    def both_have() -> bool:
        for each in links:
            each.flush()
            assert list(each.receive()) == []
        return old.has_parted() and new.has_parted()

    poll_until(both_have)
    assert old.take_ended() == []


def test_each_growth_has_a_secret_of_its_own(links: tuple[Links, Links], tmp_path: Path) -> None:
    old, new = links
    place = old.listen(SECRET, tmp_path, wide=False)
    later = os.urandom(SECRET_BYTES)
    assert old.listen(later, tmp_path, wide=False) == place
    new.listen(later, tmp_path, wide=False)
    new.connect(0, place)
    poll_until(lambda: list(old.receive()) == [] and old.has(7))


def test_strangers_are_not_let_in(links: tuple[Links, Links], tmp_path: Path) -> None:
    old, _ = links
    place = old.listen(SECRET, tmp_path, wide=True)
    for said in (b"", b"G", b"GET / HTTP/1.0\r\n\r\n" * 10, bytes(SECRET_BYTES + 4)):
        with socket.create_connection((place.address, place.port)) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(0.01)

            def is_sent_away(stranger: socket.socket = stranger) -> bool:
                assert list(old.receive()) == []
                try:
                    return stranger.recv(1) == b""
                except TimeoutError:
                    return False
                except ConnectionResetError:
                    return True

            poll_until(is_sent_away)
    assert not old.has(0)


def test_strangers_who_say_nothing_keep_nobody_out(links: tuple[Links, Links], tmp_path: Path) -> None:
    old, new = links
    place = old.listen(SECRET, tmp_path, wide=True)
    new.listen(SECRET, tmp_path, wide=False)
    with contextlib.ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(socket.create_connection((place.address, place.port)))
            assert list(old.receive()) == []
        new.connect(3, place)

        def is_known() -> bool:
            assert list(old.receive()) == []
            return old.has(7)

        poll_until(is_known)


def test_who_is_not_there_is_named(links: tuple[Links, Links], tmp_path: Path) -> None:
    _, new = links
    new.listen(SECRET, tmp_path, wide=False)
    with pytest.raises(LinkError, match="rank 7 cannot connect to rank 3: it cannot be reached"):
        new.connect(3, Place(str(tmp_path / "link.3")))
