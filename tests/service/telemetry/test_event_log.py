"""The event log writes all events in a thread of its own, and its failures never end its rank."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mallob_py.service.telemetry import event_log
from mallob_py.service.telemetry.event_log import EventLog, LogFiles, read_events


def test_events_are_written_with_time_since_start_and_rank(tmp_path: Path) -> None:
    log = EventLog(LogFiles(tmp_path / "new", 3), 3, epoch_start=50.0)
    log.write(51.5, "volume", {"job": 4, "volume": 2})
    log.close()
    (event,) = read_events(tmp_path / "new")
    assert (event.t, event.rank, event.event) == (1.5, 3, "volume")
    assert event.fields == {"job": 4, "volume": 2}


def test_events_of_the_pes_of_a_rank_carry_their_numbers(tmp_path: Path) -> None:
    log = EventLog(LogFiles(tmp_path, 1), 4, epoch_start=0.0)
    log.write(1.0, "start", {})
    log.write(2.0, "busy", {}, 5)
    log.close()
    assert [event.rank for event in read_events(tmp_path)] == [4, 5]


def test_nothing_touches_the_file_before_a_flush_is_due(tmp_path: Path) -> None:
    log = EventLog(LogFiles(tmp_path / "new", 0), 0, 0.0)
    for _ in range(log.taken_max - 1):
        log.write(1.0, "busy", {})
    assert not list(tmp_path.iterdir())
    log.write(1.0, "idle", {})
    assert len(read_events(tmp_path / "new")) == log.taken_max
    log.close()


def test_all_ranks_are_merged_in_order_of_time(tmp_path: Path) -> None:
    for rank in range(3):
        log = EventLog(LogFiles(tmp_path, rank), rank, 0.0)
        log.write(2.0 - rank, "busy", {})
        log.close()
    assert [event.rank for event in read_events(tmp_path)] == [2, 1, 0]


def test_without_a_path_events_are_forgotten() -> None:
    log = EventLog(None, 0, 0.0)
    log.write(1.0, "busy", {})
    log.flush()
    log.close()


def test_a_folder_that_cannot_be_made_is_said_once_and_does_not_stop_the_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    log = EventLog(LogFiles(tmp_path / "file", 0), 0, 0.0)
    log.write(1.0, "busy", {})
    log.close()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_value_that_json_does_not_know_becomes_text(tmp_path: Path) -> None:
    log = EventLog(LogFiles(tmp_path, 0), 0, 0.0)
    log.write(1.0, "stop", {"where": tmp_path, "what": 1j})
    log.close()
    assert read_events(tmp_path)[0].fields["what"] == "1j"


class FullDisk:
    """A stand-in for `os.write` that takes `room` more bytes, then reports a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._write = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, descriptor: int, content: Any) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(descriptor, content[: self.room])
        self.room -= written
        return written


def test_a_full_disk_is_said_once_and_no_event_is_lost_or_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = FullDisk(monkeypatch, room=70)
    log = EventLog(LogFiles(tmp_path, 0), 0, 0.0)
    for t in range(5):
        log.write(float(t), "busy", {})
        log.flush()
    assert capsys.readouterr().err.count("\n") == 1
    disk.room = 10_000
    log.close()
    assert [event.t for event in read_events(tmp_path)] == [0, 1, 2, 3, 4]


def test_events_beyond_the_bound_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_UNWRITTEN_BYTES_MAX", 100)
    disk = FullDisk(monkeypatch, room=0)
    log = EventLog(LogFiles(tmp_path, 0), 0, 0.0)
    for t in range(10):
        log.write(float(t), "busy", {})
        log.flush()
    disk.room = 10_000
    log.flush()
    log.close()
    events = read_events(tmp_path)
    kept = [event for event in events if event.event == "busy"]
    (dropped,) = [event for event in events if event.event == "dropped"]
    assert len(kept) + dropped.fields["events"] == 10
    assert 0 < len(kept) < 10


def test_a_link_in_the_place_of_a_log_is_not_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    files = LogFiles(tmp_path / "logs", 0)
    files.path.parent.mkdir(parents=True)
    files.path.symlink_to(victim)
    log = EventLog(files, 0, 0.0)
    log.write(1.0, "busy", {})
    log.close()
    assert victim.read_text() == "mine"
    assert "link" in capsys.readouterr().err


@pytest.mark.parametrize("is_link", [False, True])
def test_only_logs_of_ones_own_make_room(is_link: bool, tmp_path: Path) -> None:
    """Logs in a linked folder, and linked logs, are never removed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "0.jsonl").write_text("precious" * 100)
    older = tmp_path / "logs" / "2020-01-31T12-00-05.123Z"
    if is_link:
        older.mkdir(parents=True)
        (older / "0.jsonl").symlink_to(elsewhere / "0.jsonl")
    else:
        older.parent.mkdir()
        older.symlink_to(elsewhere)
    own = older.with_name("2020-01-31T12-00-04.000Z")
    own.mkdir()
    (own / "0.jsonl").write_text("old" * 100)
    os.close(LogFiles(tmp_path / "logs" / "2030-01-31T12-00-05.123Z", 0, 100).open())
    assert not own.exists()
    assert (older / "0.jsonl").read_text() == "precious" * 100
    assert older.is_symlink() != is_link
