"""Foreign entries in the scheduler's folder stay there, and do not delay the scheduler."""

import builtins
import errno
import itertools
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NoReturn

import pytest
from foreign_files import Kind, found, put, put_all
from waiting import poll_until

from mallob_py.batch.job import Kind as JobKind
from mallob_py.batch.live import folder
from mallob_py.batch.live.folder import Clock, Folder, FolderError, JobFolder, Submitted, _has
from mallob_py.batch.live.launch import TOKEN
from mallob_py.batch.live.script import Wishes
from mallob_py.malleable.sockets import listen

_NO_NAMES = ("0", "07", "-1", "1e3", "٣", "²", "7.bak", ".git", ".x", ".07", "9" * 19)


def _submitted(number: int) -> Submitted:
    return Submitted(number, 0.0, Wishes("a", JobKind.RIGID, 1.0, 1, 1, 1), "/", {})


def _open(path: Path) -> Folder:
    folder = Folder(path)
    folder.open()
    return folder


def _close(folder: Folder) -> None:
    os.close(folder._lock)


@pytest.mark.parametrize("place", ["pidfd_open", "open"])
def test_want_of_descriptors_does_not_say_that_no_process_of_a_job_is_left(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    job = JobFolder(tmp_path / "7")
    left = subprocess.Popen(["sleep", "1000"], env={TOKEN: job.token})
    try:
        poll_until(lambda: _has(left.pid, f"{TOKEN}={job.token}".encode()))
        with monkeypatch.context() as patch:
            patch.setattr(os if place == "pidfd_open" else builtins, place, fail)
            with pytest.raises(OSError, match="Too many open files"):
                job.kill_leftovers()
        assert left.poll() is None
        job.kill_leftovers()
    finally:
        left.kill()
        assert left.wait() == -signal.SIGKILL


def test_a_killed_process_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(0.0, 2.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    monkeypatch.setattr(folder, "_processes_with", lambda needle: [12] if next(times) < 100 else [])
    monkeypatch.setattr(folder, "_kill", lambda pid, needle: True)
    monkeypatch.setattr(folder, "_await_end", lambda pid: None)
    with pytest.raises(FolderError, match="process 12 does not end, though it was killed"):
        JobFolder(tmp_path / "7").kill_leftovers()


def test_what_is_no_job_stays_and_prevents_no_start(tmp_path: Path) -> None:
    top = tmp_path / "batch"
    for part in (top, top / "jobs", top / "ended"):
        put_all(part, tmp_path / "elsewhere")
        for name in _NO_NAMES:
            put(part / name, Kind.FOLDER, tmp_path)
        for number, kind in enumerate(Kind, 3):
            put(part / str(number), kind, tmp_path / "elsewhere")
            put(part / f".{number + len(Kind)}", kind, tmp_path / "elsewhere")
        (part / ".40").mkdir()
        put(part / ".41" / "script", Kind.FILE, tmp_path)
        put(part / ".41" / "my file", Kind.FILE, tmp_path)
        put(part / ".42" / "script", Kind.LINK, tmp_path / "elsewhere")
    before = found(tmp_path)
    folder = _open(top)
    assert folder.jobs() == folder.ended(10) == []
    assert folder.next_number() == 43
    folder.add(_submitted(43), "#!/bin/sh\n")
    assert [job.number for job in folder.jobs()] == [43]
    after = found(tmp_path)
    assert {path: after.get(path) for path in before} == before
    _close(folder)


def test_a_job_that_was_cut_off_while_it_was_submitted_goes(tmp_path: Path) -> None:
    for number, names in enumerate((("script",), ("script", ".job.json.part"), ("script", "job.json")), 1):
        for name in names:
            put(tmp_path / "batch" / "jobs" / f".{number}" / name, Kind.FILE, tmp_path)
    (tmp_path / "batch").chmod(0o700)
    folder = _open(tmp_path / "batch")
    assert os.listdir(tmp_path / "batch" / "jobs") == []
    _close(folder)


def test_jobs_are_told_in_their_order(tmp_path: Path) -> None:
    folder = _open(tmp_path / "batch")
    jobs = {number: folder.add(_submitted(number), "") for number in (9, 100, 20)}
    assert [job.number for job in folder.jobs()] == [9, 20, 100]
    for job in jobs.values():
        job.path.rename(tmp_path / "batch" / "ended" / job.path.name)
    assert [job.number for job in folder.ended(2)] == [20, 100]
    assert folder.next_number() == 101
    _close(folder)


@pytest.mark.parametrize("name", ["", "jobs", "ended", "lock"])
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.FILE, Kind.FOLDER)])
def test_no_link_is_followed_and_nobody_waited_for(kind: Kind, name: str, tmp_path: Path) -> None:
    put(tmp_path / "batch" / name, kind, tmp_path / "elsewhere")
    put(tmp_path / "elsewhere" / ".1" / "script", Kind.FILE, tmp_path)
    before = found(tmp_path / "elsewhere")
    with pytest.raises((FolderError, OSError), match="a link, or no"):
        _open(tmp_path / "batch")
    assert found(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("name", ["clock.json", ".clock.json.part"])
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.FILE])
def test_nothing_is_written_through_a_link(kind: Kind, name: str, tmp_path: Path) -> None:
    folder = _open(tmp_path / "batch")
    put(tmp_path / "batch" / name, kind, tmp_path / "elsewhere")
    before = found(tmp_path)

    def start() -> None:  # begins like a starting scheduler
        folder.clock()
        folder.write_clock(Clock("", 0.0, 0.0))

    with pytest.raises(OSError, match="a link, or no file"):
        start()
    assert found(tmp_path) == before
    _close(folder)


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_no_socket_stays_where_one_is_to_be(kind: Kind, tmp_path: Path) -> None:
    put(tmp_path / "batch" / "scheduler.sock", kind, tmp_path / "elsewhere")
    before = found(tmp_path)
    with pytest.raises(FileExistsError, match="not a socket"):
        listen(str(tmp_path / "batch" / "scheduler.sock"))
    assert found(tmp_path) == before
