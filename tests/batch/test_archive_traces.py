"""Traces with headers and jobs as archives have them, played under all policies: no job is lost."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mallob_py.batch.registry import policy_names, policy_of
from mallob_py.cli.main import main

_POLICIES = [name for name in policy_names() if not getattr(policy_of(name), "shares_nodes", False)]
_JOBS = 160
_TEXTS = "; Version: 2.2\n; UnixStartTime: 1163199901\n; TimeZoneString: US/Pacific\n; MaxQueues: 2\n"
#: kind of machine -> lines of its header, number of processors, processors per node, number of nodes read by
#: mallob-py
_MACHINES = {
    "whole nodes of 8": ("; MaxNodes: 1152\n; MaxProcs: 9216\n; Partition: 1 pbatch", 9216, 8, 1152),
    "whole nodes of 4": ("; MaxNodes: 1002\n; MaxProcs: 4008\n; Note: 1,024 with logins", 4008, 4, 1002),
    "with a run limit": ("; MaxNodes: 144 (two more interactive)\n; MaxProcs: 1,152", 1152, 8, 144),
    "a grid of clusters": ("; MaxNodes: 14 (clusters, 806 CPUs)\n; MaxProcs: 806", 806, 1, 806),
}


def _rows(processors: int, unit: int) -> np.ndarray:
    """Draw jobs: in bursts, out of order, around a gap of years; the last jobs can never run."""
    draw = np.random.default_rng(processors)
    rows = np.full((_JOBS, 18), -1)
    rows[:, 0] = np.arange(1, _JOBS + 1)
    rows[:, 1] = draw.integers(0, 30, _JOBS) * 600
    rows[_JOBS // 2 :, 1] += 10**8
    rows[:, 3] = draw.choice([1, 1, 600, 9_000, 86_400, 864_000], _JOBS)
    rows[:, 4] = unit * np.minimum(2 ** draw.integers(0, 10, _JOBS), processors // unit)
    rows[:, 7] = draw.choice([-1, unit, processors], _JOBS)
    rows[:, 8] = draw.choice([-1, 0, 60, 10_000, 129_600], _JOBS)
    rows[:, 10] = draw.choice([-1, 0, 1, 5], _JOBS)
    rows[:, 11:16] = draw.integers(-1, 4, (_JOBS, 5))
    rows[:, 16:] = draw.integers(-1, 90, (_JOBS, 2))
    rows[-4, [4, 7]] = 0
    rows[-3, 3] = 0
    rows[-2, 3] = -1
    rows[-1, 4] = processors + unit
    return draw.permutation(rows)


@pytest.mark.parametrize("machine", _MACHINES)
def test_all_jobs_of_a_trace_end_or_are_rejected_with_a_reason(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, processors, unit, nodes = _MACHINES[machine]
    rows = _rows(processors, unit)
    lines = [" ".join(f"{field:>6}" for field in row) for row in rows.tolist()]
    lines.insert(_JOBS // 3, "; a comment among the jobs\n;")
    path = tmp_path / "trace.swf"
    path.write_text(f"{_TEXTS}{header}\n" + "\n".join(lines) + "\n")
    words = ["curve:curve=fitted", "--malleable", "50%", "--output", str(tmp_path / "out"), "--jobs", "1"]
    assert main(["batch", "simulate", str(path), "--policy", *_POLICIES, *words]) == 0
    said = capsys.readouterr()
    assert f"{_JOBS - 4} jobs, {nodes} nodes" in said.out
    assert "1 without processors, 2 without run time, 1 larger than the machine" in said.err
    for policy in _POLICIES:
        with (tmp_path / "out" / policy / "jobs.csv").open() as file:
            told = list(csv.DictReader(file))
        assert {int(row["job_id"]) for row in told} == set(range(1, _JOBS + 1))
        assert Counter(row["final_state"] for row in told) == {
            "COMPLETED_SUCCESSFULLY": _JOBS - 4,
            "REJECTED": 4,
        }
        ran = [row for row in told if row["final_state"] != "REJECTED"]
        assert all(float(row["starting_time"]) >= float(row["submission_time"]) for row in ran)
        assert all(float(row["finish_time"]) > float(row["starting_time"]) for row in ran)
