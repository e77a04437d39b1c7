"""Jobs of the simulator ElastiSim (`jobs.json`), in the application model of the PECS 2023 paper.

On n nodes, a job runs for flops/speed ((1-p) + p/n) seconds, where p is its `parallel_percentage`. It has
`divide` iterations of equal work; a malleable job can be resized between two iterations.
"""

from __future__ import annotations

import codecs
import gzip
import math
import zlib
from pathlib import Path

import msgspec

from mallob_py.batch.job import Job, Kind, Truth, Workload
from mallob_py.batch.simulator import Schedule
from mallob_py.batch.speedup import Amdahl, Linear

#: the speed of a node in the PECS 2023 paper
FLOPS_PER_S = 1e12
PUBLISHED_NODES = 128
#: the shortest run time [s]: rounded, the end of a shorter job could equal its start
_RUN_MIN_S = 1e-6
_KINDS = {"RIGID": Kind.RIGID, "MOLDABLE": Kind.MOLDABLE, "MALLEABLE": Kind.MALLEABLE}


class ElastiSimError(ValueError):
    """A file of jobs has an error. The error's text names file, job and field."""


class _Arguments(msgspec.Struct):
    flops: float
    parallel_percentage: float
    divide: float = 1.0
    num_nodes_pref: int = 0


class _Job(msgspec.Struct):
    type: str
    submit_time: float
    arguments: _Arguments
    num_nodes: int = 0
    num_nodes_min: int = 0
    num_nodes_max: int = 0
    walltime: float = 0.0


class _File(msgspec.Struct):
    """A file of jobs. `nodes`: the machine's number of nodes, which ElastiSim's own files do not contain."""

    jobs: list[_Job]
    nodes: int | None = None


def read_elastisim(path: Path, nodes: int | None = None) -> Workload:
    """Read `jobs.json`, also compressed by gzip, for a machine of `nodes` nodes with the speed FLOPS_PER_S.

    Without `nodes`, the file says how many nodes the machine has if `write_elastisim` wrote it; otherwise
    the number is PUBLISHED_NODES. A job without `walltime` gets its run time as estimate. Raises
    ElastiSimError for an invalid file, OSError if the file cannot be read.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        file = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=_File)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ElastiSimError(f"{path}: damaged archive ({error})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ElastiSimError(f"{path}: {error}") from None
    described, nodes = file.jobs, nodes or file.nodes or PUBLISHED_NODES
    if not described:
        raise ElastiSimError(f"{path}: no jobs in it")
    jobs, truths = list[Job](), list[Truth]()
    order = sorted(range(len(described)), key=lambda place: described[place].submit_time)
    for number, place in enumerate(order):
        try:
            job, truth = _job(number, described[place])
        except ValueError as error:
            raise ElastiSimError(f"{path}: jobs[{place}]: {error}") from None
        jobs.append(job)
        truths.append(truth)
    return Workload(jobs, truths, nodes, path.name)


def _job(number: int, described: _Job) -> tuple[Job, Truth]:
    kind = _KINDS.get(described.type.upper())
    if kind is None:
        raise ValueError(f"type is {described.type!r}, not one of {', '.join(_KINDS)}")
    if kind is Kind.RIGID:
        least = preferred = most = described.num_nodes
    else:
        least, most = described.num_nodes_min, described.num_nodes_max
        preferred = described.arguments.num_nodes_pref or (least + most) // 2
    if not 1 <= least <= preferred <= most:
        raise ValueError(f"the numbers of nodes are not 1 <= {least} <= {preferred} <= {most}")
    arguments = described.arguments
    if not (arguments.flops > 0.0 and 0.0 <= arguments.parallel_percentage <= 1.0):
        raise ValueError("flops is not above 0, or parallel_percentage not between 0 and 1")
    if not (described.submit_time >= 0.0 and arguments.divide >= 1.0):
        raise ValueError("submit_time is below 0, or divide below 1")
    serial = 1.0 - arguments.parallel_percentage
    run_s = arguments.flops / FLOPS_PER_S * (serial + arguments.parallel_percentage / preferred)
    if run_s < _RUN_MIN_S:
        raise ValueError(f"it runs for {run_s:g} s, less than {_RUN_MIN_S:g}")
    estimate_s = described.walltime if described.walltime > 0.0 else run_s
    job = Job(
        number,
        described.submit_time,
        preferred,
        estimate_s,
        kind,
        least,
        most,
        speedup=Amdahl(serial),
        number=number,
    )
    return job, Truth(run_s, iterations=int(arguments.divide) if kind is Kind.MALLEABLE else 0)


def write_elastisim(workload: Workload, path: Path) -> None:
    """Write `jobs.json`, compressed if the name ends with .gz.

    A malleable job that can be resized at any time gets an iteration per second of run time. Raises
    ValueError for a speedup that is neither linear nor Amdahl's, and for an evolving job. Raises OSError.
    """
    jobs = [_described(job, truth) for job, truth in zip(workload.jobs, workload.truths, strict=True)]
    content = msgspec.json.encode(_File(jobs, workload.nodes)) + b"\n"
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _described(job: Job, truth: Truth) -> _Job:
    serial = {Linear: 0.0, Amdahl: job.speedup.loss}.get(type(job.speedup))
    names = {kind: name for name, kind in _KINDS.items()}
    if serial is None or job.kind not in names or truth.speedup not in (None, job.speedup):
        raise ValueError(f"job {job.number}: ElastiSim's format cannot express its kind or its speedup")
    iterations = truth.iterations or (math.ceil(truth.run_s) if job.is_malleable else 1)
    flops = truth.run_s * FLOPS_PER_S / (serial + (1.0 - serial) / job.nodes)
    return _Job(
        names[job.kind],
        job.submit_s,
        _Arguments(flops, 1.0 - serial, float(iterations), job.nodes),
        job.nodes if job.kind is Kind.RIGID else 0,
        0 if job.kind is Kind.RIGID else job.low,
        0 if job.kind is Kind.RIGID else job.high,
        job.estimate_s,
    )


class Statistics(msgspec.Struct, frozen=True):
    """A schedule's last end, its utilisation, and means over its jobs, computed from ElastiSim's files.

    `job_time_s` is the mean run time. ElastiSim writes numbers with six significant digits.
    """

    wait_s: float
    job_time_s: float
    turnaround_s: float
    end_s: float
    utilisation: float


def statistics_of(schedule: Schedule) -> Statistics:
    """Return what a user would compute from the files that ElastiSim would write for this schedule."""
    waits, times, turnarounds, ends = list[float](), list[float](), list[float](), list[float]()
    for job, start_s, end_s in zip(schedule.workload.jobs, schedule.starts_s, schedule.ends_s, strict=True):
        waits.append(_as_written(start_s - job.submit_s))
        times.append(_as_written(end_s - start_s))
        turnarounds.append(_as_written(end_s - job.submit_s))
        ends.append(_as_written(end_s))
    held_s = sum(
        (_as_written(piece.end_s) - _as_written(piece.start_s)) * len(piece.nodes)
        for piece in schedule.pieces
    )
    for begin_s, end_s, nodes in zip(schedule.piece_starts_s, ends, schedule.allocations, strict=True):
        held_s += (end_s - _as_written(begin_s)) * len(nodes)
    count = len(ends)
    return Statistics(
        sum(waits) / count,
        sum(times) / count,
        sum(turnarounds) / count,
        max(ends),
        held_s / schedule.nodes / max(ends),
    )


def _as_written(value: float) -> float:
    return float(f"{value:.6g}")
