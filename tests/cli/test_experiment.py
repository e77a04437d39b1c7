"""`mallob-py experiment`: small runs of each experiment, the files that the runs leave, and errors."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.cli import main as main_module
from mallob_py.experiments import paper, realistic

QUICK = """
pes_per_host = 6
[jobs]
wallclock_mean_s = 4.0
wallclock_max_s = 8.0
"""


def command(folder: Path, *arguments: object) -> int:
    given = [*map(str, arguments), "--jobs", "1", "--output", str(folder)]
    return main_module.main(["experiment", *given])


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def titles(folder: Path, name: str) -> list[str]:
    return [table["title"] for table in json.loads((folder / f"{name}.json").read_text())]


def kept(folder: Path, name: str) -> list[str]:
    return [json.loads(line)["run"] for line in (folder / f"{name}-runs.jsonl").read_text().splitlines()]


def test_uniform_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "uniform", "--pes", 24, "--seconds", "20s") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Uniform jobs on 24 PEs, 20 s\n")
    assert [line.rpartition(",")[0] for line in captured.err.splitlines()] == [
        f"{number} of 4 runs done ({jobs} jobs)" for number, jobs in enumerate((3, 6, 12, 24), 1)
    ]
    (table,) = json.loads((tmp_path / "uniform.json").read_text())
    assert [row[0] for row in table["rows"]] == [3, 6, 12, 24]
    assert len({len(row) for row in table["rows"]} | {len(table["header"])}) == 1
    assert kept(tmp_path, "uniform") == ["3 jobs", "6 jobs", "12 jobs", "24 jobs"]
    assert "| 24 |" in (tmp_path / "uniform.md").read_text()


def test_priorities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert command(tmp_path, "priorities", "--pes", 24, "--seconds", 20) == 0
    assert capsys.readouterr().out.startswith("Priorities on 24 PEs, 20 s\n")
    (table,) = json.loads((tmp_path / "priorities.json").read_text())
    assert len(table["rows"]) == len(kept(tmp_path, "priorities")) == 9
    assert {path.name for path in tmp_path.glob("fig4*")} == {"fig4-priorities.png", "fig4-priorities.svg"}


def test_realistic_arrivals(tmp_path: Path, setting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert command(tmp_path, "realistic", "--setting", setting, "--pes", 24, "--seconds", 20) == 0
    captured = capsys.readouterr()
    assert captured.err.count(" runs done (") == 10
    assert "Warning" not in captured.err
    assert [title.split(",")[0] for title in titles(tmp_path, "realistic")] == [
        "Reuse of workers (P Table 2)",
        "Ways of matching (P Fig. 6)",
        "Load (P Fig. 5)",
        "Ahead of all others",
    ]
    assert kept(tmp_path, "realistic")[0] == "prefix sum"
    assert {path.suffix for path in tmp_path.glob("fig5-load.*")} == {".png", ".svg"}
    assert {path.suffix for path in tmp_path.glob("fig6-latencies.*")} == {".png", ".svg"}
    load = json.loads((tmp_path / "realistic.json").read_text())[2]["rows"]
    assert [row[0] for row in load] == ["1/lambda = 2.5 s", "1/lambda = 5 s", "1/lambda = 10 s"]
    assert [row[5] for row in load] == ["0.9985", "0.9977", "0.9908"]
    ways, _, _, ahead = (table["rows"] for table in json.loads((tmp_path / "realistic.json").read_text()))
    assert all(" ± " in row[3] and " ± " in row[-1] for row in ways[::2])
    assert {row[2] for row in ahead} <= {
        "none",
        "reuse none",
        "reuse basic",
        "prefix sum",
        *paper.LATENCIES_MS,
    }


@pytest.mark.usefixtures("without_figures")
def test_realistic_arrivals_from_a_stream_are_set_beside_no_load_of_the_papers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.csv").write_text("0,a,1,1,5,2\n1,b,2,0.5,5,0\n")
    arguments = ("--pes", 4, "--seconds", 10, "--stream", tmp_path / "jobs.csv")
    assert command(tmp_path, "realistic", *arguments) == 0
    (row,) = json.loads((tmp_path / "realistic.json").read_text())[2]["rows"]
    assert (row[0], row[1], row[5]) == ("stream", 2, None)
    assert len(kept(tmp_path, "realistic")) == 8


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(("name", "figures"), [("priorities", 1), ("realistic", 2)])
def test_without_matplotlib_there_are_tables_and_a_line_that_says_how_to_install_it(
    name: str, figures: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, name, "--pes", 12, "--seconds", 2) == 0
    assert titles(tmp_path, name)
    captured = capsys.readouterr()
    assert captured.err.count("matplotlib is missing (pip install matplotlib)\n") == figures
    assert list(tmp_path.glob("fig*")) == []


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("name", ["uniform", "priorities", "realistic"])
def test_a_time_too_short_for_anything_gives_tables_with_gaps(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, name, "--pes", 12, "--seconds", "100ms") == 0
    assert "-" in capsys.readouterr().out


def test_figures_of_nothing_are_drawn_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "jobs.csv").write_text("")
    assert command(tmp_path, "realistic", "--pes", 2, "--seconds", 2, "--stream", tmp_path / "jobs.csv") == 0
    assert [str(warning.message) for warning in recwarn if warning.category is UserWarning] == []
    assert (tmp_path / "fig6-latencies.png").exists()


# --- wrong arguments ---------------------------------------------------------------------------


def complaint(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: object) -> str:
    assert command(folder, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("mallob-py experiment: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("uniformm",), "EXPERIMENT: 'uniformm' is none of uniform, priorities, realistic, "),
        (("uniform", "--hard"), "--hard is only for the experiment mixed, not for uniform"),
        (("uniform", "--stream", "x.csv"), "--stream is only for the experiment realistic, not for uniform"),
        (("priorities", "--stream", "x.csv"), "--stream is only for the experiment realistic"),
        (("uniform", "--seconds", "0"), "--seconds: '0' is not a time above 0"),
        (("uniform", "--pes", "0"), "--pes: 0 is less than 1"),
        (("uniform", "--pes", "25"), "pes: 25 is no multiple of 3"),
        (("priorities", "--pes", "8"), "pes: 8 are too few for 9 jobs at a time"),
        (("realistic", "--setting", "none.toml"), "none.toml cannot be read: No such file"),
        (("realistic", "--pes", "4", "--stream", "none.csv"), "none.csv cannot be read: No such file"),
        (("growth", "--pes", "4"), "growth has sizes of its own and takes no --"),
    ],
)
def test_what_cannot_be_played_is_refused(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint(capsys, tmp_path, *arguments).startswith(said)


def test_a_bad_setting_is_refused_by_file_and_field(
    tmp_path: Path, setting: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting.write_text("[jobs]\nclients = 0")
    line = complaint(capsys, tmp_path, "realistic", "--setting", setting)
    assert line.startswith(f"{setting}: jobs.clients: ")


@pytest.mark.parametrize("name", ["uniform", "priorities", "realistic"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_played(
    name: str, setting: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The experiments have their usual sizes, which would take minutes if anything were played."""
    assert complaint(capsys, setting, name) == f"--output {setting}: File exists\n"


def test_an_interrupt_ends_all_runs_and_leaves_what_is_done(tmp_path: Path) -> None:
    arguments = ["realistic", "--pes", "24", "--seconds", "30", "--jobs", "2", "--output", str(tmp_path)]
    experiment = subprocess.Popen(
        [sys.executable, "-m", "mallob_py.cli.main", "experiment", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert experiment.stderr is not None
    first = experiment.stderr.readline()
    os.killpg(experiment.pid, signal.SIGINT)
    printed, said = experiment.communicate(timeout=DEADLINE_S)
    assert (experiment.returncode, printed) == (130, "")
    lines = [first, *said.splitlines()]
    assert all(" runs done (" in line for line in lines), said
    assert 1 <= len(kept(tmp_path, "realistic")) <= len(lines) + 1 < 10


#: program in which Ctrl-C comes while a process sends the large outcome of its run
_INTERRUPTED_WHILE_SENDING = """
import os, signal, sys, threading, time
from pathlib import Path
from mallob_py.experiments.output import side_by_side

SENDING = Path(sys.argv[1])

class Large:
    def __reduce__(self):
        SENDING.touch()
        return bytes, (b"." * (100 << 20),)

def play(size):
    return Large() if size == "large" else size

def is_receiving():
    frames = sys._current_frames().values()
    return SENDING.exists() and any(frame.f_code.co_name == "_recv" for frame in frames)

def keep(name, outcome):
    while not is_receiving():
        time.sleep(0.001)
    os.killpg(0, signal.SIGINT)
    time.sleep(60)

try:
    side_by_side(play, ["small", "large"], 2, str, keep)
except KeyboardInterrupt:
    # One that still ran would be woken at the interpreter's end by a pipe that it is closing.
    sys.exit(130 if threading.active_count() == 1 else str(threading.enumerate()))
"""


def test_an_interrupt_while_an_outcome_is_being_sent_ends_all(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _INTERRUPTED_WHILE_SENDING, str(tmp_path / "sending")]
    experiment = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, said = experiment.communicate(timeout=DEADLINE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(experiment.pid, signal.SIGKILL)
    assert (experiment.returncode, said) == (130, "")


def _die(_variant: realistic.Variant) -> realistic.Measured:
    os._exit(9)


def test_a_run_that_is_killed_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(realistic, "measure", _die)
    assert "a run was killed from outside" in complaint(capsys, tmp_path, "realistic", "--pes", "4")


@pytest.mark.parametrize(("experiment", "pes", "rows"), [("matching", 64, 4), ("balancing", 100, 5)])
def test_what_grows_by_sizes_goes_up_to_the_given_one(
    experiment: str, pes: int, rows: int, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    assert main_module.main(["experiment", experiment, "--pes", str(pes), "--output", str(tmp_path)]) == 0
    for table in json.loads((tmp_path / f"{experiment}.json").read_text()):
        assert [row[0] for row in table["rows"]] == [pes] * rows
    assert list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(("experiment", "least"), [("matching", 64), ("balancing", 100)])
def test_a_size_below_all_of_them_is_refused(
    experiment: str, least: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["experiment", experiment, "--pes", str(least - 1), "--output", str(tmp_path)]
    assert main_module.main(arguments) == 2
    assert f"pes: {experiment} begins with {least}" in capsys.readouterr().err
