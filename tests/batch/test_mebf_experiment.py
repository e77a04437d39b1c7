import json
from pathlib import Path

import pytest

from mallob_py.batch.experiments import mebf
from mallob_py.batch.job import Job, Truth, Workload
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.experiments.output import Output


def test_a_case_says_what_its_workload_is_like() -> None:
    plain = mebf.workload_for(mebf.Case(100, 1.0, share=0.0), 1, None)
    case = mebf.Case(100, scalability="low", share=0.6, error=0.1)
    changed = mebf.workload_for(case, 1, None)
    assert sum(job.is_malleable for job in changed.jobs) == 60
    last, first = changed.jobs[-1].submit_s, changed.jobs[0].submit_s
    assert last - first == pytest.approx(0.75 * (plain.jobs[-1].submit_s - plain.jobs[0].submit_s))
    for job, truth, before in zip(changed.jobs, changed.truths, plain.truths, strict=True):
        assert truth.run_s == job.estimate_s == before.run_s
        if job.is_malleable:
            assert truth.speedup is not None
            assert 0.2 <= job.speedup.loss <= 0.3
            assert truth.speedup.loss == pytest.approx(job.speedup.loss + 0.1)
            assert (job.low, job.high) == ((job.nodes + 1) // 2, min(500, 5 * job.nodes))


def test_what_was_published_stands_in_the_columns_of_its_table() -> None:
    """Figures 13 and 14 of the paper show each setting of `gaps` at each scalability."""
    for study in mebf.STUDIES:
        assert set(study.published) <= {
            (variant, name) for variant in mebf.VARIANTS for name in study.columns
        }
    for title, jobs in (("Gaps, 1K", 1000), ("Gaps, 5K", 5000)):
        (columns,) = (study.columns for study in mebf.STUDIES if study.title == title)
        wanted = {mebf.Case(jobs, scalability=level, gaps=gaps) for level in mebf.RHO for gaps in mebf.GAPS}
        assert set(columns.values()) == wanted


def test_malleable_jobs_are_better_off_than_with_easy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mebf, "SEEDS", (1,))
    study = mebf.Study("Small", {"300": mebf.Case(300)}, {("spare", "300"): 49})
    monkeypatch.setattr(mebf, "STUDIES", (study,) * 4)
    mebf.run(Output(tmp_path, "mebf"), 1, None)
    (rows, *_) = (found["rows"] for found in json.loads((tmp_path / "mebf.json").read_bytes()))
    assert [row[0] for row in rows] == list(mebf.VARIANTS)
    assert all(int(row[1].split()[0]) > 10 for row in rows)
    assert "(49 P)" in rows[1][1]
    assert "(49 P)" in capsys.readouterr().out


def test_utilisation_over_time_is_that_of_each_tenth() -> None:
    jobs = [Job(0, 0.0, 4, 50.0), Job(1, 50.0, 2, 50.0)]
    schedule = simulate(Workload(jobs, [Truth(50.0)] * 2, 4), policy_of("easy"))
    found = mebf.measured(schedule)
    assert found.tenths == pytest.approx([1.0] * 5 + [0.5] * 5)
    assert found.utilisation == pytest.approx(0.75)


def test_jobs_of_traces_may_be_larger_than_the_generated_machine() -> None:
    nodes = 4 * mebf.NODES
    schedule = simulate(Workload([Job(0, 0.0, nodes, 10.0)], [Truth(10.0)], nodes), policy_of("easy"))
    assert mebf.measured(schedule).expands_by_size == (0,) * 5


def test_each_seed_counts_alike_in_the_expansions_by_first_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mebf, "SEEDS", (1, 2))
    runs = mebf.runs_of(mebf.Case(), mebf.Case().policy("spare"))
    numbers = ((1, 3, 0, 0, 0), (75, 25, 0, 0, 0))
    results = {
        run: mebf.Measured(1.0, 1.0, expands=sum(by_size), expands_by_size=by_size)
        for run, by_size in zip(runs, numbers, strict=True)
    }
    assert mebf.first_size("spare", 0, results).startswith("50 ±")
