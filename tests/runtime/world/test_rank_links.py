"""Connections to ranks that joined later, both ends in one process."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import poll_until

from mallob_py.protocol.rank_messages import Place
from mallob_py.runtime.world.envelope import Arrival, Channel
from mallob_py.runtime.world.links import _STRANGERS_MAX, SECRET_BYTES, LinkError, Links

SECRET = os.urandom(SECRET_BYTES)


@pytest.fixture
def links() -> Iterator[tuple[Links, Links]]:
    """Yield the connections of rank 0, which runs already, and of rank 7, which joins."""
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
    """Let both ranks run until `count` messages have arrived; return the messages."""
    found: list[Arrival] = []

    def turn() -> bool:
        sender.flush()
        assert list(sender.receive()) == []
        found.extend(links.receive())
        return len(found) >= count

    poll_until(turn)
    return found


def hello(secret: bytes, address: int) -> bytes:
    """Return the first bytes of a connection."""
    return b"J" + secret + address.to_bytes(4, "little") + bytes(2)


def say(place: Place, said: bytes) -> socket.socket:
    """Connect as a stranger, and send bytes."""
    stranger = socket.create_connection((place.address, place.port))
    stranger.sendall(said)
    return stranger


def is_sent_away(stranger: socket.socket, links: Links) -> bool:
    """Let the rank run once; return whether it has closed the stranger's connection."""
    assert list(links.receive()) == []
    stranger.setblocking(False)
    try:
        return stranger.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


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
    assert old.flush() > 0


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
    assert old.flush() > 0
    old.send(7, Channel.CONTROL, b"nobody hears this")
    assert old.flush() == 0.0, "no descriptor will ever tell"
    assert [peer for peer, _ in old.take_ended()] == [7]
    assert old.flush() > 0


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
    for said in (b"", b"G", b"GET / HTTP/1.0\r\n\r\n" * 10):
        with say(place, said) as stranger:
            stranger.shutdown(socket.SHUT_WR)
            poll_until(lambda stranger=stranger: is_sent_away(stranger, old))
    assert not old.has(0)


def test_who_does_not_know_the_secret_is_not_let_in_by_any_address(
    links: tuple[Links, Links], tmp_path: Path
) -> None:
    old, _ = links
    place = old.listen(SECRET, tmp_path, wide=True)
    almost = SECRET[:-1] + bytes([SECRET[-1] ^ 1])
    for secret in (bytes(SECRET_BYTES), almost):
        with say(place, hello(secret, 7)) as stranger:
            poll_until(lambda stranger=stranger: is_sent_away(stranger, old) or old.has(7))
        assert not old.has(7)
    with say(place, hello(SECRET, 7)):  # only the secret was wrong above
        poll_until(lambda: list(old.receive()) == [] and old.has(7))


def test_nobody_is_let_in_under_the_address_of_this_rank(links: tuple[Links, Links], tmp_path: Path) -> None:
    old, _ = links
    place = old.listen(SECRET, tmp_path, wide=True)
    with say(place, hello(SECRET, 0)) as stranger:
        poll_until(lambda: is_sent_away(stranger, old) or old.has(0))
    assert not old.has(0)


def test_a_rank_has_one_connection_and_a_second_one_is_sent_away(
    links: tuple[Links, Links], tmp_path: Path
) -> None:
    connect(links, tmp_path, wide=True)
    old, new = links
    assert old.place is not None
    with say(old.place, hello(SECRET, 7)) as second:
        poll_until(lambda: is_sent_away(second, old))
    old.send(7, Channel.CONTROL, b"to the first")
    assert [each.data for each in take(new, 1, old)] == [b"to the first"]


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


def test_no_more_than_so_many_strangers_are_waited_for(links: tuple[Links, Links], tmp_path: Path) -> None:
    """Otherwise silent strangers would take all descriptors of this rank."""
    old, _ = links
    place = old.listen(SECRET, tmp_path, wide=True)
    with contextlib.ExitStack() as silent:
        strangers = [silent.enter_context(say(place, b"")) for _ in range(_STRANGERS_MAX + 3)]
        for stranger in strangers[:3]:
            poll_until(lambda stranger=stranger: is_sent_away(stranger, old))
        assert not any(is_sent_away(stranger, old) for stranger in strangers[3:])


def test_who_is_not_there_is_named(links: tuple[Links, Links], tmp_path: Path) -> None:
    _, new = links
    new.listen(SECRET, tmp_path, wide=False)
    with pytest.raises(LinkError, match="rank 7 cannot connect to rank 3: it cannot be reached"):
        new.connect(3, Place(str(tmp_path / "link.3")))


def test_who_has_no_free_descriptor_says_so(
    links: tuple[Links, Links], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = links
    place = old.listen(SECRET, tmp_path, wide=True)

    def none_is_free(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_is_free)
    with pytest.raises(LinkError, match=r"cannot connect to rank 0: .* Too many open files"):
        new.connect(0, place)
