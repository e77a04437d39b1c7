"""Detection of silent ranks: silence counts only while the watching rank itself runs."""

import errno
import math
import os
from pathlib import Path

import pytest

from mallob_py.launchers import EXIT_FILE_VARIABLE
from mallob_py.runtime.world.exit_file import ExitFile, Said
from mallob_py.runtime.world.failure_detector import Ring, Watch
from mallob_py.runtime.world.mpi import RUNNING

MEMBERS = (0, 1, 2)


def no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def first_alarm_s(watch: Watch, looks_s: list[float]) -> float:
    return next((look_s for look_s in looks_s if watch.is_silent(look_s)), math.inf)


def test_who_is_silent_for_too_long_is_noticed() -> None:
    assert first_alarm_s(Watch(10.0), [float(second) for second in range(100)]) == 11.0


def test_who_is_heard_now_and_then_is_never_silent() -> None:
    watch = Watch(10.0)
    for second in range(100):
        if second % 9 == 0:
            watch.heard()
        assert not watch.is_silent(float(second))


@pytest.mark.parametrize("asleep_s", [20.0, 1e6])
def test_a_watcher_that_has_slept_itself_accuses_nobody(asleep_s: float) -> None:
    watch = Watch(10.0)
    looks_s = [0.0, 1.0, 2.0, 2.0 + asleep_s, 3.0 + asleep_s]
    assert first_alarm_s(watch, looks_s) == math.inf
    watch.heard()
    assert first_alarm_s(watch, [4.0 + asleep_s + second for second in range(20)]) == 14.0 + asleep_s


def test_a_clock_that_is_set_back_does_no_harm() -> None:
    assert first_alarm_s(Watch(10.0), [100.0, 101.0, 50.0, 51.0, 52.0]) == math.inf


def test_without_a_timeout_nobody_is_silent() -> None:
    assert first_alarm_s(Watch(None), [float(second) for second in range(1000)]) == math.inf


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_each_rank_is_watched_by_the_one_that_it_sends_beats_to(size: int) -> None:
    rings = [Ring(rank, range(size)) for rank in range(size)]
    for rank, ring in enumerate(rings):
        assert rings[ring.next_rank].watched_rank == rank


def test_a_rank_alone_watches_nobody() -> None:
    ring = Ring(0, (0,), 3.0)
    assert not any(ring.beat(float(second)) for second in range(20))


def test_a_rank_that_does_not_beat_is_noticed() -> None:
    ring = Ring(2, MEMBERS, 5.0)
    assert [second for second in range(8) if 1 in ring.beat(float(second))] == [6, 7]
    assert ring.watched_rank == 1
    ring.heard({0, 1})
    assert not ring.beat(8.0)


def found_out_s(ranks: int, hung: set[int], timeout_s: float, until_s: int = 200) -> dict[int, int]:
    """Return when each rank that hangs from the start is detected; detected ranks are excluded at once."""
    rings = {rank: Ring(rank, range(ranks), timeout_s) for rank in range(ranks) if rank not in hung}
    heard: dict[int, set[int]] = {rank: set() for rank in rings}
    found: dict[int, int] = {}
    for second in range(until_s):
        for rank, ring in rings.items():
            ring.heard(heard[rank])
            heard[rank] = set()
            silent = ring.beat(float(second))
            assert set(silent) <= hung
            found |= {each: second for each in silent if each not in found}
            for other in rings.values():
                for each in silent:
                    other.leave_out(each)
        for rank, ring in rings.items():
            if ring.next_rank in rings:
                heard[ring.next_rank].add(rank)
            heard[rank] |= ring.sought & rings.keys()
    return found


@pytest.mark.parametrize("hung", [{3, 4, 5}, {0, 1, 2}, {0, 6, 7}, {1, 4, 5, 7}, {0, 1, 2, 3, 5, 6, 7}])
def test_several_that_hang_are_found_out_in_little_more_time_than_one(hung: set[int]) -> None:
    timeout_s = 30.0
    (alone_s,) = found_out_s(8, {3}, timeout_s).values()
    found = found_out_s(8, hung, timeout_s)
    assert found.keys() == hung
    assert max(found.values()) <= alone_s + 4


def test_a_whole_host_that_hangs_is_found_out_in_little_more_time_than_one_rank() -> None:
    assert max(found_out_s(200, set(range(64, 128)), 30.0).values()) <= 40


def test_who_is_behind_one_that_hangs_and_lives_is_never_accused_and_not_asked_for_ever() -> None:
    ring = Ring(3, range(4), 10.0)
    asked = []
    for second in range(60):
        # Rank 2 is silent for six of every ten seconds.
        ring.heard({0, 1, *({2} if second % 10 >= 6 else ())})
        assert not ring.beat(float(second))
        asked.append(set(ring.sought))
    assert {0, 1} in asked
    assert [each for second, each in enumerate(asked) if second % 10 >= 7] == [set()] * 18


def test_the_first_beat_of_rank_0_tells_the_launching_process_that_the_world_has_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "exit-code"
    monkeypatch.setenv(EXIT_FILE_VARIABLE, str(file))
    ring = Ring(0, MEMBERS)
    assert not file.exists()
    ring.beat(0.0)
    assert file.read_bytes() == RUNNING
    before_ns = file.stat().st_mtime_ns
    while file.stat().st_mtime_ns == before_ns:
        ring.beat(1.0)


def test_the_first_rank_that_beats_tells_the_launching_process_that_the_world_has_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "exit-code"
    monkeypatch.setenv(EXIT_FILE_VARIABLE, str(file))
    first, last = Ring(0, MEMBERS), Ring(2, MEMBERS)
    last.beat(0.0)  # rank 0 may be lost before its first beat
    assert file.read_bytes() == RUNNING
    file.write_bytes(b"0\n")
    before_ns = file.stat().st_mtime_ns
    while file.stat().st_mtime_ns == before_ns:
        first.beat(1.0)
    assert file.read_bytes() == b"0\n"


def test_a_rank_shows_that_it_lives_though_the_disk_of_the_file_is_full_and_later_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ExitFile(tmp_path, 10.0)
    monkeypatch.setenv(EXIT_FILE_VARIABLE, file.environment[EXIT_FILE_VARIABLE])
    ring = Ring(0, MEMBERS)
    with monkeypatch.context() as full:
        for write in ("write", "pwrite"):
            full.setattr(os, write, no_room)
        for second in range(60):
            ring.beat(float(second))
            assert not file.is_silent(float(second))
    ring.beat(60.0)
    assert file.said() == Said(None, True)


def test_a_launching_process_on_another_host_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXIT_FILE_VARIABLE, "/does/not/exist/exit-code")
    assert not Ring(0, MEMBERS).beat(0.0)
    assert not Ring(1, MEMBERS).beat(0.0)
