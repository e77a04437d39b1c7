"""Start by start what other simulators say of public traces, where these are at hand.

`MALLOB_PY_TRACES` names a folder with `oracle/` and `traces/`; without it, these tests are skipped.
"""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import pytest

from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import EventOrder, simulate
from mallob_py.batch.workload.swf import read_swf, workload_of

_FOLDER = Path(os.environ.get("MALLOB_PY_TRACES", "/nonexistent"))
pytestmark = pytest.mark.skipif(
    not (_FOLDER / "oracle").is_dir(), reason="MALLOB_PY_TRACES names no folder with the oracles' traces"
)


@pytest.mark.parametrize(
    ("trace", "nodes", "name"),
    [
        ("kth5k", 100, "fcfs"),
        ("kth5k", 100, "easy"),
        ("kth5k", 100, "conservative"),
        ("hpc2n10k", 240, "fcfs"),
        ("hpc2n10k", 240, "easy"),
    ],
)
def test_every_start_is_that_of_pyss(trace: str, nodes: int, name: str) -> None:
    policy = policy_of(name)
    workload = workload_of(read_swf(_FOLDER / "oracle" / f"{trace}.swf.gz"))
    with gzip.open(_FOLDER / "oracle" / f"pyss_{trace}_{policy.name}_M{nodes}.csv.gz", "rt") as file:
        starts = {int(row["job"]): float(row["start"]) for row in csv.DictReader(file)}
    outcome = simulate(workload, policy, order=EventOrder.PYSS)
    ours = {job.number: start for job, start in zip(workload.jobs, outcome.starts_s, strict=True)}
    assert ours == starts
