"""The experiment of SD-Policy in detail: its workloads, kinds of jobs and tables, small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mallob_py.batch.experiments import sharing
from mallob_py.batch.job import Kind
from mallob_py.experiments.output import Output


def test_generated_workloads_have_small_jobs_and_the_load_that_is_said() -> None:
    workload = sharing.generated(1, exact=False)
    assert {job.kind for job in workload.jobs} == {Kind.MALLEABLE}
    assert max(job.nodes for job in workload.jobs) == sharing.LARGEST
    work_s = sum(job.nodes * truth.run_s for job, truth in zip(workload.jobs, workload.truths, strict=True))
    span_s = workload.jobs[-1].submit_s - workload.jobs[0].submit_s
    assert work_s / (sharing.NODES * span_s) == pytest.approx(sharing.LOAD, rel=1e-3)
    exact = sharing.generated(1, exact=True)
    assert all(job.estimate_s == truth.run_s for job, truth in zip(exact.jobs, exact.truths, strict=True))
    assert any(
        job.estimate_s > truth.run_s for job, truth in zip(workload.jobs, workload.truths, strict=True)
    )


def test_kinds_are_by_nodes_and_run_time() -> None:
    ones = np.ones(3)
    kinds = sharing.kinds_of(np.array([1, 2, 1000]), np.array([60.0, 7200.0, 1e6]), 5 * ones, ones, ones)
    assert kinds.counts[0] == [1, 0, 1, 0, 0, 0]
    assert kinds.counts[5] == [0, 0, 0, 0, 0, 1]
    assert kinds.slowdowns[0] == [5.0, 0.0, 5.0, 0.0, 0.0, 0.0]


def test_tables_have_all_forms_relative_to_easy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sharing, "JOBS", 60)
    monkeypatch.setattr(sharing, "NODES", 16)
    monkeypatch.setattr(sharing, "LARGEST", 8)
    monkeypatch.setattr(sharing, "SEEDS", (1, 2))
    sharing.run(Output(tmp_path, "sharing"), 1, None)
    generated, models = json.loads((tmp_path / "sharing.json").read_text())
    assert [row[:3] for row in generated["rows"][:2]] == [
        [1, "paper's listing", "10"],
        [1, "paper's listing", "dyn"],
    ]
    assert len(generated["rows"]) == 2 * len(sharing.FORMS) * len(sharing.CUTOFFS)
    assert all("±" in cell for row in generated["rows"] for cell in row[3:])
    assert [row[0] for row in models["rows"]] == ["workload 1"] * 4 + ["workload 2"] * 4
    capsys.readouterr()
