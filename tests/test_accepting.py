"""A process without free descriptors rejects callers, and accepts callers again later."""

import asyncio
import os
import select
import socket
from collections.abc import Iterator

import pytest
from resting import no_descriptors

from mallob_py.accepting import Doorkeeper
from mallob_py.async_loop import LoopWatch


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.setblocking(False)
        yield found


def is_readable(listener: socket.socket) -> bool:
    return bool(select.select([listener], [], [], 0)[0])


def test_without_descriptors_a_caller_is_turned_away_and_the_listener_is_not_readable_any_more(
    listener: socket.socket,
) -> None:
    doorkeeper = Doorkeeper()
    callers = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    with no_descriptors(os.getpid()):
        for _ in callers:
            assert doorkeeper.accept(listener) is None
        assert not is_readable(listener)
    for caller in callers:
        assert caller.recv(1) == b""
        caller.close()
    with socket.create_connection(listener.getsockname()):
        connection = doorkeeper.accept(listener)
        assert connection is not None
        connection.close()
    doorkeeper.close()


def test_nobody_waits_is_no_error_and_a_closed_listener_is(listener: socket.socket) -> None:
    doorkeeper = Doorkeeper()
    assert doorkeeper.accept(listener) is None
    listener.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        doorkeeper.accept(listener)
    doorkeeper.close()


def test_turns_of_an_asyncio_loop_are_counted_and_a_lack_of_descriptors_is_told_once() -> None:
    said: list[str] = []
    watch = LoopWatch(said.append)

    async def play() -> None:
        for _ in range(500):
            await asyncio.sleep(0)
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        callers = [socket.create_connection(server.sockets[0].getsockname()) for _ in range(3)]
        with no_descriptors(os.getpid()):
            while not said:
                await asyncio.sleep(0)
        for caller in callers:
            caller.close()
        server.close()

    watch.run(play())
    assert watch.rate.turns >= 500
    assert len(said) == 1
    assert "Too many open files" in said[0]
