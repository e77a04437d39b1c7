"""The metrics of the experiment cp, compared with values computed by hand."""

from pathlib import Path

import msgspec
import pytest
from workloads import sharing

from mallob_py.batch.experiments import cp
from mallob_py.batch.policies.pbs import PbsFifo
from mallob_py.batch.simulator import simulate
from mallob_py.experiments.output import Output


def test_waits_are_weighed_by_the_queue() -> None:
    workload = sharing((0, 4, (4.0, 0.0), 5400), (0, 4, (4.0, 0.0), 1), (0, 4, (4.0, 0.0), 1))
    queues = ("debug", "debug", "parallel")
    jobs = [
        msgspec.structs.replace(job, queue=queue) for job, queue in zip(workload.jobs, queues, strict=True)
    ]
    schedule = simulate(msgspec.structs.replace(workload, jobs=jobs), PbsFifo())
    result = cp.measured(schedule, [0.1, 0.2, 0.6])
    assert result.weighted_wait == pytest.approx(5400 / 3600 + 5401 / 21600)
    assert (result.late, result.tardiness_s) == (1, 1800.0)
    assert (result.overhead_s, result.overhead_median_s) == (pytest.approx(0.3), 0.2)


def test_without_the_logs_the_experiment_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs a folder with eurora_pahpcsim\.tar\.gz"):
        cp.run(Output(tmp_path / "out", "cp"), 1, tmp_path)


def test_a_row_has_the_times_of_decisions_in_milliseconds() -> None:
    runs = {
        cp.Run("hist", policy): cp.Measured(1.5, 2, 3.4, 0.25, 0.00004, 10, 512.0) for policy in cp.POLICIES
    }
    table = cp.table(runs)
    assert table.rows[0] == ("hist", "pbsfifo", 1.5, 2, 3, 512.0, 250.0, pytest.approx(0.04))
    assert table.rows[-1][:3] == ("published, test 2", "CP", 2441.3)


def test_the_published_model_is_named_and_a_winner_only_where_each_difference_says_so() -> None:
    names = [f"hist_200_2014040{day}_1" for day in (1, 2, 3)]
    runs = {
        cp.Run(name, policy): cp.Measured(weighted, 0, 0.0, 0.1, 0.1, 100, 512.0)
        for name, day in zip(names, (1.0, 10.0, 100.0), strict=True)
        for policy, weighted in zip(cp.POLICIES, (900.0, 600.0, day + 2, day + 1, day), strict=True)
    }
    assert "cp:learn=no (published model)" in {row[1] for row in cp.table(runs).rows}
    (row,) = cp.by_size(runs).rows
    assert row[:2] == (200, 3)
    assert row[2] == "9.000 ± 0.000"
    assert row[-1] == "cp"
