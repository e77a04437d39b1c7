"""Frames that arrive in any pieces through a socket, and the check of their sender."""

import os
import random
import socket
import threading
from collections.abc import Iterator

import pytest
from seeds import seeds

from mallob_py.kit.calls import wire


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@pytest.mark.parametrize("seed", seeds(8))
def test_frames_come_whole_in_whatever_pieces(seed: int, pair: tuple[socket.socket, socket.socket]) -> None:
    draw = random.Random(seed)
    sent = [
        (
            os.urandom(draw.randrange(50)),
            [os.urandom(draw.choice((0, 3, 9000, 200_000))) for _ in range(draw.randrange(4))],
        )
        for _ in range(20)
    ]
    stream = b"".join(b"".join(wire.frame_parts(*each)) for each in sent)
    sender, receiver = pair
    reader, got = wire.FrameReader(receiver), []
    while stream:
        size = draw.choice((1, 7, 1000, 100_000))
        sender.setblocking(False)
        count = sender.send(stream[:size])
        stream = stream[count:]
        got += reader.read()
    assert [(each.head, list(map(bytes, each.buffers))) for each in got] == sent
    sender.close()
    with pytest.raises(wire.PeerGone):
        reader.read()


def test_who_cannot_send_at_once_sends_later(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    sender.setblocking(False)
    writer, reader = wire.FrameWriter(sender), wire.FrameReader(receiver)
    data = os.urandom(3_000_000)
    writer.put(b"head", [data, b"end"])
    writer.flush()
    assert not writer.is_done
    frames = []
    while not frames:
        frames = reader.read()
        writer.flush()
    assert writer.is_done
    assert [bytes(each) for each in frames[0].buffers] == [data, b"end"]


def shake(pair: tuple[socket.socket, socket.socket], ours: bytes, theirs: bytes) -> tuple[object, object]:
    """Do the handshake with these keys at both ends; return both results."""
    found: list[object] = [None]

    def connect() -> None:
        try:
            wire.prove_and_check(pair[1], theirs, b"worker", b"client")
        except (wire.NotTrusted, wire.PeerGone) as error:
            found[0] = type(error)

    thread = threading.Thread(target=connect)
    thread.start()
    handshake = wire.Handshake(pair[0], ours, b"client", b"worker")
    result: object = None
    try:
        while not handshake.advance():
            pass
    except (wire.NotTrusted, wire.PeerGone) as error:
        result = type(error)
        pair[0].close()
    thread.join()
    return result, found[0]


def test_both_ends_know_the_key(pair: tuple[socket.socket, socket.socket]) -> None:
    assert shake(pair, b"k" * 32, b"k" * 32) == (None, None)


def test_whoever_has_another_key_is_not_trusted_by_either_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert shake(pair, b"k" * 32, b"x" * 32) == (wire.NotTrusted, wire.NotTrusted)


def test_an_answer_sent_back_as_it_came_proves_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    handshake = wire.Handshake(pair[0], b"k" * 32, b"client", b"worker")
    pair[1].sendall(pair[1].recv(32))  # sends back the peer's own number
    assert not handshake.advance()
    pair[1].sendall(pair[1].recv(32))  # sends back the peer's own answer
    with pytest.raises(wire.NotTrusted):
        handshake.advance()
