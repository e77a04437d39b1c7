"""Shared objects cross to each host once, and are kept as long as a call may need them."""

import os
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from mallob_py.api.calls.book import Group
from mallob_py.api.calls.shelf import Shelf
from mallob_py.kit.calls import sharing
from mallob_py.kit.calls.messages import Fetch, Found, Kept, Release
from mallob_py.kit.calls.sharing import Region

HERE = socket.gethostname()


class Worker:
    """A worker that only records the messages it gets."""

    def __init__(self, host: str = "far", pid: int = 1) -> None:
        self.host, self.pid = host, pid
        self.got: list[Any] = []

    def send(self, message: Any, buffers: Sequence[Any] = ()) -> None:
        self.got.append((message, *buffers))

    def takes(self) -> Any:
        """Return the messages that came since the last call."""
        got, self.got = self.got, []
        return got


def shelf(*, is_others: bool = False) -> Shelf:
    one = Shelf(is_others=is_others)
    sharing.regions["m"] = REGION
    one.add("m", REGION)
    return one


REGION = Region(memoryview(b"bytes"))
BYTES = (Found("m"), REGION.memory)
NOTHING = (Found("m"),)


def test_workers_of_the_executors_host_open_the_executors_descriptor() -> None:
    one, worker = shelf(), Worker(HERE)
    one.hear(worker, Fetch("m", False))
    assert worker.takes() == [(Found("m", os.getpid(), -1),)]
    one.hear(worker, Fetch("m", True))
    assert worker.takes() == [BYTES]


def test_one_worker_of_another_host_gets_the_bytes_and_the_others_wait_for_it() -> None:
    one, first, second, other_host = shelf(), Worker(pid=7), Worker(), Worker("farther")
    for worker in (first, second, other_host):
        one.hear(worker, Fetch("m", False))
    assert [first.takes(), second.takes(), other_host.takes()] == [[BYTES], [], [BYTES]]
    one.hear(first, Kept("m", 42))
    assert second.takes() == [(Found("m", 7, 42),)]
    third = Worker()
    one.hear(third, Fetch("m", False))
    assert third.takes() == [(Found("m", 7, 42),)]


def test_the_next_worker_gets_the_bytes_if_the_first_one_is_lost() -> None:
    one, first, second, third = shelf(), Worker(), Worker(), Worker()
    for worker in (first, second, third):
        one.hear(worker, Fetch("m", False))
    one.lost(third)
    one.lost(first)
    assert [second.takes(), third.takes()] == [[BYTES], []]


def test_workers_of_another_user_open_nothing_of_the_executors() -> None:
    one, first, second = shelf(is_others=True), Worker(HERE, 7), Worker(HERE)
    one.hear(first, Fetch("m", False))
    one.hear(first, Kept("m", 42))
    one.hear(second, Fetch("m", False))
    assert [first.takes(), second.takes()] == [[BYTES], [(Found("m", 7, 42),)]]


def test_a_dropped_object_is_kept_until_the_calls_of_that_time_are_done() -> None:
    one, holder, late = shelf(), Worker(), Worker()
    one.hear(holder, Fetch("m", False))
    one.hear(holder, Kept("m", 42))
    group = Group(None, 1)
    one.drop("m", [group])
    one.turn()
    one.hear(late, Fetch("m", False))
    assert late.takes() == [(Found("m", 1, 42),)]
    group.left = 0
    one.turn()
    assert holder.takes() == [BYTES, (Release("m"),)]
    assert "m" not in sharing.regions
    one.hear(late, Kept("m", 43))
    one.hear(late, Fetch("m", False))
    assert late.takes() == [(Release("m"),), NOTHING]


@pytest.mark.parametrize("mark", ["m", "unknown"])
def test_who_asks_for_what_is_not_there_is_told(mark: str) -> None:
    one, first, waiting = shelf(), Worker(), Worker()
    one.hear(first, Fetch("m", False))
    one.hear(waiting, Fetch(mark, False))
    one.clear()
    assert waiting.takes() == [(Found(mark),)]
