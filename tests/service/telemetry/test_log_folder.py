"""Logs of many runs in one folder: no log is overwritten, their size is bounded, and the remaining parts can
be read.
"""

import json
import os
from pathlib import Path

import pytest

from mallob_py.service.telemetry.event_log import (
    PARTS,
    EventLog,
    LogFiles,
    parts_of,
    read_events,
    run_name,
    runs_of,
)
from mallob_py.service.telemetry.report import make_report

SIZE_MAX = 10_000


def log_of(folder: Path, start_unix_s: float, rank: int = 0, size_max: int | None = SIZE_MAX) -> EventLog:
    log = EventLog(LogFiles(folder / run_name(start_unix_s), rank, size_max), rank, 0.0)
    log.write(0.0, "start", {"ranks": 2, "pes": 3, "unix_s": start_unix_s})
    return log


def fill(log: EventLog, first: int, last: int) -> None:
    for number in range(first, last):
        log.write(float(number), "ended", {"job": number})
        log.flush()
    log.close()


def jobs(folder: Path) -> list[int]:
    return [event.fields["job"] for event in read_events(folder) if event.event == "ended"]


def sizes(folder: Path, rank: int = 0) -> list[int]:
    return [path.stat().st_size for run in runs_of(folder) for path in run.glob(f"{rank}.*")]


def test_a_run_is_named_by_its_start_and_names_are_in_the_order_of_starts() -> None:
    assert run_name(1769860805.123) == "2026-01-31T12-00-05.123Z"
    starts = [0.0, 0.001, 59.999, 60.0, 86399.5, 86400.0, 1e9]
    assert sorted(map(run_name, starts)) == list(map(run_name, starts))


def test_a_start_leaves_the_logs_of_earlier_runs_as_they_are(tmp_path: Path) -> None:
    fill(log_of(tmp_path, 1.0), 0, 5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    fill(log_of(tmp_path, 2.0), 5, 9)
    assert {path: path.read_bytes() for path in before} == before
    first, second = runs_of(tmp_path)
    assert (jobs(first), jobs(second)) == ([0, 1, 2, 3, 4], [5, 6, 7, 8])
    assert jobs(tmp_path) == [5, 6, 7, 8]


def test_a_second_log_of_the_same_name_does_not_overwrite_the_first(tmp_path: Path) -> None:
    fill(log_of(tmp_path, 1.0), 0, 3)
    fill(log_of(tmp_path, 1.0), 3, 6)
    assert jobs(tmp_path) == list(range(6))


def test_parts_of_a_log_are_read_as_one(tmp_path: Path) -> None:
    fill(log_of(tmp_path, 1.0), 0, 150)
    (run,) = runs_of(tmp_path)
    names = [path.name for path in parts_of(run)]
    assert names == ["0.jsonl", *(f"0.{part}.jsonl" for part in range(1, len(names)))]
    assert len(names) > 3
    assert jobs(tmp_path) == list(range(150))
    report = make_report(read_events(tmp_path))
    assert (report.is_cut, report.begin_s, report.ranks) == (False, 0.0, 2)


def test_without_a_bound_a_log_is_one_file(tmp_path: Path) -> None:
    fill(log_of(tmp_path, 1.0, size_max=None), 0, 1000)
    assert len(sizes(tmp_path)) == 1


@pytest.mark.parametrize("runs", [1, 3, 40])
def test_logs_of_all_runs_together_stay_within_their_size_and_the_oldest_go_first(
    runs: int, tmp_path: Path
) -> None:
    number = 0
    for run in range(runs):
        fill(log_of(tmp_path, float(run)), number, number + 2000 // runs)
        number += 2000 // runs
        line_size_max = 200
        assert sum(sizes(tmp_path)) <= SIZE_MAX + line_size_max
    assert sum(sizes(tmp_path)) > SIZE_MAX - 3 * SIZE_MAX // PARTS  # and no more than needed is removed
    left = [job for run in runs_of(tmp_path) for job in jobs(run)]
    assert left == list(range(number - len(left), number))
    assert sorted(path for path in tmp_path.iterdir()) == runs_of(tmp_path)  # no folder is left empty


def test_many_starts_that_fail_at_once_do_not_fill_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_py.service.telemetry.event_log._FILES_MAX", 5)
    for run in range(12):
        fill(log_of(tmp_path, float(run)), run, run + 1)
    assert [jobs(run) for run in runs_of(tmp_path)] == [[run] for run in range(7, 12)]


def test_logs_of_other_ranks_and_other_files_are_not_touched(tmp_path: Path) -> None:
    fill(log_of(tmp_path, 1.0, rank=10), 0, 3)
    others = [tmp_path / "0.jsonl", tmp_path / "old/0.jsonl", tmp_path / run_name(1.0) / "notes"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x" * 2 * SIZE_MAX)
    fill(log_of(tmp_path, 2.0), 0, 2000)
    assert all(path.stat().st_size == 2 * SIZE_MAX for path in others)
    assert jobs(tmp_path / run_name(1.0)) == [0, 1, 2]


def test_where_a_part_cannot_be_begun_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_of(tmp_path, 1.0)
    for number in range(100):
        if number == 10:
            monkeypatch.setattr(os, "open", _refuse)
        if number == 90:
            monkeypatch.undo()
        log.write(float(number), "ended", {"job": number})
        log.flush()
    log.close()
    assert jobs(tmp_path) == list(range(100))
    assert capsys.readouterr().err.count("cannot be written") == 1


def _refuse(*_: object, **__: object) -> int:
    raise PermissionError(13, "Permission denied")


def test_a_log_whose_begin_is_gone_is_read_from_where_all_ranks_have_theirs(tmp_path: Path) -> None:
    quiet = log_of(tmp_path, 5.0, rank=1)
    quiet.write(2.0, "busy", {})
    quiet.write(3.0, "busy", {}, 2)
    quiet.write(4.0, "idle", {}, 2)
    quiet.write(2000.0, "idle", {})
    quiet.close()
    log = log_of(tmp_path, 5.0)
    log.write(1.0, "busy", {})
    fill(log, 10, 2000)
    events = read_events(tmp_path)
    begin_s = events[0].t
    assert begin_s > 100
    assert all(event.t >= begin_s for event in events)
    report = make_report(events)
    assert (report.is_cut, report.begin_s, report.started_unix_s) == (True, begin_s, 5.0)
    assert (report.ranks, report.pes) == (2, 3)
    # PEs 0 and 1 were busy before this part of the log, PE 2 was not.
    assert report.utilisation.mean == pytest.approx(2 / 3, rel=0.01)


def test_each_part_says_what_run_it_is_of(tmp_path: Path) -> None:
    fill(log_of(tmp_path, 7.0), 0, 100)
    (run,) = runs_of(tmp_path)
    openings = [json.loads(path.read_text().splitlines()[0]) for path in parts_of(run)]
    assert [one["event"] for one in openings] == ["start"] + ["continued"] * (len(openings) - 1)
    assert {(one["unix_s"], one["ranks"]) for one in openings} == {(7.0, 2)}
