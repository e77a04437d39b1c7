"""The history of ended jobs survives restarts, crashes, full disks and foreign files in its place."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from mallob_py.cli import main as main_module
from mallob_py.service.telemetry import history
from mallob_py.service.telemetry.history import HistoryWriter, read_history
from mallob_py.service.telemetry.status import EndedJob


def ended(number: int, user: str = "u", outcome: str = "result", **fields: object) -> EndedJob:
    return EndedJob(number, user, f"j{number}", outcome, ended=1000.0 + number, **fields)  # type: ignore[arg-type]


@pytest.fixture
def client_dir(tmp_path: Path) -> Path:
    path = tmp_path / "api" / "jobs.0"
    path.mkdir(parents=True)
    return path


def write(client_dir: Path, *jobs: EndedJob) -> None:
    writer = HistoryWriter(client_dir)
    for job in jobs:
        writer.add(job)
    writer.flush()
    assert not writer.has_news


def test_jobs_of_all_clients_and_runs_are_in_the_order_of_their_ends(client_dir: Path) -> None:
    other = client_dir.with_name("jobs.1")
    other.mkdir()
    write(client_dir, ended(1), ended(4))
    write(other, ended(2))
    write(client_dir, ended(5))
    assert [job.id for job in read_history(client_dir.parent)] == [1, 2, 4, 5]


def test_half_a_line_that_a_crash_left_costs_that_line_alone(client_dir: Path) -> None:
    write(client_dir, ended(1))
    with open(client_dir / "history.jsonl", "ab") as file:
        file.write(b'{"id": 2, "user"')
    write(client_dir, ended(3))
    assert [job.id for job in read_history(client_dir.parent)] == [1, 3]


def test_a_history_that_is_too_long_loses_its_older_half(
    client_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "SIZE_MAX_BYTES", 1000)
    for number in range(100):
        write(client_dir, ended(number))
    kept = [job.id for job in read_history(client_dir.parent)]
    assert kept == list(range(kept[0], 100))
    assert 3 < len(kept) < 20
    assert sum(path.stat().st_size for path in client_dir.iterdir()) < 2500


def test_lines_wait_while_they_cannot_be_written(client_dir: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (client_dir / "history.jsonl").symlink_to(victim)
    writer = HistoryWriter(client_dir)
    writer.add(ended(1))
    with pytest.raises(OSError, match="link"):
        writer.flush()
    assert victim.read_text() == "mine"
    (client_dir / "history.jsonl").unlink()
    writer.add(ended(2))
    writer.flush()
    assert [job.id for job in read_history(client_dir.parent)] == [1, 2]


def test_a_disk_that_takes_half_a_line_gets_it_again_later(
    client_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(client_dir, ended(1))
    writer = HistoryWriter(client_dir)
    writer.add(ended(2))
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:10]))
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    monkeypatch.undo()
    writer.flush()
    assert [job.id for job in read_history(client_dir.parent)] == [1, 2]


def test_the_command_lists_filters_and_sums_up(client_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        client_dir,
        ended(1, "alice", result="SAT", pe_s=2.0),
        ended(2, "bob", "failed", error="ValueError: no\n"),
        ended(3, "alice", result="UNSAT", pe_s=3.0),
    )

    def printed(*arguments: str) -> list[str]:
        assert main_module.main(["history", "--api-dir", str(client_dir.parent), *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    assert [line.split()[2] for line in printed()[2:]] == ["j3", "j2", "j1"]
    assert [json.loads(line)["id"] for line in printed("--json", "--state", "SAT")] == [1]
    assert [json.loads(line)["id"] for line in printed("--json", "--user", "bob")] == [2]
    assert printed("--limit", "1")[-1] == "... and 2 older ones (--limit 0 shows all)"
    assert printed("--since", "1m") == ["no ended job is recorded here"]
    assert [line.split() for line in printed("--by-user")[2:]] == [
        ["alice", "2", "0", "5.000", "0.000"],
        ["bob", "1", "1", "0.000", "0.000"],
    ]


def test_a_folder_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["history", "--api-dir", str(tmp_path / "no")]) == 2
    assert "no is no folder of a service" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "code"), [("limit", 2), ("cpu-limit", 0), ("SAT", 0), ("refused", 0)])
def test_the_history_refuses_a_state_in_which_no_job_ends(
    state: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_module.main(["history", "--api-dir", str(tmp_path), "--state", state]) == code
    assert ("no job ends so (did you mean 'cpu-limit'?)" in capsys.readouterr().err) == (code == 2)


def test_who_follows_hears_of_no_job_again_after_troubles(
    client_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unreadable history, and a file that is missing while it is renamed, do no harm."""
    write(client_dir, ended(1))
    trouble = monkeypatch.context()

    def steps() -> Iterator[None]:
        write(client_dir, ended(2))
        yield
        with trouble as troubled:
            troubled.setattr(Path, "glob", Mock(side_effect=PermissionError(13, "denied")))
            yield
        (client_dir / "history.jsonl").rename(client_dir / "hidden")
        yield
        (client_dir / "hidden").rename(client_dir / "history.1.jsonl")
        write(client_dir, ended(3))
        yield
        raise KeyboardInterrupt

    step = steps()
    monkeypatch.setattr(time, "sleep", lambda _: next(step))
    assert main_module.main(["history", "--api-dir", str(client_dir.parent), "--follow", "--json"]) == 130
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == [2, 3]


def test_who_follows_hears_of_each_job_once(client_dir: Path) -> None:
    write(client_dir, ended(1))
    command = [sys.executable, "-m", "mallob_py.cli.main", "history", "--follow", "--json"]
    with subprocess.Popen(
        [*command, "--api-dir", str(client_dir.parent), "--user", "u"], stdout=subprocess.PIPE, text=True
    ) as follower:
        try:
            assert follower.stdout is not None
            number = 2
            # the follower may not have read the file yet
            while not select.select([follower.stdout], [], [], 0.3)[0]:
                write(client_dir, ended(number), ended(number + 1, "v"))
                number += 2
            told = [json.loads(follower.stdout.readline())["id"]]
            write(client_dir, ended(number))
            while told[-1] != number:
                told.append(json.loads(follower.stdout.readline())["id"])
        finally:
            follower.terminate()
    assert told == [*range(told[0], number, 2), number]
