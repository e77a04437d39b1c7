"""Descriptions between hosts under faults: descriptions arrive whole, whatever fails and however messages
cross.
"""

import errno
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transfer_net import PER_HOST, Network

from mallob_py.protocol.host_health import Fault
from mallob_py.runtime.world.envelope import WireError
from mallob_py.runtime.world.transfer import CHUNK_BYTES, WINDOW

RANKS = 8
JOB = 1


class Disk:
    """Stand-ins for the calls of `os` that reserve and write files; the next `refusals` calls fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusals = 0
        self._monkeypatch = monkeypatch
        for name in ("pwrite", "posix_fallocate"):
            self._guard(name)

    def _guard(self, name: str) -> None:
        real = getattr(os, name)

        def guarded(*arguments: object) -> object:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)

        self._monkeypatch.setattr(os, name, guarded)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 12 * CHUNK_BYTES), steps=st.integers(0, 200))
def test_what_arrives_is_whole_after_failures_at_any_moment_and_in_any_order(
    seed: int, size: int, steps: int
) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(size)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch)
        network = Network(RANKS, Path(folder))
        size = network.put(0, JOB, data)

        def fetch(rank: int) -> None:
            network.ranks[rank].fetch(JOB, size, (rng.randrange(RANKS), 0))

        for _ in range(steps):
            deed = rng.random()
            if deed < 0.2:
                fetch(rng.randrange(2, RANKS))
            elif deed < 0.3:
                disk.refusals += 1
            elif deed < 0.33:
                keeper = rng.randrange(2, RANKS, PER_HOST)
                network.ranks[keeper].keep_only(set())
                network.ranks[keeper].drop_unused(1)
            else:
                network.deliver_one(rng)
        disk.refusals = 0
        network.deliver_all(seed)
        network.here.clear()
        network.failed.clear()
        for rank in range(RANKS):
            fetch(rank)
        network.deliver_all(seed)
        for each in network.ranks:  # a rank may have waited for room
            each.keep_only({JOB})
        network.deliver_all(seed)
        assert network.failed == []
        assert {rank for rank, _ in network.here} == set(range(RANKS))
        for rank in range(RANKS):
            assert network.ranks[rank].path_of(JOB).read_bytes() == data, f"rank {rank} has something else"
        for each in network.ranks:
            each.forget(JOB)
        network.deliver_all(seed)
        assert network.files() == []
        network.close()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    network = Network(RANKS, tmp_path)
    yield network
    network.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_host_without_room_says_so_before_anything_is_sent(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = network.put(0, JOB, bytes(3 * CHUNK_BYTES))
    Disk(monkeypatch).refusals = 6
    before = descriptors()
    network.ranks[4].fetch(JOB, size, (0, 0))
    for _ in range(5):
        assert network.failed == []
        network.ranks[4].keep_only({JOB})
    assert [(rank, fault) for (rank, _, _), fault in zip(network.failed, network.faults, strict=True)] == [
        (4, Fault.HOST)
    ]
    assert "No space left" in network.failed[0][2]
    assert network.sent == []
    assert network.files() == ["0/1"]
    assert descriptors() == before


def test_a_description_that_nobody_can_send_is_a_failure_that_is_told(network: Network) -> None:
    network.ranks[5].fetch(JOB, 7, (2, 0))
    network.deliver_all()
    ((rank, _, reason),) = network.failed
    assert rank == 5
    assert network.faults == [Fault.NOBODY]
    assert "rank 2: No such file" in reason
    assert "rank 0: No such file" in reason
    network.put(0, JOB, b"is here")
    network.ranks[5].fetch(JOB, 7, (2, 0))
    network.deliver_all()
    assert network.here == [(5, JOB)]


def test_a_file_of_another_size_is_not_taken_for_the_description(network: Network) -> None:
    network.put(0, JOB, b"short")
    network.ranks[4].fetch(JOB, 7, (0,))
    network.deliver_all()
    assert "rank 0 has 5 bytes, not 7" in network.failed[0][2]
    assert network.here == []


def test_a_sender_whose_chunks_are_refused_stops_and_closes_its_file(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = network.put(0, JOB, bytes(20 * CHUNK_BYTES))
    before = descriptors()
    network.ranks[4].fetch(JOB, size, (0,))
    rng = random.Random(0)
    while not any(isinstance(message, bytes) for _, _, message in network.sent):
        network.deliver_one(rng)
    Disk(monkeypatch).refusals = 1
    network.deliver_all()
    assert sum(isinstance(message, bytes) for _, _, message in network.sent) == WINDOW
    assert descriptors() == before


@pytest.mark.parametrize(("offset", "size"), [(1, 8), (0, 9), (0, 0), (8, 8), (-1, 8)])
def test_bytes_at_another_place_than_the_next_fail_the_transfer(
    offset: int, size: int, network: Network
) -> None:
    network.ranks[4].fetch(JOB, 8, (0,))
    (wanted,) = [message for _, _, message in network.sent]
    header = msgspec.msgpack.encode([JOB, wanted.number, offset])
    network.ranks[4].receive_chunk(0, len(header).to_bytes(2, "little") + header + bytes(size))
    assert "rank 0 sent" in network.failed[0][2]
    assert not network.ranks[4].path_of(JOB).exists()


@pytest.mark.parametrize("data", [b"", b"\x05", b"\x01\x00\xc1", b"\xff\xff", b"\x03\x00\x93\xa1x\x01"])
def test_what_is_no_chunk_is_an_error_of_the_sender(data: bytes, network: Network) -> None:
    with pytest.raises(WireError):
        network.ranks[4].receive_chunk(0, data)
