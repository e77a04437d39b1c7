from pathlib import Path

import pytest

from mallob_py.batch import experiments
from mallob_py.cli.main import main

MODULE = """
def run(output, processes, traces):
    print(f"processes {processes}, traces {traces}")
    if processes == 9:
        raise ValueError("nine are too many")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an experiment of the test, which is added to the existing experiments."""
    (tmp_path / "of_a_test.py").write_text(MODULE)
    (tmp_path / "helper_of_a_test.py").write_text("")
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    return tmp_path


def test_an_experiment_is_found_by_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--output", str(folder / "out"), "--traces", str(folder), "--jobs", "2"]
    assert main(["batch", "experiment", "of_a_test", *arguments]) == 0
    assert capsys.readouterr().out == f"processes 2, traces {folder}\n"
    assert (folder / "out").is_dir()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["of_nobody"], "no experiment 'of_nobody' (there are "),
        (["helper_of_a_test"], "no experiment 'helper_of_a_test'"),
        (["of_a_test", "--traces", "/nowhere"], "--traces /nowhere: no such folder"),
        (["of_a_test", "--full"], "--full: the experiment of_a_test has only one size"),
        (["of_a_test", "--live"], "--live: the experiment of_a_test runs no processes"),
        (["elastic", "--resume"], "--resume: only `bags` and experiments with --live"),
        (
            ["elastic", "--full"],
            "--full needs --live: the simulated experiment elastic always has its full size",
        ),
        (["of_a_test", "--jobs", "9"], "nine are too many"),
        (["of_a_test", "--output", "/dev/null/x"], "--output /dev/null/x: Not a directory"),
    ],
)
def test_what_is_wrong_is_one_line(
    folder: Path, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", "experiment", *arguments[:1], "--output", str(folder), *arguments[1:]]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("mallob-py batch experiment: ")
    assert error in complaint
    assert complaint.count("\n") == 1
