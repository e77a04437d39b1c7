"""Start by start what other simulators say of public traces, where these are at hand.

`MALLOB_PY_TRACES` names a folder with `oracle/` and `traces/`; without it, these tests are skipped.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mallob_py.batch.experiments import sd
from mallob_py.batch.policies.backfilling import Easy
from mallob_py.batch.policies.sd import SdPolicy
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import EventOrder, simulate
from mallob_py.batch.workload.elastisim import read_elastisim, statistics_of
from mallob_py.batch.workload.lublin import ANY, lublin
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
    schedule = simulate(workload, policy, order=EventOrder.PYSS)
    ours = {job.number: start for job, start in zip(workload.jobs, schedule.starts_s, strict=True)}
    assert ours == starts


def test_every_start_of_rigid_easy_is_that_of_elastisim() -> None:
    workload = read_elastisim(_FOLDER / "oracle" / "pecs23_S0_rigid_jobs.json.gz")
    with gzip.open(_FOLDER / "oracle" / "elastisim_pecs23_S0_rigid_easy.csv.gz", "rt") as file:
        starts = [float(row["Start Time"]) for row in csv.DictReader(file)]
    schedule = simulate(workload, policy_of("rigid-easy:quirks=pecs23"), order=EventOrder.ELASTISIM)
    assert [float(f"{start_s:.6g}") for start_s in schedule.starts_s] == starts


@pytest.mark.parametrize(
    ("jobs", "policy", "published"),
    [
        ("rigid", "rigid-easy", (209519.4583, 3357.7957, 212877.2566, 3008130, 0.8609)),
        ("rigid", "agreement", (209519.4583, 3357.7957, 212877.2566, 3008130, 0.8609)),
        ("malleable100", "agreement", (9874.8274, 7365.3145, 17240.1424, 2602540, 0.9666)),
    ],
)
def test_all_published_digits_of_the_agreement_policy_come_out(
    jobs: str, policy: str, published: tuple[float, ...]
) -> None:
    workload = read_elastisim(_FOLDER / "oracle" / f"pecs23_S0_{jobs}_jobs.json.gz")
    schedule = simulate(workload, policy_of(f"{policy}:quirks=pecs23"), order=EventOrder.ELASTISIM)
    found = statistics_of(schedule)
    assert (
        round(found.wait_s, 4),
        round(found.job_time_s, 4),
        round(found.turnaround_s, 4),
        found.end_s,
        round(found.utilisation, 4),
    ) == published


@pytest.mark.parametrize(
    ("settings", "published"),
    [
        # As its publication describes it; 0.743 is what it tells of its best cut-off.
        ({"waits": "map", "counts_shared": False}, 0.743),
        # What a plain program that remembers nothing between decisions makes of it without the check.
        ({"check": False, "counts_shared": False, "again": False, "replan": False}, 0.529),
    ],
)
def test_sd_policy_comes_near_to_the_slowdown_on_ricc(settings: dict[str, Any], published: float) -> None:
    ricc = next(case for case in sd.CASES if case.name == "RICC")
    workload = sd.load(ricc, _FOLDER)
    easy = sd.measured(simulate(workload, Easy(depth=10))).slowdown
    found = sd.measured(simulate(workload, SdPolicy(math.inf, depth=10, **settings))).slowdown
    assert found / easy == pytest.approx(published, abs=0.02)


def test_lublins_jobs_are_like_those_of_its_program() -> None:
    theirs = read_swf(_FOLDER / "traces" / "lublin_256.swf.gz").rows
    ours = lublin(len(theirs), 256, 1, (ANY,))
    sizes = np.array([job.nodes for job in ours.jobs])
    runs = np.array([truth.run_s for truth in ours.truths])
    for made, published in ((sizes, theirs[:, 4]), (runs, theirs[:, 3])):
        # The largest difference of the two distributions, as Kolmogorov and Smirnov have it.
        values = np.unique(published)
        shares = [
            np.searchsorted(np.sort(them), values, side="right") / len(them) for them in (made, published)
        ]
        assert np.abs(shares[0] - shares[1]).max() < 0.025
