"""A service is recognised as running whatever the clocks of its host and of the reader show."""

import fcntl
import time
from pathlib import Path

import pytest

from mallob_py.service.telemetry import status as status_module
from mallob_py.service.telemetry.status import ServiceStatus, StatusWatch, read_live_status, write_status

HOURS_S = 9 * 3600.0


def write(folder: Path, time_s: float) -> None:
    write_status(folder, ServiceStatus(time_s, ranks=1, pes=1, busy=0))


@pytest.mark.parametrize("ahead_s", [HOURS_S, -HOURS_S])
def test_a_service_whose_clock_differs_runs_if_its_status_changes(
    ahead_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.0").mkdir()
    write(tmp_path, time.time() + ahead_s)
    assert read_live_status(tmp_path) is None  # no service holds the folder's lock
    with open(tmp_path / "jobs.0/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        monkeypatch.setattr(status_module, "_WATCHED_S", 0.0)
        assert read_live_status(tmp_path) is None  # the status does not change: the service hangs
        monkeypatch.setattr(status_module, "_WATCHED_S", 60.0)
        monkeypatch.setattr(time, "sleep", lambda s: write(tmp_path, time.time() + ahead_s + 1.0))
        assert (live := read_live_status(tmp_path)) is not None
        assert live.age_s() < 60.0


@pytest.mark.parametrize("ahead_s", [HOURS_S, -HOURS_S])
def test_who_looks_again_and_again_goes_by_changes(ahead_s: float, tmp_path: Path) -> None:
    watch = StatusWatch(tmp_path)
    assert watch.read() is None
    write(tmp_path, ahead_s + time.time())
    assert (first := watch.read()) is not None
    assert first.is_stale() == (ahead_s < 0)
    write(tmp_path, ahead_s + time.time() + 1.0)
    assert (second := watch.read()) is not None
    assert not second.is_stale()
    assert second.age_s() < 60.0
