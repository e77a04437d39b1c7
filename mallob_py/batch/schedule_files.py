"""Schedules as files for other programs: Batsim 5's `jobs.csv` and `schedule.json`, pieces of jobs, SWF.

evalys and other tools read these files. `jobs.csv` has one row per job, which contains a resized job's last
nodes; `allocations.csv` has a row for each piece of a job. Times are seconds, energy is in joules, nodes are
sets of intervals such as "0-3 7".
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from mallob_py.batch.job import Job, Rejected
from mallob_py.batch.metrics import NodePower, busy_of_jobs, energy_of, metrics_of
from mallob_py.batch.simulator import Schedule
from mallob_py.batch.workload.swf import FIELDS

JOB_COLUMNS = (
    "job_id", "workload_name", "profile", "submission_time", "requested_number_of_resources",
    "requested_time", "success", "final_state", "starting_time", "execution_time", "finish_time",
    "waiting_time", "turnaround_time", "stretch", "allocated_resources", "consumed_energy", "metadata",
)  # fmt: skip
ALLOCATION_COLUMNS = ("job_id", "start", "end", "resources")
_UNKNOWN = -1


def write_schedule(schedule: Schedule, folder: Path, power: NodePower) -> None:
    """Write `jobs.csv`, `allocations.csv`, `schedule.json`, `schedule.swf` into a folder. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = sorted(schedule.all_pieces(), key=lambda piece: (piece.start_s, piece.job))
    _write_rows(folder / "jobs.csv", JOB_COLUMNS, [*_job_rows(schedule, power), *_rejected_rows(schedule)])
    numbers = [job.number for job in schedule.workload.jobs]
    _write_rows(
        folder / "allocations.csv",
        ALLOCATION_COLUMNS,
        (
            (numbers[piece.job], _number(piece.start_s), _number(piece.end_s), interval_set(piece.nodes))
            for piece in pieces
        ),
    )
    summary = msgspec.json.format(msgspec.json.encode(_summary(schedule, power)), indent=1)
    (folder / "schedule.json").write_bytes(summary + b"\n")
    write_swf(schedule, folder / "schedule.swf")


def interval_set(nodes: Sequence[int]) -> str:
    """Return the text of node numbers as intervals: "0-2 7" for 0, 1, 2, 7."""
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in intervals(nodes))


def intervals(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, last) of each unbroken sequence of node numbers."""
    if not nodes:
        return []
    ordered = np.sort(np.asarray(nodes))
    gaps = np.flatnonzero(np.diff(ordered) > 1)
    firsts = ordered[np.concatenate([[0], gaps + 1])].tolist()
    lasts = ordered[np.concatenate([gaps, [-1]])].tolist()
    return list(zip(firsts, lasts, strict=True))


def write_swf(schedule: Schedule, path: Path) -> None:
    """Write a schedule as SWF, with the mean number of nodes of each resized job. Raises OSError."""
    jobs = schedule.workload.jobs
    held_s = [0.0] * len(jobs)
    for piece in schedule.all_pieces():
        held_s[piece.job] += (piece.end_s - piece.start_s) * len(piece.nodes)
    with path.open("w", encoding="utf-8") as file:
        file.write("; Version: 2.2\n")
        file.write(f"; MaxJobs: {len(jobs)}\n; MaxNodes: {schedule.nodes}\n; MaxProcs: {schedule.nodes}\n")
        file.write(f"; Note: {schedule.workload.name} by the policy {schedule.policy}\n")
        for job, start_s, end_s in zip(jobs, schedule.starts_s, schedule.ends_s, strict=True):
            values: list[float] = [_UNKNOWN] * FIELDS
            values[:5] = [job.number, job.submit_s, start_s - job.submit_s, end_s - start_s,
                          max(1, round(held_s[job.id] / (end_s - start_s)))]  # fmt: skip
            values[7:9] = [job.nodes, job.estimate_s]
            values[10] = 1
            values[11] = _id(job.user)
            values[14] = _id(job.queue)
            file.write(" ".join(map(_number, values)) + "\n")


def _job_rows(schedule: Schedule, power: NodePower) -> Iterable[tuple[object, ...]]:
    busy_node_s = busy_of_jobs(schedule)
    name = schedule.workload.name or "workload"
    for job, truth, start_s, end_s, nodes in zip(
        schedule.workload.jobs,
        schedule.workload.truths,
        schedule.starts_s,
        schedule.ends_s,
        schedule.allocations,
        strict=True,
    ):
        run_s, turnaround_s = end_s - start_s, end_s - job.submit_s
        yield (
            job.number,
            name,
            job.kind.value,
            _number(job.submit_s),
            job.nodes,
            _number(job.estimate_s),
            1,
            "COMPLETED_SUCCESSFULLY",
            _number(start_s),
            _number(run_s),
            _number(end_s),
            _number(start_s - job.submit_s),
            _number(turnaround_s),
            _number(turnaround_s / truth.run_s),
            interval_set(nodes),
            _number(busy_node_s[job.id] * power.busy_w),
            _metadata(job),
        )


def _rejected_rows(schedule: Schedule) -> Iterable[tuple[object, ...]]:
    """Yield the rows of rejected jobs as Batsim does: columns for what did not happen are empty."""
    name = schedule.workload.name or "workload"
    for job in schedule.workload.rejected:
        yield (
            job.number, name, "rigid", _number(job.submit_s), job.nodes, _number(job.estimate_s),
            0, "REJECTED", *[""] * 8, _metadata(job),
        )  # fmt: skip


def _metadata(job: Job | Rejected) -> str:
    named = [("user", job.user), ("queue", job.queue)]
    if isinstance(job, Rejected):
        named.append(("reason", job.reason))
    told = {key: value for key, value in named if value}
    return msgspec.json.encode(told).decode() if told else ""


def _summary(schedule: Schedule, power: NodePower) -> dict[str, object]:
    """Return the content of `schedule.json`: those of Batsim's keys that apply here, and a few of our own."""
    metrics, energy = metrics_of(schedule), energy_of(schedule, power)
    rejected = len(schedule.workload.rejected)
    turnarounds = [
        (end_s - job.submit_s, truth.run_s, end_s - start_s)
        for job, truth, start_s, end_s in zip(
            schedule.workload.jobs, schedule.workload.truths, schedule.starts_s, schedule.ends_s, strict=True
        )
    ]
    return {
        "scheduler": schedule.policy,
        "workload": schedule.workload.name,
        "nb_jobs": metrics.jobs + rejected,
        "nb_jobs_finished": metrics.jobs,
        "nb_jobs_success": metrics.jobs,
        "nb_jobs_killed": 0,
        "nb_jobs_rejected": rejected,
        "success_rate": metrics.jobs / (metrics.jobs + rejected),
        "nb_computing_machines": schedule.nodes,
        "makespan": metrics.makespan_s,
        "mean_waiting_time": metrics.wait_s,
        "max_waiting_time": metrics.wait_max_s,
        "mean_turnaround_time": metrics.turnaround_s,
        "max_turnaround_time": max(turnaround for turnaround, _, _ in turnarounds),
        "mean_slowdown": metrics.slowdown,
        "max_slowdown": max(turnaround / static for turnaround, static, _ in turnarounds),
        "mean_bounded_slowdown": metrics.bounded_slowdown,
        "mean_stretched_slowdown": metrics.stretched_slowdown,
        "max_stretched_slowdown": max(turnaround / run for turnaround, _, run in turnarounds),
        "mean_stretched_bounded_slowdown": metrics.stretched_bounded_slowdown,
        "utilisation": metrics.utilisation,
        "nb_resizes": metrics.resizes,
        "time_computing": energy.busy_node_s,
        "time_idle": energy.idle_node_s,
        "consumed_joules": energy.total_j,
        "consumed_joules_computing": energy.busy_j,
        "consumed_joules_idle": energy.idle_j,
    }


def _write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _number(value: float) -> str:
    """Format a whole number without a point, another number with at most six decimals."""
    return str(int(value)) if value == int(value) else f"{value:.6f}".rstrip("0").rstrip(".")


def _id(text: str) -> int:
    return int(text) if text.isdecimal() else _UNKNOWN
