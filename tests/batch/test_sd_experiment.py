from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from workloads import rigid

from mallob_py.batch.experiments import sd
from mallob_py.batch.policies.backfilling import Fcfs
from mallob_py.batch.simulator import simulate
from mallob_py.experiments.output import Output


def trace(folder: Path, case: sd.Case, jobs: list[tuple[int, int, int, int]]) -> None:
    """Jobs as (submission, cores, run time, estimate), all in the partition of Curie."""
    lines = [
        f"{number} {at} -1 {run} {cores} -1 -1 {cores} {estimate} -1 1 1 1 -1 1 10 -1 -1\n"
        for number, (at, cores, run, estimate) in enumerate(jobs, 1)
    ]
    (folder / case.trace.file).write_bytes(gzip.compress("".join(lines).encode()))


def test_jobs_of_unknown_size_or_no_time_count_as_the_least(tmp_path: Path) -> None:
    curie = sd.CASES[0]
    trace(tmp_path, curie, [(0, -1, 50, 60), (1, 17, 0, 60)])
    workload = sd.load(curie, tmp_path)
    assert [(job.nodes, job.is_malleable) for job in workload.jobs] == [(1, True), (2, True)]
    assert [truth.run_s for truth in workload.truths] == [50, 1]


def test_the_slowdown_is_that_over_the_run_time_of_the_trace() -> None:
    schedule = simulate(rigid((0, 1, 10), (0, 1, 5), nodes=1), Fcfs())
    assert sd.measured(schedule) == sd.Measured(15.0, 12.5, (1 + 3) / 2, 0, 0, 0.0, [10.0, 15.0], [1.0, 3.0])


def test_all_rows_of_the_experiment_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    jobs = [(0, 80640, 1000, 2000), *[(at, 40000, 10, 60) for at in range(1, 9)]]
    trace(folder, sd.CASES[0], jobs)
    sd.run(Output(tmp_path / "out", "sd"), 1, tmp_path)
    tables = json.loads((tmp_path / "out" / "sd.json").read_bytes())
    assert [table["title"] for table in tables] == [
        "What SD-Policy is compared with",
        "SD-Policy on Curie, relative to EASY",
    ]
    assert [row[0] for row in tables[0]["rows"]] == ["Curie, published", "Curie, here"]
    rows = tables[1]["rows"]
    assert [row[0] for row in rows].count("dyn") == 7
    assert len({tuple(row[:3]) for row in rows}) == len(rows) == 32
    assert "EASY" in capsys.readouterr().out


def test_without_traces_it_says_what_is_missing(tmp_path: Path) -> None:
    for traces in (None, tmp_path):
        with pytest.raises(ValueError, match=r"needs a folder with CEA-Curie.* or RICC"):
            sd.run(Output(tmp_path / "out", "sd"), 1, traces)
