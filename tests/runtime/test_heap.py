"""After large messages, a rank gives memory of its heap back; it does so seldom, and only if it is idle."""

import ctypes
import os
import random
import subprocess
import sys
from typing import Any

import pytest

from mallob_py.runtime.heap import CHeap, HeapKeeper, c_heap
from mallob_py.runtime.memory_watch import RankMemory
from mallob_py.runtime.processes import python
from mallob_py.runtime.workers.starved import MemoryKills

MB = 1 << 20


class NoWorkers:
    def grown_memory(self) -> list[Any]:
        return []

    def jobs(self) -> set[int]:
        return set()


class NoTransfer:
    def keep_only(self, jobs: set[int]) -> None:
        pass


def rank_with_a_heap(heap: CHeap | None) -> RankMemory:
    return RankMemory(
        NoWorkers(), NoTransfer(), HeapKeeper(heap), lambda slot, stimulus: None, set, MemoryKills(int)
    )


def resident_bytes() -> int:
    """Return the resident memory that no other process maps."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) << 10


def carry_large_messages(rng: random.Random) -> list[bytes]:
    """Allocate large messages; return some of them, which lie at the heap's end, so that the end cannot be
    cut off.
    """
    kept = []
    for _ in range(3):
        large = [b"x" * (MB + rng.randrange(MB // 4)) for _ in range(150)]
        kept.append(large[-1])
    return kept


def give_large_messages_back() -> None:
    rank = rank_with_a_heap(c_heap())
    rank.look(0.0)
    rank.look(100.0)
    before_bytes = resident_bytes()
    kept = carry_large_messages(random.Random(1))
    left_bytes = resident_bytes() - before_bytes
    assert left_bytes > 50 * MB, "without this the test tells nothing"
    rank.look(200.0)
    assert resident_bytes() - before_bytes < 20 * MB
    kept = carry_large_messages(random.Random(2))
    assert resident_bytes() - before_bytes > 50 * MB, "without this the test tells nothing"
    rank.look(300.0)
    assert resident_bytes() - before_bytes < 20 * MB, "where it has been trimmed before, too"
    assert kept


@pytest.mark.skipif(c_heap() is None, reason="another C library")
def test_what_large_messages_have_left_goes_back_when_the_rank_is_idle() -> None:
    # In a process of its own, whose heap has no holes that other tests have left.
    code = "import test_heap; test_heap.give_large_messages_back()"
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*python(), "-c", code], capture_output=True, text=True, env=os.environ | path)
    assert done.returncode == 0, done.stderr


class CountedHeap:
    """A heap with the unused memory that a test sets, of which Python keeps some."""

    def __init__(self, kept_bytes: int = 20 * MB) -> None:
        self.unused_bytes = self.kept_bytes = kept_bytes
        self.trims = 0

    def keeper(self) -> HeapKeeper:
        return HeapKeeper(CHeap(lambda: self.unused_bytes, self._trim))

    def _trim(self) -> None:
        self.trims += 1
        self.unused_bytes = self.kept_bytes


def test_a_busy_rank_keeps_its_heap() -> None:
    heap = CountedHeap()
    keeper = heap.keeper()
    keeper.look(0.0, 0.0)
    heap.unused_bytes = 300 * MB
    keeper.look(10.0, 9.0)
    assert heap.trims == 0
    keeper.look(20.0, 10.0)
    assert heap.trims == 1


def test_what_is_not_worth_it_or_not_to_be_had_is_not_asked_for_again_and_again() -> None:
    heap = CountedHeap()
    keeper = heap.keeper()
    heap.unused_bytes += 1 * MB
    for second in range(100):
        keeper.look(second, 0.0)
    assert heap.trims == 0
    heap.unused_bytes = heap.kept_bytes = 90 * MB
    for second in range(100, 200):
        keeper.look(second, 0.0)
    assert heap.trims == 1


def test_what_python_has_given_back_itself_may_come_once_more() -> None:
    heap = CountedHeap(kept_bytes=90 * MB)
    keeper = heap.keeper()
    heap.unused_bytes = heap.kept_bytes = 20 * MB
    keeper.look(0.0, 0.0)
    keeper.look(10.0, 0.0)
    heap.unused_bytes = 60 * MB
    keeper.look(20.0, 0.0)
    assert heap.trims == 1


def test_a_heap_is_trimmed_seldom() -> None:
    heap = CountedHeap()
    keeper = heap.keeper()
    for second in range(60):
        heap.unused_bytes += 100 * MB
        keeper.look(second, 0.0)
    assert heap.trims == 6


def test_with_another_c_library_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert c_heap() is None
    rank = rank_with_a_heap(None)
    rank.look(0.0)
    rank.look(1.0)


def test_glibc_before_2_33_is_asked_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    if c_heap() is None:
        pytest.skip("another C library")
    library = ctypes.CDLL(None)

    class Old:
        malloc_trim, mallinfo = library.malloc_trim, library.mallinfo

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Old())
    old = c_heap()
    assert old is not None
    assert old.unused_bytes() < 1 << 32
    old.trim()
