"""Doorbells between hosts, to which any program can send datagrams."""

import socket
from collections.abc import Iterator

import pytest

from mallob_py.runtime.world.doorbell import Bell, Doorbell

SECRET = bytes(range(16))


def udp_socket() -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("127.0.0.1", 0))
    opened.setblocking(False)
    return opened


@pytest.fixture
def bells() -> Iterator[list[Doorbell]]:
    """Yield the doorbells of two ranks on two hosts."""
    sockets = [udp_socket(), udp_socket()]
    places = [Bell(host, 0, b"", *each.getsockname()) for host, each in enumerate(sockets)]
    made = [Doorbell(rank, places, SECRET, None, each) for rank, each in enumerate(sockets)]
    yield made
    for bell in made:
        bell.close()


def place_of(bell: Doorbell) -> tuple[str, int]:
    """Return a doorbell's address, which every user can find out by `ss` or a port scan."""
    with socket.fromfd(bell.fileno(), socket.AF_INET, socket.SOCK_DGRAM) as same:
        host, port = same.getsockname()
        return host, port


def test_a_ring_is_told_from_what_strangers_send(bells: list[Doorbell]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"!", SECRET[:-1], SECRET + b"!", bytes(1000)):
            stranger.sendto(data, place_of(bells[1]))
    assert not bells[1].drain()
    bells[0].ring(1)
    assert bells[1].drain()
    assert not bells[1].drain()


def test_a_flood_does_not_keep_the_rank(bells: list[Doorbell]) -> None:
    """For each datagram that the rank receives, a stranger sends another one."""

    class Flooded(socket.socket):
        taken = 0

        def recv(self, size: int, flags: int = 0) -> bytes:
            assert Flooded.taken < 10_000, "the rank never gets away from its doorbell"
            Flooded.taken += 1
            return b"!"

    with Flooded(socket.AF_INET, socket.SOCK_DGRAM) as flooded:
        bell = Doorbell(0, [Bell(0, 0, b"", "127.0.0.1", 1)], SECRET, None, flooded)
        assert not bell.drain()
