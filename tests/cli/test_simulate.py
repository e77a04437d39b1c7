"""`mallob-py simulate`: what it prints and writes, and one line per error."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.cli import main as main_module
from mallob_py.cli import simulate, values
from mallob_py.service.store import own_folder
from mallob_py.simulation.run import LOG_NAME

SMALL = """
pes = 8
seconds = 20
[jobs]
interarrival_s = 4.0
wallclock_mean_s = 3.0
wallclock_max_s = 6.0
"""
STREAM = "client,name,arrival_s,priority,wallclock_limit_s,max_demand\n0,a,1,1,5,2\n1,b,2,0.5,5,0\n"


def command(*arguments: object) -> int:
    return main_module.main(["simulate", *map(str, arguments)])


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(STREAM)
    return path


def test_json_has_the_measures(setting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(setting, "--json") == 0
    captured = capsys.readouterr()
    measures = json.loads(captured.out)
    assert (measures["pes"], measures["seconds"], measures["seed"]) == (8, 20.0, 0)
    assert measures["jobs_submitted"] >= measures["jobs_ended"] > 0
    assert 0.0 < measures["utilisation"] <= 1.0
    assert [row["kind"] for row in measures["latencies"]] == ["scheduled", "balanced", "adopted"]
    assert set(measures["created_on_at_most"]) == {"1", "2", "5", "10", "25"}
    assert measures["messages"] > 100
    assert captured.err == "", "there is no progress bar where nobody watches"


def test_text_is_the_default(setting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(setting) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("8 PEs, 20 s in virtual time, seed 0, played in ")
    assert "busy share of the median PE" in printed
    assert "latency [ms] until" in printed


def test_the_command_line_replaces_what_the_setting_says(
    setting: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(setting, "--pes", 3, "--seconds", "0.1m", "--seed", 5, "--json") == 0
    measures = json.loads(capsys.readouterr().out)
    assert (measures["pes"], measures["seconds"], measures["seed"]) == (3, 6.0, 5)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("10m", 600.0), ("1h", 3600.0), ("500ms", 0.5)]
)
def test_virtual_time_is_given_like_any_other_duration(text: str, seconds: float) -> None:
    assert values.duration_s(text) == seconds


def test_without_a_setting_the_papers_jobs_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--pes", 4, "--seconds", 10, "--json") == 0
    assert json.loads(capsys.readouterr().out)["pes"] == 4


def test_jobs_come_from_a_stream(setting: Path, stream: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(setting, "--stream", stream, "--json") == 0
    measures = json.loads(capsys.readouterr().out)
    assert (measures["jobs_submitted"], measures["jobs_ended"]) == (2, 2)


def test_the_log_is_what_the_report_reads(
    setting: Path, stream: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    assert command(setting, "--stream", stream, "--log-dir", logs) == 0
    assert [path.name for path in logs.iterdir()] == [LOG_NAME]
    capsys.readouterr()
    assert main_module.main(["report", str(logs), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["mode"], report["pes"], report["duration_s"]) == ("simulated", 8, 20.0)
    assert [job["name"] for job in report["jobs"]] == ["client0.a", "client1.b"]


# --- wrong arguments ---------------------------------------------------------------------------


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the one line that a refused command prints."""
    assert command(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("mallob-py simulate: ")
    return captured.err


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("pes = 0", "pes:"),
        ("seconds = 0", "seconds:"),
        ("seed = -1", "seed:"),
        ('[jobs]\narrivals = "x"', "jobs: arrivals 'x'"),
        ("[network]\nsame_host = 1", "network: Object contains unknown field `same_host`"),
        ('[protocol]\nresue = "none"', "protocol: Object contains unknown field `resue`"),
        ("pes = = 3", "is not TOML"),
    ],
)
def test_a_bad_setting_is_refused_by_file_and_field(
    text: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    line = complaint(capsys, path)
    assert str(path) in line
    assert field in line


def test_a_setting_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.toml cannot be read: No such file" in complaint(capsys, tmp_path / "none.toml")


@pytest.mark.parametrize(
    "arguments",
    [
        *(("--pes", "0"), ("--pes", "-3"), ("--pes", "many"), ("--pes", "2.5"), ("--pes", "99999999999")),
        *(
            ("--seconds", "0"),
            ("--seconds", "0s"),
            ("--seconds=-5",),
            ("--seconds", "inf"),
            ("--seconds", "1y"),
        ),
        *(("--seed=-1",), ("--seed", "x")),
    ],
)
def test_bad_numbers_are_refused_by_their_option(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint(capsys, *arguments).startswith(f"mallob-py simulate: {arguments[0].partition('=')[0]}:")


@pytest.mark.parametrize("line", ["0,a,1,1,5", "0,a,x,1,5,1", "0,a,1,0,5,1", f"0,{'a' * 200_000},1,1,5,1"])
def test_a_bad_stream_is_refused_by_file_and_line_before_anything_is_written(
    line: str, setting: Path, stream: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.write_text(f"{STREAM}{line}\n")
    logs = tmp_path / "logs"
    assert f"{stream}, line 4: " in complaint(capsys, setting, "--stream", stream, "--log-dir", logs)
    assert not logs.exists()


def test_a_stream_that_is_not_there_is_refused(
    setting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "none.csv cannot be read" in complaint(capsys, setting, "--stream", tmp_path / "none.csv")


def test_a_log_folder_that_cannot_be_made_is_refused(
    setting: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"--log-dir {setting}: File exists" in complaint(capsys, setting, "--log-dir", setting)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_run_in_one_line(
    setting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_folder, "open_to_write", lambda path, mode: os.open("/dev/full", os.O_WRONLY))
    line = complaint(capsys, setting, "--log-dir", tmp_path)
    assert line.endswith(f"--log-dir {tmp_path}: No space left on device\n")


# --- progress ----------------------------------------------------------------------------------


def seen_on_a_terminal(*arguments: object) -> str:
    """Return what a terminal shows of standard error."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "mallob_py.cli.main", "simulate", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # no process has the other end of the pseudo-terminal open
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert run.wait(timeout=DEADLINE_S) == 0
    return shown.decode()


def test_a_terminal_shows_a_bar_with_the_time_left(setting: Path) -> None:
    last = seen_on_a_terminal(setting).split("\r")[-2]
    assert last.startswith(f"[{'#' * 30}] 20 of 20 s, ")
    assert last.rstrip().endswith(" M messages, 0 s left")


def test_the_bar_tells_how_far_the_run_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clock says that the first quarter took 2 s, so 6 s are left."""
    clock_s = iter([100.0, 100.1, 102.0, 108.0])
    monkeypatch.setattr(simulate.time, "monotonic", lambda: next(clock_s))
    draw = simulate.progress_bar(400.0)
    draw(10.0, 1)
    assert capsys.readouterr().err == "", "too soon to draw"
    draw(100.0, 2_500_000)
    line = capsys.readouterr().err
    assert line.strip() == f"[{'#' * 8:<30}] 100 of 400 s, 2.5 M messages, 6 s left"
    draw(400.0, 9_000_000)
    end = capsys.readouterr().err
    assert end.strip().endswith("9.0 M messages, 0 s left")
    assert end.endswith("\n")
