"""The experiment that compares evolving with rigid and malleable jobs; the slow test runs real bags."""

import json
from pathlib import Path

import pytest

from mallob_py.batch.experiments import bags, evolving
from mallob_py.batch.job import Kind
from mallob_py.experiments.output import Output


def test_a_job_wishes_for_the_nodes_that_its_rest_pays_for() -> None:
    wishes = evolving.wishes_of(90.0, pays_s=10.0)
    assert [wish.nodes for wish in wishes] == [9, 6, 4, 2, 1]
    assert [round(wish.progress, 3) for wish in wishes] == [0.0, 0.333, 0.556, 0.704, 0.802]
    assert [(wish.progress, wish.nodes) for wish in evolving.wishes_of(5.0, pays_s=10.0)] == [(0.0, 1)]


def test_all_kinds_have_the_same_work() -> None:
    rigid, malleable, evolves = (evolving.workload_of(kind, 3) for kind in evolving.KINDS)
    assert {job.kind for job in rigid.jobs} == {Kind.RIGID}
    assert malleable.jobs == evolves.jobs
    assert [truth.run_s for truth in rigid.truths] == [truth.run_s for truth in evolves.truths]
    assert all(truth.wishes for truth in evolves.truths)


def test_batches_are_played_by_kind_with_differences_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evolving, "BATCHES", 2)
    evolving.run(Output(tmp_path, "evolving"), 1, None)
    tables = json.loads((tmp_path / "evolving.json").read_text())
    assert [table["title"] for table in tables] == list(evolving.POLICIES)
    easy = {row[0]: row[1:] for row in tables[0]["rows"]}
    assert list(easy) == list(evolving.MEASURES)
    # EASY resizes no job: malleable jobs behave like rigid jobs, evolving jobs do not.
    assert [easy["resizes per job"][place] == "0.0 ± 0.0" for place in (0, 1, 2)] == [True, True, False]
    capsys.readouterr()


@pytest.mark.slow
def test_real_bags_evolve_beside_rigid_and_malleable_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = bags.Program("QUEENS12", ("QUEENS", "--set", "n=12"), "value", 14200)
    for name, value in (("PROGRAMS", (small,)), ("JOBS", 2), ("_TIMES", 1), ("_REQUIRED", 1000.0)):
        monkeypatch.setattr(bags, name, value)
    monkeypatch.setattr(evolving, "LIVE_SEEDS", (1,))
    evolving.run(Output(tmp_path, "evolving"), None, None, live=True)
    (table,) = json.loads((tmp_path / "evolving.json").read_text())
    assert [row[0] for row in table["rows"]] == list(evolving.LIVE_MEASURES)
    assert all(float(cell) > 0.0 for cell in table["rows"][0][1:4])
    capsys.readouterr()
