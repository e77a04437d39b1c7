"""Files of a schedule: their columns, their numbers, and that pieces of resized jobs are all there."""

import csv
import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from workloads import malleable, rigid, rigid_workloads, sharing, sharing_workloads

from mallob_py.batch import pictures
from mallob_py.batch.job import Workload
from mallob_py.batch.metrics import NodePower, busy_of_jobs, energy_of
from mallob_py.batch.pictures import boxes_of, gantt, mean_over_steps, utilisation
from mallob_py.batch.policies.backfilling import Easy, Fcfs
from mallob_py.batch.policies.pbs import PbsFifo
from mallob_py.batch.policy import Action, Resize, Start, View, Wake
from mallob_py.batch.schedule_files import interval_set, write_schedule
from mallob_py.batch.simulator import Schedule, simulate
from mallob_py.batch.workload.swf import read_swf, workload_of

POWER = NodePower(idle_w=10.0, busy_w=50.0)


class GrowAtSix:
    """A policy that runs job 0 on 2 nodes, and on 4 from second 6 on."""

    name = "grow"
    wants_all_arrivals = False

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> list[Action]:
        return [Start(0, 2), Wake(6.0)] if view.queue else [Resize(0, 4)] if view.now_s == 6 else []


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def resized() -> Schedule:
    return simulate(malleable((0, 1, 2, 4, 10), nodes=5), GrowAtSix())


def test_a_job_has_the_row_that_batsim_gives_it(tmp_path: Path) -> None:
    write_schedule(simulate(rigid((0, 4, 10), (2, 3, 5, 8), nodes=4), Fcfs()), tmp_path, POWER)
    header = (tmp_path / "jobs.csv").read_text().splitlines()[0]
    assert header == (
        "job_id,workload_name,profile,submission_time,requested_number_of_resources,requested_time,success,"
        "final_state,starting_time,execution_time,finish_time,waiting_time,turnaround_time,stretch,"
        "allocated_resources,consumed_energy,metadata"
    )
    row = _rows(tmp_path / "jobs.csv")[1]
    assert row["job_id"] == "2"
    assert (row["submission_time"], row["requested_time"]) == ("2", "8")
    assert (row["starting_time"], row["execution_time"], row["finish_time"]) == ("10", "5", "15")
    assert (row["waiting_time"], row["turnaround_time"], row["stretch"]) == ("8", "13", "2.6")
    assert (row["allocated_resources"], row["consumed_energy"]) == ("0-2", str(3 * 5 * 50))
    assert (row["success"], row["final_state"]) == ("1", "COMPLETED_SUCCESSFULLY")


def test_a_job_that_can_never_run_has_the_row_of_a_rejected_one(tmp_path: Path) -> None:
    trace = tmp_path / "trace.swf"
    trace.write_text(
        "; MaxNodes: 4\n"
        "1 0 -1 10 2 -1 -1 2 10 -1 1 7 1 1 3 1 -1 -1\n"
        "2 5 -1 10 9 -1 -1 9 20 -1 1 7 1 1 3 1 -1 -1\n"
        "3 6 -1 -1 2 -1 -1 2 30 -1 0 7 1 1 3 1 -1 -1\n"
    )
    write_schedule(simulate(workload_of(read_swf(trace)), Fcfs()), tmp_path, POWER)
    done, *rejected = _rows(tmp_path / "jobs.csv")
    assert done["final_state"] == "COMPLETED_SUCCESSFULLY"
    # The first job that can run is submitted at second 1.
    asked = ("job_id", "submission_time", "requested_number_of_resources", "requested_time")
    assert [tuple(row[key] for key in asked) for row in rejected] == [
        ("3", "7", "2", "30"),
        ("2", "6", "9", "20"),
    ]
    came = ("success", "final_state", "starting_time", "stretch")
    assert {tuple(row[key] for key in came) for row in rejected} == {("0", "REJECTED", "", "")}
    assert "larger than the machine (4 nodes)" in rejected[1]["metadata"]
    summary = json.loads((tmp_path / "schedule.json").read_bytes())
    assert (summary["nb_jobs"], summary["nb_jobs_finished"], summary["nb_jobs_rejected"]) == (3, 1, 2)
    assert summary["success_rate"] == pytest.approx(1 / 3)


def test_nodes_that_jobs_share_take_their_power_once(tmp_path: Path) -> None:
    # Three units are on the first node for 10 s, then one unit for 5 s; the last job has a node of its own.
    jobs = [(0, 2, (1.0, 0.0), 10), (0, 1, (2.0, 0.0), 15), (0, 1, (), 5)]
    schedule = simulate(sharing(*jobs), PbsFifo())
    assert [set(nodes) for nodes in schedule.allocations][:2] == [{0}, {0}]
    assert energy_of(schedule, POWER).busy_node_s == 15 + 5
    assert list(busy_of_jobs(schedule)) == pytest.approx([20 / 3, 10 / 3 + 5, 5])
    write_schedule(schedule, tmp_path, POWER)
    assert float(_rows(tmp_path / "jobs.csv")[1]["consumed_energy"]) == pytest.approx(50 * (10 / 3 + 5), 1e-6)


@given(sharing_workloads())
def test_what_jobs_have_of_shared_nodes_is_what_these_are_busy(workload: Workload) -> None:
    schedule = simulate(workload, PbsFifo())
    moments = sorted({*schedule.starts_s, *schedule.ends_s})
    busy = 0.0
    for begin_s, end_s in itertools.pairwise(moments):
        runs = [piece.nodes for piece in schedule.all_pieces() if piece.start_s <= begin_s < piece.end_s]
        busy += (end_s - begin_s) * len({node for nodes in runs for node in nodes})
    assert sum(busy_of_jobs(schedule)) == pytest.approx(busy)


def test_a_resized_job_has_a_row_for_each_piece(tmp_path: Path, resized: Schedule) -> None:
    write_schedule(resized, tmp_path, POWER)
    assert [tuple(row.values()) for row in _rows(tmp_path / "allocations.csv")] == [
        ("1", "0", "6", "0-1"),
        ("1", "6", "8", "0-3"),
    ]
    (row,) = _rows(tmp_path / "jobs.csv")
    assert (row["allocated_resources"], row["consumed_energy"]) == ("0-3", str((6 * 2 + 2 * 4) * 50))
    # The job would take 10 s on its requested nodes; it ran for 8 s.
    assert (row["turnaround_time"], row["execution_time"], row["stretch"]) == ("8", "8", "0.8")
    told = json.loads((tmp_path / "schedule.json").read_bytes())
    assert (told["mean_slowdown"], told["max_slowdown"], told["mean_bounded_slowdown"]) == (0.8, 0.8, 1.0)
    assert (told["mean_stretched_slowdown"], told["max_stretched_slowdown"]) == (1.0, 1.0)
    assert told["mean_stretched_bounded_slowdown"] == 1.0


def test_energy_is_told_by_what_nodes_do(resized: Schedule) -> None:
    energy = energy_of(resized, POWER)
    assert (energy.busy_node_s, energy.idle_node_s) == (20, 8 * 5 - 20)
    assert (energy.busy_j, energy.idle_j, energy.total_j) == (1000, 200, 1200)


def test_the_summary_has_batsims_keys(tmp_path: Path) -> None:
    write_schedule(simulate(rigid((0, 4, 10), (2, 2, 5), nodes=4), Fcfs()), tmp_path, POWER)
    told = json.loads((tmp_path / "schedule.json").read_text())
    assert (told["nb_jobs"], told["makespan"], told["mean_waiting_time"]) == (2, 15, 4)
    assert told["max_slowdown"] == pytest.approx(13 / 5)
    assert told["consumed_joules"] == (40 + 10) * 50 + 10 * 10


@given(rigid_workloads())
def test_a_schedule_written_as_a_trace_is_the_same_workload_when_it_is_read(
    tmp_path_factory: pytest.TempPathFactory, workload: Workload
) -> None:
    folder = tmp_path_factory.mktemp("swf")
    schedule = simulate(workload, Easy())
    write_schedule(schedule, folder, POWER)
    swf = read_swf(folder / "schedule.swf", strict=True)
    again = workload_of(swf)
    assert again.nodes == workload.nodes
    first_s = workload.jobs[0].submit_s
    assert [(job.submit_s - 1, job.nodes, job.estimate_s, job.number) for job in again.jobs] == [
        (job.submit_s - first_s, job.nodes, job.estimate_s, job.number) for job in workload.jobs
    ]
    assert [truth.run_s for truth in again.truths] == [truth.run_s for truth in workload.truths]
    waits = [start_s - job.submit_s for job, start_s in zip(workload.jobs, schedule.starts_s, strict=True)]
    assert swf.rows[:, 2].tolist() == waits


@given(st.sets(st.integers(0, 40)))
def test_an_interval_set_means_the_nodes(nodes: set[int]) -> None:
    found = list[int]()
    for piece in interval_set(list(nodes)).split():
        first, _, last = piece.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(nodes)


def test_a_step_of_a_curve_is_the_mean_over_its_time() -> None:
    spans = np.array([(0.0, 3.0, 2.0), (1.0, 4.0, 1.0)])
    assert mean_over_steps(spans, np.array([0.0, 2.0, 4.0])) == pytest.approx([2.5, 2.0])


def _tags(picture: str) -> list[str]:
    return [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(picture).iter()]


def test_a_gantt_chart_has_a_box_as_long_and_as_wide_as_each_piece(resized: Schedule) -> None:
    boxes, jobs = boxes_of(resized)
    assert boxes.tolist() == [[0.0, 6.0, 0, 2], [6.0, resized.ends_s[0], 0, 4]]
    assert jobs.tolist() == [0, 0]
    assert "image" not in _tags(gantt(resized))


def test_many_pieces_are_an_image(resized: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "BOXES_MAX", 1)
    assert "image" in _tags(gantt(resized))


def test_names_are_no_markup_and_pictures_of_a_schedule_are_the_same(resized: Schedule) -> None:
    picture = utilisation(named := msgspec.structs.replace(resized, policy="<script>$"))
    assert "script" not in _tags(picture)
    assert utilisation(named) == picture
