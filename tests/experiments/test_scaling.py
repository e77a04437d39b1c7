import json
from pathlib import Path

import pytest

from mallob_py.experiments import scaling


def test_each_node_is_counted_once() -> None:
    bag = scaling.SampledTree(12).first_bag()
    while not bag.is_empty():
        bag.process(1 << 20)
    assert scaling.measure(scaling.Run(12, 24, 0)).nodes == bag.take_result()


def test_speedups_are_over_the_same_tree_on_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "DEPTHS", (12,))
    monkeypatch.setattr(scaling, "WORKERS", (1, 4))
    monkeypatch.setattr(scaling, "SEEDS", 2)
    scaling.run(tmp_path)
    (table,) = json.loads((tmp_path / "scaling.json").read_text())
    alone, four = table["rows"]
    assert alone[2:] == ["1.00 ± 0.00", "0 ± 0"]
    assert 2.0 < float(four[2].split()[0]) < 4.0
    assert float(four[3].split()[0]) >= 3, "each of the others has borrowed"
    runs = [json.loads(line)["result"] for line in (tmp_path / "scaling-runs.jsonl").read_text().splitlines()]
    nodes = sorted(run["nodes"] for run in runs)
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3], "two trees, each counted twice alike"
    capsys.readouterr()
