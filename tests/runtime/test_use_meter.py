"""A rank's use of its host is measured seldom, and reported in coarse steps."""

import pytest

from mallob_py.runtime import use_meter
from mallob_py.runtime.memory import Room
from mallob_py.runtime.use_meter import PERIOD_S, UseMeter


def test_use_is_read_once_in_a_period_and_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_s = iter((10.0, 10.0 + 1.52 * PERIOD_S, 0.0))
    monkeypatch.setattr(use_meter, "cpu_seconds_of", lambda pid: next(cpu_s))
    monkeypatch.setattr(use_meter, "private_bytes_of", lambda pid: 123_456_789)
    monkeypatch.setattr(use_meter, "rooms", lambda: [Room(987_654, 5_000_000), Room(55_555, 60_000)])
    meter = UseMeter()
    first = meter.look(1.0)
    assert (first.memory_bytes, first.left_bytes, first.total_bytes) == (120_000_000, 56_000, 60_000)
    assert first.cores == 0.0
    assert meter.look(1.0 + PERIOD_S / 2) is first
    assert meter.look(1.0 + PERIOD_S).cores == 1.5
    assert meter.look(1.0 + 2 * PERIOD_S).cores == 0.0, "a killed process takes its time with it"
