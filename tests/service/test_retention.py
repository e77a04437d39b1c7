"""The files that retention removes, and the files that it must leave."""

import json
import os
from pathlib import Path

import pytest

from mallob_py.service.retention import Folders, Retention
from mallob_py.service.telemetry.event_log import EventLog, LogFiles
from mallob_py.service.telemetry.history import HistoryWriter, drop_beginning, read_history
from mallob_py.service.telemetry.status import EndedJob

NOW_S, DAY_S = 2e9, 86400.0
OLD_S, YOUNG_S = NOW_S - 40 * DAY_S, NOW_S - DAY_S


class House:
    """A client's folder with files of jobs, and a retention of 30 days."""

    def __init__(self, folder: Path) -> None:
        self.box = folder / "api/jobs.0"
        self.output = folder / "api/output"
        self.results = folder / "results"
        for made in (self.box / "out", self.output, self.results):
            made.mkdir(parents=True)
        self.history = HistoryWriter(self.box)
        self.folders = Folders.of(self.box, str(self.results))
        self.retention = Retention(30 * DAY_S, self.box, self.folders.forget, lambda: NOW_S)

    def ended(
        self, number: int, ended_s: float, name: str = "", outcome: str = "result", user: str = "u"
    ) -> None:
        self.history.add(EndedJob(number, user, name or f"j{number}", outcome, ended_s))
        self.history.flush()

    def write(self, path: Path, written_s: float, text: str = "{}") -> Path:
        path.write_text(text)
        os.utime(path, (written_s, written_s))
        return path

    def reply(self, number: int, ended_s: float, **result: object) -> Path:
        self.ended(number, ended_s)
        return self.write(self.box / f"out/u.j{number}.json", ended_s, json.dumps({"result": result}))

    def sweep(self) -> None:
        self.retention.turn(0.0)
        while self.retention.deadline_s < 1.0:
            self.retention.turn(0.0)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_all_files_of_an_old_job_go_and_then_its_line(house: House) -> None:
    proof = house.write(house.results / "p.lrat", OLD_S)
    house.reply(1, OLD_S, **{"result-files": {"proof": str(proof)}})
    for path in (house.box / "out/u.j1.1.solution", house.output / "1.log", house.output / "1.1.log"):
        house.write(path, OLD_S)
    young = house.reply(2, YOUNG_S)
    house.sweep()
    left = [path for path in house.box.parents[1].rglob("*") if path.is_file()]
    assert sorted(left) == [house.box / "history.jsonl", young]
    assert [job.id for job in read_history(house.box.parent)] == [2]


def test_a_history_without_young_lines_goes_whole_and_a_refused_file_too(house: House) -> None:
    house.ended(1, OLD_S, "stray.txt", "refused", user="")
    house.write(house.box / "out/stray.txt.error.json", OLD_S)
    house.sweep()
    assert [path.name for path in house.box.iterdir()] == ["out"]
    assert not [*(house.box / "out").iterdir()]


def test_a_line_of_a_clock_that_was_years_ahead_keeps_no_old_job(house: House) -> None:
    house.ended(1, NOW_S + 3650 * DAY_S)
    reply = house.reply(2, OLD_S)
    house.ended(3, NOW_S + 3650 * DAY_S)
    house.ended(4, YOUNG_S)
    house.sweep()
    assert not reply.exists()
    assert [job.id for job in read_history(house.box.parent)] == [4, 3]


def test_a_clock_that_is_years_behind_removes_no_line(house: House) -> None:
    for number in range(5):
        house.ended(number, NOW_S + 3650 * DAY_S)
    house.sweep()
    assert len(read_history(house.box.parent)) == 5


def test_a_later_reply_of_the_same_name_stays(house: House) -> None:
    reply = house.reply(1, OLD_S)
    os.utime(reply, (YOUNG_S, YOUNG_S))
    house.sweep()
    assert reply.exists()


def test_a_younger_result_file_stays(house: House) -> None:
    proof = house.write(house.results / "p.lrat", YOUNG_S)
    reply = house.reply(1, OLD_S, **{"result-files": {"proof": str(proof)}})
    house.sweep()
    assert proof.exists()
    assert not reply.exists()


def test_files_of_others_and_links_stay(house: House, tmp_path: Path) -> None:
    outside = house.write(tmp_path / "precious", OLD_S)
    strange = [house.write(house.box / f"out/{name}", OLD_S) for name in ("u.other.json", "note.txt")]
    (house.results / "away").symlink_to(tmp_path)
    paths = {"a": str(outside), "b": f"{house.results}/away/precious", "c": f"{house.results}/../precious"}
    house.reply(1, OLD_S, **{"result-files": {**paths, "d": 3, "e": "\0"}})
    house.ended(2, OLD_S)
    (house.box / "out/u.j2.json").symlink_to(outside)
    house.ended(3, OLD_S)
    (house.box / "out/u.j3.json").mkdir()
    above = house.write(house.box / "precious.error.json", OLD_S)
    house.ended(4, OLD_S, "../precious", "refused", user="")
    house.sweep()
    assert outside.exists()
    assert above.exists()
    assert all(path.exists() for path in strange)
    assert (house.box / "out/u.j2.json").is_symlink()
    assert (house.box / "out/u.j3.json").is_dir()
    assert not (house.box / "out/u.j1.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_stays(house: House) -> None:
    reply = house.reply(1, OLD_S)
    os.chown(reply, 12345, -1)
    house.sweep()
    assert reply.exists()


def test_a_sweep_goes_in_small_steps(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mallob_py.service.retention._STEPS_S", 0.0)
    for number in range(5):
        house.reply(number, OLD_S)
    left = []
    while house.retention.deadline_s < 1.0:
        house.retention.turn(0.0)
        left.append(len([*(house.box / "out").iterdir()]))
    assert left[:5] == [4, 3, 2, 1, 0]


def test_lines_that_come_during_a_sweep_are_kept(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mallob_py.service.telemetry.history._COPIED_BYTES", 64)
    for number in range(20):
        house.ended(number, YOUNG_S)
    path = house.box / "history.jsonl"
    first_line = len(path.read_bytes().splitlines(keepends=True)[0])
    for number, _ in enumerate(drop_beginning(path, first_line), 20):
        if number < 25:
            house.ended(number, YOUNG_S)
    assert [job.id for job in read_history(house.box.parent)] == [*range(1, 25)]


def test_a_history_that_is_turned_over_during_a_sweep_stays(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mallob_py.service.telemetry.history._COPIED_BYTES", 64)
    house.ended(1, OLD_S)
    path = house.box / "history.jsonl"
    dropping = drop_beginning(path, 10)
    next(dropping)
    path.rename(house.box / "history.1.jsonl")
    house.ended(2, YOUNG_S)
    for _ in dropping:
        pass
    assert [job.id for job in read_history(house.box.parent)] == [1, 2]
    assert not (house.box / "~history.jsonl").exists()


def test_old_parts_of_logs_go_once_an_hour_but_not_the_one_that_is_written(tmp_path: Path) -> None:
    runs = [tmp_path / f"2026-01-0{day}T00-00-00.000Z" for day in (1, 2, 3)]
    for run, age_s in zip(runs[:2], (40 * DAY_S, DAY_S), strict=True):
        run.mkdir()
        for name in ("0.jsonl", "1.jsonl"):
            (run / name).write_text("{}\n")
            written_s = (tmp_path.stat().st_mtime) - age_s
            os.utime(run / name, (written_s, written_s))
    log = EventLog(LogFiles(runs[2], 0, None, 30 * DAY_S), 0, 0.0)
    log.write(0.0, "start", {})
    log.close()
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jsonl"))
    assert found == [
        f"{runs[0].name}/1.jsonl",
        *(f"{runs[1].name}/{n}.jsonl" for n in (0, 1)),
        f"{runs[2].name}/0.jsonl",
    ]
