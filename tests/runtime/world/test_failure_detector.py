"""Watching others: silence is counted in the watcher's own waking time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mallob_py.runtime.world.failure_detector import Ring, Watch
from mallob_py.runtime.world.mpi import EXIT_FILE_VARIABLE, RUNNING

NAMES = {0: "process 1 on a", 1: "process 2 on a", 2: "process 3 on b"}


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
    rings = [Ring(rank, dict.fromkeys(range(size), "process")) for rank in range(size)]
    for rank, ring in enumerate(rings):
        assert rings[ring.next_rank].watched_rank == rank


def test_a_rank_alone_watches_nobody() -> None:
    ring = Ring(0, {0: "process 1 on a"}, 3.0)
    assert not any(ring.beat(float(second)) for second in range(20))


def test_a_rank_that_does_not_beat_is_noticed_and_named() -> None:
    ring = Ring(2, NAMES, 5.0)
    assert [second for second in range(8) if ring.beat(float(second))] == [6, 7]
    assert ring.describe(ring.watched_rank) == "rank 1 (process 2 on a)"
    ring.heard()
    assert not ring.beat(8.0)


def test_the_first_beat_of_rank_0_tells_the_launching_process_that_the_world_has_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "exit-code"
    monkeypatch.setenv(EXIT_FILE_VARIABLE, str(file))
    ring = Ring(0, NAMES)
    assert not file.exists()
    ring.beat(0.0)
    assert file.read_bytes() == RUNNING
    before_ns = file.stat().st_mtime_ns
    while file.stat().st_mtime_ns == before_ns:
        ring.beat(1.0)


def test_any_rank_that_lives_tells_the_launching_process_so_once_the_world_has_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "exit-code"
    monkeypatch.setenv(EXIT_FILE_VARIABLE, str(file))
    first, last = Ring(0, NAMES), Ring(2, NAMES)
    last.beat(0.0)
    assert not file.exists()
    first.beat(0.0)
    before_ns = file.stat().st_mtime_ns
    while file.stat().st_mtime_ns == before_ns:
        last.beat(1.0)
    assert file.read_bytes() == RUNNING


def test_a_launching_process_on_another_host_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXIT_FILE_VARIABLE, "/does/not/exist/exit-code")
    assert not Ring(0, NAMES).beat(0.0)
    assert not Ring(1, NAMES).beat(0.0)
