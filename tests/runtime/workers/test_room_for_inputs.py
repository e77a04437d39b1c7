"""If other programs have filled the shared memory, an input waits for room, up to a time limit."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mallob_py.kit import InputError
from mallob_py.runtime.workers import process

MB = 1 << 20


class Shm:
    """Shared memory of 100 MB that other programs fill for `full_s`, and a clock."""

    def __init__(self, full_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full_s = full_s
        self.now_s = 0.0
        monkeypatch.setattr(process, "time", SimpleNamespace(sleep=self._sleep, monotonic=lambda: self.now_s))
        monkeypatch.setattr(process, "_create", self._create)
        monkeypatch.setattr(os, "statvfs", self._statvfs)

    def _sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def _statvfs(self, path: str) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=MB, f_blocks=100, f_bavail=0 if self.now_s < self.full_s else 50)

    def _create(self, name: str, flags: int) -> int:
        return os.open("/dev/full" if self.now_s < self.full_s else name, flags & ~os.O_EXCL, 0o600)


def test_an_input_waits_for_room_in_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shm = Shm(7.0, monkeypatch)
    process.write_description(str(tmp_path / "1"), [b"some", memoryview(b"thing")], 9)
    assert (tmp_path / "1").read_bytes() == b"something"
    assert 7.0 <= shm.now_s < 20.0


@pytest.mark.parametrize(("size", "waits"), [(9, True), (200 * MB, False)])
def test_an_input_that_gets_no_room_is_refused(
    size: int, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shm = Shm(1e9, monkeypatch)
    with pytest.raises(InputError, match=r"no room for the job's .* in shared memory: .*No space left"):
        process.write_description(str(tmp_path / "1"), [b"something"], size)
    assert (shm.now_s > 30.0) == waits
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_shared_memory_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shm = Shm(0.0, monkeypatch)

    def fail(name: str, flags: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(process, "_create", fail)
    with pytest.raises(InputError, match="Input/output error"):
        process.write_description(str(tmp_path / "1"), [b"x"], 1)
    assert shm.now_s == 0.0
