import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from workloads import rigid

from mallob_py.batch.experiments import sd
from mallob_py.batch.job import Kind
from mallob_py.batch.policies.backfilling import Fcfs
from mallob_py.batch.simulator import simulate
from mallob_py.experiments.output import Output


def trace(folder: Path, jobs: list[tuple[int, int, int, int]]) -> None:
    """Write a trace of Curie with jobs given as (submission, cores, run time, estimate)."""
    lines = [
        f"{number} {at} -1 {run} {cores} -1 -1 {cores} {estimate} -1 1 1 1 -1 1 10 -1 -1\n"
        for number, (at, cores, run, estimate) in enumerate(jobs, 1)
    ]
    (folder / sd.CURIE.file).write_bytes(gzip.compress("".join(lines).encode()))


def test_jobs_of_unknown_size_or_no_time_count_as_the_least(tmp_path: Path) -> None:
    trace(tmp_path, [(0, -1, 50, 60), (1, 17, 0, 60)])
    workload = sd.load("Curie", tmp_path)
    assert [(job.nodes, job.is_malleable) for job in workload.jobs] == [(1, True), (2, True)]
    assert [truth.run_s for truth in workload.truths] == [50, 1]


def test_the_slowdown_is_that_over_the_run_time_of_the_trace() -> None:
    schedule = simulate(rigid((0, 1, 10), (0, 1, 5), nodes=1), Fcfs())
    found = sd.measured(schedule)
    assert (found.makespan_s, found.response_s, found.slowdown) == (15.0, 12.5, (1 + 3) / 2)
    assert (found.guests, found.mates, found.responses_s, found.slowdowns) == (0, 0, [10.0, 15.0], [1.0, 3.0])


def test_a_run_is_the_policy_that_its_form_says() -> None:
    policies = {form: sd.Run("Curie", form, None).policy().name for form in sd.FORMS}
    assert policies["listing"] == "sd:dynamic=yes,depth=10,waits=map"
    assert policies["head"] == "sd:dynamic=yes,depth=10,"
    assert sd.Run("Curie", "listing", math.inf).name() == "Curie, form listing, cutoff inf"


def test_generated_workloads_have_small_jobs_and_the_load_that_is_said() -> None:
    workload = sd.generated(1, exact=False)
    assert {job.kind for job in workload.jobs} == {Kind.MALLEABLE}
    assert max(job.nodes for job in workload.jobs) == sd.LARGEST
    work_s = sum(job.nodes * truth.run_s for job, truth in zip(workload.jobs, workload.truths, strict=True))
    span_s = workload.jobs[-1].submit_s - workload.jobs[0].submit_s
    assert work_s / (sd.NODES * span_s) == pytest.approx(sd.LOAD, rel=1e-3)
    exact = sd.generated(1, exact=True)
    assert all(job.estimate_s == truth.run_s for job, truth in zip(exact.jobs, exact.truths, strict=True))
    assert any(
        job.estimate_s > truth.run_s for job, truth in zip(workload.jobs, workload.truths, strict=True)
    )


def test_kinds_are_by_nodes_and_run_time() -> None:
    ones = np.ones(3)
    kinds = sd.kinds_of(np.array([1, 2, 1000]), np.array([60.0, 7200.0, 1e6]), 5 * ones, ones, ones)
    assert kinds.counts[0] == [1, 0, 1, 0, 0, 0]
    assert kinds.counts[5] == [0, 0, 0, 0, 0, 1]
    assert kinds.slowdowns[0] == [5.0, 0.0, 5.0, 0.0, 0.0, 0.0]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JOBS", 60), ("NODES", 16), ("LARGEST", 8), ("SEEDS", (1, 2))):
        monkeypatch.setattr(sd, name, value)


@pytest.mark.usefixtures("small")
def test_all_rows_of_the_experiment_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    jobs = [(0, 80640, 1000, 2000), *[(at, 40000, 10, 60) for at in range(1, 9)]]
    trace(folder, jobs)
    sd.run(Output(tmp_path / "out", "sd"), 1, tmp_path)
    tables = json.loads((tmp_path / "out" / "sd.json").read_bytes())
    assert [table["title"].partition(" by nodes")[0] for table in tables] == [
        "EASY, with which SD-Policy is compared",
        "SD-Policy on Curie, relative to EASY",
        "SD-Policy on workload 1, relative to EASY",
        "SD-Policy on workload 2, relative to EASY",
        "The worst runtime model relative to the ideal one, dynamic cut-off",
        "Curie, slowdown",
        "Curie, run time",
        "Curie, wait",
        "Curie, mean slowdown by day of submission",
    ]
    assert [row[0] for row in tables[0]["rows"]] == ["Curie, published", "Curie, here"]
    assert len(tables[1]["rows"]) == 1 + len(sd.ON_TRACES) * (len(sd.CUTOFFS) + 1)
    for generated in tables[2:4]:
        labels = [row[0] for row in generated["rows"]]
        assert labels[:2] == ["listing, 5", "listing, 10"]
        assert len(set(labels)) == len(sd.FORMS) * (len(sd.CUTOFFS) + 1)
        assert all("±" in cell for row in generated["rows"] for cell in row[1:5])
    assert "EASY" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_without_traces_it_plays_what_is_generated_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"needs a folder with CEA-Curie.* or RICC"):
        sd.run(Output(tmp_path / "out", "sd"), 1, tmp_path)
    sd.run(Output(tmp_path / "out", "sd"), 1, None)
    assert "SD-Policy on workload 2" in capsys.readouterr().out
