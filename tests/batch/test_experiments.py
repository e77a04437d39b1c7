"""The experiments that play many policies: their tables for small traces, and their figures."""

import gzip
import json
from pathlib import Path

import pytest

from mallob_py.batch.experiments import elastic, fair, malleability
from mallob_py.batch.experiments.traces import KTH, Trace
from mallob_py.experiments import frame
from mallob_py.experiments.intervals import interval
from mallob_py.experiments.output import Output


def test_all_policies_are_played_on_the_parts_of_traces_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kth = Trace("KTH", KTH.file, 8)
    cases = (fair.Jobs("KTH", kth, 12, (0, 12)), fair.CASES[1], fair.Jobs("Lublin", None, 20, (1, 2)))
    monkeypatch.setattr(fair, "CASES", cases)
    lines = [
        f"{number} {9 * number} -1 {20 + 11 * number % 40} {1 + number % 8} -1 -1 {1 + number % 8} 90 -1"
        " 1 1 1 1 1 1 -1 -1\n"
        for number in range(1, 31)
    ]
    (tmp_path / kth.file).write_bytes(gzip.compress("".join(lines).encode()))
    out = tmp_path / "out"
    fair.run(Output(out, "fair"), 1, tmp_path)
    tables = json.loads((out / "fair.json").read_text())
    assert [table["title"].partition(",")[0] for table in tables] == [
        *(f"{name}: {measure}" for measure in fair.MEASURES for name in ("KTH", "Lublin")),
        "Turnaround relative to another policy",
    ]
    *rows, ahead = tables[0]["rows"]
    assert [row[0] for row in rows] == [*fair.UNRESIZED, *fair.RESIZING]
    assert set(ahead[1:]) <= {"none", *(row[0] for row in rows)}
    assert all("±" in cell for row in rows[len(fair.UNRESIZED) :] for cell in row[1:])
    assert rows[0][3:] == [""] * (len(fair.KINDS) - 2)
    kept = [json.loads(line) for line in (out / "fair-runs.jsonl").read_text().splitlines()]
    assert len(kept) == 4 * (1 + len(list(fair.cells())))
    turnarounds = {line["run"]: line["result"]["turnaround_s"] for line in kept}
    ratios = [
        turnarounds[f"Lublin, {part}, curve, kind 100%, 0.5:5, rho to .9"]
        / turnarounds[f"Lublin, {part}, fair, kind 100%, 0.5:5, rho to .9"]
        for part in (1, 2)
    ]
    pairs = {row[0]: row[1:] for row in tables[-1]["rows"]}
    assert pairs["100%, 0.5:5, rho to .9: curve / fair"][1] == interval(ratios).text() != "1.00 ± 0.00"
    assert len(pairs) == len(fair.KINDS) * len(fair.PAIRS)
    assert (out / "fair-kth.svg").exists()
    capsys.readouterr()


def test_a_kind_says_which_jobs_are_malleable_and_how() -> None:
    few, wide = (
        fair.workload_for(fair.Run("Lublin", 1, "easy", kind), None) for kind in ("40%", "100%, 0.5:5")
    )
    assert sum(job.is_malleable for job in few.jobs) == round(0.4 * len(few.jobs))
    assert (
        max(job.high / job.nodes for job in few.jobs) <= 2.0 < max(job.high / job.nodes for job in wide.jobs)
    )
    plain = fair.workload_for(fair.Run("Lublin", 1, "easy"), None)
    assert not any(job.is_malleable for job in plain.jobs)


def test_without_traces_the_experiment_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a folder with KTH-SP2"):
        fair.run(Output(tmp_path / "out", "fair"), 1, tmp_path)


def test_agreement_is_played_for_each_share_of_malleable_jobs_and_each_drawing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(malleability, "CASES", (fair.CASES[0], fair.CASES[-1]))
    monkeypatch.setattr(malleability, "SHARES", (0.0, 1.0))
    monkeypatch.setattr(malleability, "SEEDS", range(2))
    malleability.run(Output(tmp_path, "malleability"), 1, None)
    tables = {
        table["title"].partition(",")[0]: table
        for table in json.loads((tmp_path / "malleability.json").read_text())
    }
    assert list(tables) == [f"Lublin: {measure}" for measure in malleability.MEASURES]
    for policy, none, all_of_them in tables["Lublin: turnaround"]["rows"]:
        assert policy in malleability.POLICIES
        assert none == "1.00 ± 0.00"
        assert float(all_of_them.split()[0]) < 1.0
    with pytest.raises(ValueError, match="malleability needs a folder with KTH-SP2"):
        malleability.run(Output(tmp_path / "out", "malleability"), 1, tmp_path)
    capsys.readouterr()


def test_batches_are_played_with_and_without_what_resizes_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(elastic, "BATCHES", 2)
    elastic.run(Output(tmp_path, "elastic"), 1, None)
    tables = {
        table["title"].partition(",")[0]: table
        for table in json.loads((tmp_path / "elastic.json").read_text())
    }
    makespans = {row[0]: row for row in tables["makespan [s]"]["rows"]}
    free, costly = makespans["elastic:ready-s=6"], makespans["elastic:ready-s=6, resizes cost"]
    assert free[1] == f"{costly[1]} (1168 P)"
    assert int(free[6].split()[0]) < int(costly[6].split()[0])
    assert free[6].endswith("(1006 P)")
    shrinks = {row[0]: row for row in tables["shrinks"]["rows"]}
    assert shrinks["elastic:ready-s=6"][2].endswith("(0.78 P)")
    gains = tables["Turnaround relative to that of the same jobs if all are rigid"]["rows"]
    assert {row[-1] == "" for row in gains if row[0].endswith("rigid jobs")} == {True}
    assert {"±" in row[-1] for row in gains if row[0].endswith("malleable jobs")} == {True}
    assert (tmp_path / "elastic-makespan.svg").exists()
    capsys.readouterr()


def test_tables_have_names_of_rows_and_columns_intervals_and_a_figure(tmp_path: Path) -> None:
    values = {("a", 1): [1.0, 2.0], ("a", 2): [3.0, 3.0], ("b", 1): [5.0, 6.0], ("b", 2): [3.0, 4.0]}

    def cell(row: str, column: int) -> str:
        return frame.beside(interval(values[row, column]).text(1), 7 if row == "b" else None)

    table = frame.grid("Title", "who", {"A": "a", "B": "b"}, {"one": 1, "two": 2}, cell)
    assert table.header == ("who", "one", "two")
    assert table.rows[0] == ("A", "1.5 ± 6.4", "3.0 ± 0.0")
    assert table.rows[1][1] == "5.5 ± 6.4 (7 P)"
    by_column = [{name: values[name.lower(), column] for name in "AB"} for column in (1, 2)]
    assert frame.with_winners(table, by_column).rows[-1] == ("ahead of all others", "A", "none")
    Output(tmp_path, "frame").figure("frame", lambda figure: frame.draw(table, figure))
    assert (tmp_path / "frame.svg").exists()
