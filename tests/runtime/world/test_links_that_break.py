"""Connections between hosts that are cut while both ranks live, through a proxy that cuts them."""

import contextlib
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from waiting import poll_until

from mallob_py.protocol.rank_messages import Place
from mallob_py.runtime.world import mending
from mallob_py.runtime.world.envelope import Channel
from mallob_py.runtime.world.links import SECRET_BYTES, Links

SECRET = os.urandom(SECRET_BYTES)


class Two:
    """The connections of two ranks: rank 0 listens behind the proxy, rank 7 connects."""

    def __init__(self, folder: Path) -> None:
        self.links = Links(0), Links(7)
        old, new = self.links
        place = old.listen(SECRET, folder / "old", wide=True)
        self.proxy = CuttingProxy((place.address, place.port))
        new.listen(SECRET, folder / "new", wide=True)
        new.connect(0, Place("", *self.proxy.address))
        self.found: dict[int, list[bytes]] = {0: [], 7: []}
        self.ended: list[tuple[int, str]] = []
        self.back: list[int] = []
        poll_until(lambda: self.turn() or old.has(7))

    def turn(self, *, only: int | None = None) -> None:
        for each in self.links:
            if only in (None, each.rank):
                each.flush()
                self.found[each.rank] += [bytes(arrival.data) for arrival in each.receive()]
                self.ended += each.take_ended()
                self.back += each.take_back()

    def await_that(self, condition: Callable[[], bool], *, only: int | None = None) -> None:
        poll_until(lambda: self.turn(only=only) or condition(), lambda: f"{self.ended}")

    def close(self) -> None:
        for each in self.links:
            each.close()
        self.proxy.close()


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    monkeypatch.setenv("MALLOB_PY_BELL_ADDRESS", "127.0.0.1")
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    both = Two(tmp_path)
    yield both
    both.close()


@pytest.mark.parametrize("seed", range(3))
def test_many_cuts_lose_no_message_and_double_none(two: Two, seed: int) -> None:
    choose = random.Random(seed)
    sent: dict[int, list[bytes]] = {0: [], 7: []}
    for cut in range(8):
        for sender, peer in ((two.links[0], 7), (two.links[1], 0)):
            for _ in range(choose.randrange(10)):
                message = os.urandom(choose.choice([1, 100, 5000, 300_000]))
                sent[peer].append(message)
                sender.send(peer, Channel.CONTROL, message)
        for _ in range(choose.randrange(4)):
            two.turn()
        two.proxy.cut()
        two.await_that(lambda cut=cut: two.proxy.carried > cut + 1)
    two.await_that(lambda: all(len(two.found[each]) >= len(sent[each]) for each in sent))
    assert two.found == sent
    assert (two.ended, two.back) == ([], [])


def test_what_is_said_while_there_is_no_connection_arrives_after_it(two: Two) -> None:
    two.proxy.is_broken = True
    two.proxy.cut()
    two.await_that(lambda: all(each.flush() < 1 for each in two.links))
    two.links[0].send(7, Channel.CONTROL, b"from 0")
    two.links[1].send(0, Channel.CONTROL, b"from 7")
    two.proxy.is_broken = False
    two.await_that(lambda: two.found == {0: [b"from 7"], 7: [b"from 0"]})
    assert two.ended == []


@pytest.mark.parametrize("dead", [0, 7], ids=["who-was-connected-to", "who-had-connected"])
def test_the_end_of_a_rank_is_told_soon_by_its_port(two: Two, dead: int, tmp_path: Path) -> None:
    gone = two.links[dead == 7]
    left = two.links[dead != 7]
    gone.send(left.rank, Channel.CONTROL, b"last words")
    two.turn()
    gone.close()
    if dead == 0:
        two.proxy.close()  # the proxy has rank 0's port
    two.await_that(lambda: two.ended != [], only=left.rank)
    assert [peer for peer, _ in two.ended] == [dead]
    assert two.found[left.rank] == [b"last words"]
    assert left.send(dead, Channel.CONTROL, b"nobody hears this") == 0


def test_a_peer_that_is_not_reached_is_lost_after_some_patience_and_may_be_back(two: Two) -> None:
    old, _ = two.links
    listener = socket.create_server(("127.0.0.1", 0))  # a program that takes connections and sends nothing
    target, two.proxy.target = two.proxy.target, listener.getsockname()
    for each in two.links:
        each.patience_s = 1.0
    two.proxy.cut()
    two.await_that(lambda: len(two.ended) == 2)
    assert all("has not been reached since" in how for _, how in two.ended)
    two.proxy.target = target
    two.proxy.cut()
    two.await_that(lambda: sorted(two.back) == [0, 7])
    old.send(7, Channel.CONTROL, b"you are thought dead")
    two.await_that(lambda: two.found[7] == [b"you are thought dead"])
    assert len(two.ended) == 2
    listener.close()


def test_who_has_got_hold_of_the_port_learns_no_secret(two: Two) -> None:
    """Another user of the host may take over the port after a rank has ended."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    two.proxy.target = listener.getsockname()
    two.proxy.cut()
    callers: list[socket.socket] = []
    said = b""

    def has_heard() -> bool:
        nonlocal said
        with contextlib.suppress(BlockingIOError):
            callers.append(listener.accept()[0])
            callers[-1].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            said = callers[-1].recv(1000) if callers else b""
        return said != b""

    two.await_that(has_heard)
    callers[-1].send(bytes(mending.ANSWER.size))
    for each in callers:
        each.close()
    assert len(said) == mending.HELLO.size
    assert SECRET not in said
    listener.close()
    two.await_that(lambda: two.ended != [], only=7)


def strangers_hello(secret: bytes, rank: int, peer: int, received: int) -> bytes:
    return mending.hello(secret, rank, peer, bytes(mending.NONCE_BYTES), received)


@pytest.mark.parametrize(
    "said",
    [
        strangers_hello(bytes(SECRET_BYTES), 7, 0, 0),
        strangers_hello(SECRET, 7, 0, 5),  # claims more than was ever sent
        strangers_hello(SECRET, 8, 0, 0),  # no rank has this number
        strangers_hello(SECRET, 7, 3, 0),  # a hello to another rank
    ],
    ids=["secret", "received", "rank", "peer"],
)
def test_nobody_else_takes_over_a_link(two: Two, said: bytes) -> None:
    place = two.links[0].place
    assert place is not None
    with socket.create_connection((place.address, place.port)) as stranger:
        stranger.sendall(said)
        stranger.setblocking(False)

        def is_sent_away() -> bool:
            try:
                return stranger.recv(100) == b""
            except BlockingIOError:
                return False

        two.await_that(is_sent_away)
    two.links[0].send(7, Channel.CONTROL, b"to the first")
    two.await_that(lambda: two.found[7] == [b"to the first"])
    assert two.proxy.carried == 1
