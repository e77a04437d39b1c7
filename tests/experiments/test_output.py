"""The results of parallel runs are kept one by one; tables and figures go to one folder."""

import json
import sys
from pathlib import Path

import msgspec
import pytest
from waiting import poll_until

from mallob_py.experiments.output import Output, Table, side_by_side


class Square(msgspec.Struct):
    """The result of a run."""

    value: int


class Run(msgspec.Struct, frozen=True):
    """A run that waits for the file `waits_for`, makes the file `leaves`, and squares `number`."""

    number: int
    waits_for: str = ""
    leaves: str = ""


def play(run: Run) -> Square:
    poll_until(lambda: not run.waits_for or Path(run.waits_for).exists())
    if run.leaves:
        Path(run.leaves).touch()
    if run.number < 0:
        raise ValueError(f"no run {run.number}")
    return Square(run.number**2)


def name(run: Run) -> str:
    return f"run {run.number}"


def ignore(run: str, square: Square) -> None:
    pass


@pytest.mark.parametrize("processes", [1, 2, 5, None])
def test_outcomes_come_in_the_order_of_the_runs(processes: int | None) -> None:
    outcomes = side_by_side(play, [Run(number) for number in (3, 1, 2)], processes, name, ignore)
    assert outcomes == [Square(9), Square(1), Square(4)]
    assert side_by_side(play, [], processes, name, ignore) == []


def test_a_run_is_kept_when_it_is_done_though_one_before_it_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run waits until the second run's result is kept."""
    kept: list[str] = []

    def keep(run: str, square: Square) -> None:
        kept.append(run)
        (tmp_path / "kept").touch()

    runs = [Run(1, waits_for=str(tmp_path / "kept")), Run(2)]
    assert side_by_side(play, runs, 2, name, keep) == [Square(1), Square(4)]
    assert kept == ["run 2", "run 1"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(",")[0] for line in lines] == [
        "1 of 2 runs done (run 2)",
        "2 of 2 runs done (run 1)",
    ]


def test_after_an_error_what_is_done_is_kept_and_no_run_begins(tmp_path: Path) -> None:
    output = Output(tmp_path, "squares")
    runs = [Run(2), Run(-1), *(Run(number, leaves=str(tmp_path / f"begun-{number}")) for number in (3, 4, 5))]
    with pytest.raises(ValueError, match="no run -1"):
        side_by_side(play, runs, 1, name, output.keep)
    assert [json.loads(line) for line in (tmp_path / "squares-runs.jsonl").read_text().splitlines()] == [
        {"run": "run 2", "result": {"value": 4}}
    ]
    assert list(tmp_path.glob("begun-*")) == []


def test_results_of_an_earlier_experiment_are_not_mixed_with_those_of_this_one(tmp_path: Path) -> None:
    Output(tmp_path, "squares").keep("old", Square(1))
    Output(tmp_path, "squares")  # a second start that plays nothing must not remove old results
    assert '"old"' in (tmp_path / "squares-runs.jsonl").read_text()
    Output(tmp_path, "squares").keep("new", Square(2))
    assert (tmp_path / "squares-runs.jsonl").read_text().count("\n") == 1


def test_a_run_that_was_kept_is_not_played_again_by_an_output_that_resumes(tmp_path: Path) -> None:
    Output(tmp_path, "squares").done("1", Square, lambda: Square(1))
    runs = tmp_path / "squares-runs.jsonl"
    with runs.open("a") as file:
        file.write('{"run":"2","result":{"value":"no number"}}\n{"run":"3","result":{"va')  # cut off

    def play() -> Square:
        raise AssertionError("it was kept")

    output = Output(tmp_path, "squares", resume=True)
    assert output.done("1", Square, play) == Square(1)
    assert output.done("2", Square, lambda: Square(4)) == Square(4)
    assert output.done("3", Square, lambda: Square(9)) == Square(9)
    again = Output(tmp_path, "squares", resume=True)
    assert [again.done(run, Square, play).value for run in ("1", "2", "3")] == [1, 4, 9]
    assert Output(tmp_path, "squares").done("1", Square, lambda: Square(2)) == Square(2)
    assert runs.read_text() == '{"run":"1","result":{"value":2}}\n'


def test_a_folder_that_cannot_be_written_is_found_out_before_any_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="exists"):
        Output(tmp_path / "file", "squares")
    (tmp_path / "squares-runs.jsonl").mkdir()
    with pytest.raises(OSError, match="directory"):
        Output(tmp_path, "squares")


TABLE = Table("Squares", ("x", "x squared"), ((1, 1.0), (2, None)))


def test_tables_are_printed_and_written_as_markdown_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Output(tmp_path / "new" / "folder", "squares").tables([TABLE], "Small ones.")
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "Squares"
    assert printed.endswith("Small ones.\n\n")
    markdown = (tmp_path / "new" / "folder" / "squares.md").read_text()
    assert "| x | x squared |\n| --- | --- |\n| 1 | 1.000 |\n| 2 | - |" in markdown
    (table,) = json.loads((tmp_path / "new" / "folder" / "squares.json").read_text())
    assert table == {"title": "Squares", "header": ["x", "x squared"], "rows": [[1, 1.0], [2, None]]}


def test_a_figure_is_written_as_png_and_svg(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    Output(tmp_path, "squares").figure("fig", lambda figure: figure.subplots().plot([1, 2], [1, 4]))
    assert (tmp_path / "fig.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "fig.svg").read_text()


def test_without_matplotlib_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    Output(tmp_path, "squares").figure("fig", lambda figure: pytest.fail("there is nothing to draw on"))
    assert capsys.readouterr().err == "no figure fig: matplotlib is missing (pip install matplotlib)\n"
    assert list(tmp_path.glob("fig*")) == []
