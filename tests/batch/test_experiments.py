"""The experiments that play many policies: their tables, of small traces, and their figures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mallob_py.batch.experiments import agreement, cp, elastic, fair
from mallob_py.batch.experiments.traces import Trace
from mallob_py.batch.workload.elastisim import Statistics
from mallob_py.experiments.output import Output


def test_all_policies_are_played_on_the_parts_of_traces_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kth = Trace("KTH", fair.CASES[0].trace.file, 8)
    case = fair.Case(kth, (5, 20), (0, 30), (0, 12))
    monkeypatch.setattr(fair, "CASES", (case, fair.CASES[1]))
    lines = [
        f"{number} {9 * number} -1 {20 + 11 * number % 40} {1 + number % 8} -1 -1 {1 + number % 8} 90 -1"
        " 1 1 1 1 1 1 -1 -1\n"
        for number in range(1, 31)
    ]
    (tmp_path / kth.file).write_bytes(gzip.compress("".join(lines).encode()))
    out = tmp_path / "out"
    fair.run(Output(out, "fair"), 1, tmp_path)
    tables = json.loads((out / "fair.json").read_text())
    assert [table["title"].partition(":")[0] for table in tables] == [
        "Mean turnaround, relative to EASY",
        "Bounded slowdown, relative to EASY",
        "All jobs malleable",
        "KTH, 2 other parts, from rows 0, 12",
        "KTH, other parts",
        "KTH, rows 5 to 19, 8 nodes",
        "KTH, rows 5 to 19, 8 nodes",
        "All jobs malleable",
        "Least mean turnaround",
    ]
    turnarounds = {(row[0], row[1]): row[2:] for row in tables[5]["rows"]}
    *of_others, ahead = tables[3]["rows"]
    assert all("±" in cell for row in of_others for cell in row[1:])
    assert set(ahead[1:]) <= {"none", *(row[0] for row in of_others)}
    assert [row[0] for row in tables[4]["rows"]] == [row[0] for row in of_others]
    shown = {row[0]: row[1:] for row in tables[0]["rows"]}
    assert tables[0]["header"] == ["policy", "KTH 0%", "KTH 40%", "KTH 100%", "KTH JVM"]
    last, with_costs = turnarounds["fair", "0"][-1], turnarounds["fair", "JVM"][-1]
    assert shown["fair"][2:] == [f"{float(last):.2f}", f"{float(with_costs):.2f}"]
    assert shown["fcfs"][1:] == ["", "", ""] != shown["backfilling"][1:]
    by_definition = {row[0]: row[1:] for row in tables[2]["rows"]}
    assert tables[2]["header"][1:] == ["KTH slowdown", "KTH bounded", "KTH stretched", "KTH str. bounded"]
    static, stretched = by_definition["fair"][1], by_definition["fair"][3]
    assert shown["fair"][2] != static == next(row for row in tables[1]["rows"] if row[0] == "fair")[3]
    assert static != stretched
    assert turnarounds["easy", ""] == ["1.000"] * len(fair.SHARES)
    # Without malleable jobs it is EASY, whatever resizes cost; with them, these make a difference.
    assert turnarounds["fair", "0"][0] == turnarounds["fair", "JVM"][0] == "1.000"
    assert turnarounds["fair", "0"][-1] != turnarounds["fair", "JVM"][-1]
    kept = [json.loads(line) for line in (out / "fair-runs.jsonl").read_text().splitlines()]
    assert len(kept) == len(fair.runs_of("KTH")) + len(fair.runs_of_others(case))
    assert {one["result"]["metrics"]["jobs"] for one in kept} == {15}
    assert (out / "fair-kth.svg").exists()
    capsys.readouterr()
    fair.run(Output(out, "fair"), 1, tmp_path, full=True)
    assert "KTH, rows 0 to 29" in (printed := capsys.readouterr().out)
    assert "other parts, from" not in printed


def test_without_traces_the_experiment_says_what_it_needs(tmp_path: Path) -> None:
    for traces in (None, tmp_path):
        with pytest.raises(ValueError, match="needs a folder with KTH-SP2"):
            fair.run(Output(tmp_path / "out", "fair"), 1, traces)


def test_batches_are_played_with_and_without_what_resizes_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(elastic, "BATCHES", 2)
    elastic.run(Output(tmp_path, "elastic"), None, None)
    makespans = {row[0]: row for row in json.loads((tmp_path / "elastic.json").read_text())[0]["rows"]}
    free, costly = makespans["elastic:ready-s=6"], makespans["elastic:ready-s=6, resizes cost"]
    assert free[1] == f"{costly[1]} (1168)"
    (all_free, _, _, published), (all_costly, *_) = free[2].split(), costly[2].split()
    assert int(all_free) < int(all_costly)
    assert published == "(1006)"
    tables = {table["title"]: table["rows"] for table in json.loads((tmp_path / "elastic.json").read_text())}
    orders = {(row[0], row[1]): row[2:] for row in tables["Orders per malleable job, resizes for nothing"]}
    assert orders["elastic:ready-s=6", "20%"][1::2] == [0.78, 0.96]
    gains = tables["Turnaround over that of the same jobs where all are rigid"]
    assert {row[3] == "" for row in gains if row[1] == "100%"} == {True}
    assert {row[3] == "" for row in gains if row[1] != "100%"} == {False}
    assert (tmp_path / "elastic.svg").exists()
    capsys.readouterr()


def test_figures_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(tmp_path, "figures")
    ours = {cell: Statistics(10.0, 20.0, 30.0, 40.0, 0.5) for cell in agreement.PUBLISHED}
    output.figure("agreement", lambda figure: agreement.draw(ours, figure))
    result = cp.Measured(1.0, 2, 3.0, 0.1, 0.1)
    runs = {cp.Run(instance, policy): result for instance in cp.INSTANCES for policy in cp.POLICIES}
    output.figure("cp", lambda figure: cp.draw(runs, figure))
    assert {path.name for path in tmp_path.glob("*.svg")} == {"agreement.svg", "cp.svg"}
    capsys.readouterr()
