"""The logs of the supercomputer Eurora as published with PA-HPC-SIM (github.com/AndreaBorghesi/PA-HPC-SIM).

An archive contains instances of 50 to 1000 jobs (`*.log_crypt`). Each line is a job and has three parts,
separated by `__`: `number;user;name;queue;submission`, the units `node;cores;GPUs;MICs;memory [KB]#...`, and
`start;end;...;requested time [h:m];...;state;...`. The machine has 64 nodes of 16 cores and 32 GiB; half of
them have two MICs, the others two GPUs.
"""

from __future__ import annotations

import math
import tarfile
from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path

import msgspec

from mallob_py.batch.cluster import Cluster
from mallob_py.batch.job import Job, Truth, Workload

RESOURCES = ("cores", "GPUs", "MICs", "memory_KB")
_MEMORY_KB = 32 * 2**20
CLUSTER = Cluster(
    RESOURCES, ((16.0, 0.0, 2.0, float(_MEMORY_KB)),) * 32 + ((16.0, 2.0, 0.0, float(_MEMORY_KB)),) * 32
)
#: queue -> longest wait [s] that the queue's users expect
EXPECTED_WAITS_S = {
    "debug": 3600.0,
    "parallel": 21600.0,
    "longpar": 86400.0,
    "np_longpar": 86400.0,
    "reservation": 1800.0,
}
_EPOCH = datetime(2014, 1, 1)
_EXPECTED_WAIT_S = 1800.0
EURORA_SUFFIX = ".log_crypt"


class EuroraError(ValueError):
    """A log has an error. The error's text names file and line."""


def expected_wait_s(queue: str) -> float:
    """Return the expected wait [s] of a queue's jobs; half an hour for a queue that Eurora does not have."""
    return EXPECTED_WAITS_S.get(queue, _EXPECTED_WAIT_S)


def read_eurora(path: Path, instances: Sequence[str] = ()) -> Sequence[Workload]:
    """Read the named instances of an archive (none named: all, in the archive's order), or one log file.

    Raises EuroraError for a damaged line or a missing instance, OSError if the file cannot be read.
    """
    if not tarfile.is_tarfile(path):
        return [_workload(str(path), path.read_bytes(), path.stem)]
    found: dict[str, Workload] = {}
    wanted = {f"{name}{EURORA_SUFFIX}" for name in instances}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                base = Path(member.name).name
                if not member.isfile() or not _is_log(base) or (wanted and base not in wanted):
                    continue
                content = archive.extractfile(member)
                assert content is not None
                name = base[: -len(EURORA_SUFFIX)]
                found[name] = _workload(f"{path}, {base}", content.read(), name)
    except (tarfile.TarError, EOFError) as error:
        raise EuroraError(f"{path}: damaged archive ({error})") from error
    for name in instances:
        if name not in found:
            raise EuroraError(f"{path}: no instance {name!r} in it")
    return [found[name] for name in instances] if instances else list(found.values())


def instances_of(path: Path) -> list[str]:
    """Return the sorted names of the instances in an archive. Raises EuroraError, OSError."""
    try:
        with tarfile.open(path) as archive:
            bases = [Path(member.name).name for member in archive if member.isfile()]
    except (tarfile.TarError, EOFError) as error:
        raise EuroraError(f"{path}: damaged archive ({error})") from error
    return sorted(base[: -len(EURORA_SUFFIX)] for base in bases if _is_log(base))


def joined(workloads: Sequence[Workload], name: str) -> Workload:
    """Join several workloads into one; a job that several contain (by its number in the log) is taken once.

    `Workload.origin_s` says when each workload begins. Raises ValueError if there are no jobs.
    """
    found: dict[int, tuple[float, Job, Truth]] = {}
    for workload in workloads:
        for job, truth in zip(workload.jobs, workload.truths, strict=True):
            found.setdefault(job.number, (workload.origin_s + job.submit_s, job, truth))
    if not found:
        raise ValueError("there are no jobs to join")
    rows = sorted(found.values(), key=lambda row: (row[0], row[1].number))
    first_s = rows[0][0]
    jobs = [
        msgspec.structs.replace(job, id=place, submit_s=at_s - first_s)
        for place, (at_s, job, _) in enumerate(rows)
    ]
    cluster = workloads[0].cluster
    return Workload(
        jobs, [row[2] for row in rows], workloads[0].nodes, name, cluster=cluster, origin_s=first_s
    )


def _is_log(name: str) -> bool:
    base = Path(name).name
    return base.endswith(EURORA_SUFFIX) and not base.startswith(".")


def _workload(source: str, content: bytes, name: str) -> Workload:
    rows: list[tuple[float, int, str, int, tuple[float, ...], float, float]] = []
    seen: set[str] = set()
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        # Some files contain their instance twice.
        if not line.strip() or line in seen:
            continue
        seen.add(line)
        try:
            rows.append(_row(line))
        except (ValueError, IndexError) as error:
            raise EuroraError(f"{source}, line {number}: no job ({error})") from None
    if not rows:
        raise EuroraError(f"{source}: no jobs in it")
    rows.sort(key=lambda row: row[:2])
    first_s = rows[0][0]
    jobs = [
        Job(place, at - first_s, units, estimate_s, number=own, queue=queue, demand=demand)
        for place, (at, own, queue, units, demand, estimate_s, _) in enumerate(rows)
    ]
    return Workload(
        jobs,
        [Truth(row[-1]) for row in rows],
        len(CLUSTER.capacities),
        name,
        cluster=CLUSTER,
        origin_s=first_s,
    )


def _row(line: str) -> tuple[float, int, str, int, tuple[float, ...], float, float]:
    """Return a job's submission [s], number, queue, number of units, demand, estimate [s] and run time [s].

    For each resource, the demand is that of the unit that needs most (nearly all jobs have equal units).
    Jobs that ran longer than requested keep their run time, because the machine permitted it.
    """
    head, nodes, tail = line.strip().split("__")
    number, _, _, queue, submission = head.split(";")
    units = [tuple(float(word) for word in unit.split(";")[1:5]) for unit in nodes.split("#") if unit]
    if not all(map(math.isfinite, chain(*units))):
        raise ValueError("an amount is not finite")
    times = tail.split(";")
    hours, minutes = times[5].split(":")[:2]
    run_s = _time(times[1]) - _time(times[0])
    if queue.startswith("R"):
        queue = "reservation"
    return (
        _time(submission),
        int(number.partition(".")[0]),
        queue,
        len(units),
        tuple(max(amounts) for amounts in zip(*units, strict=True)),
        max(60.0, int(hours) * 3600.0 + int(minutes) * 60.0),
        max(1.0, run_s),
    )


def _time(text: str) -> float:
    """Parse a time into seconds; its zone is ignored, because only differences of times matter."""
    return (datetime.fromisoformat(text) - _EPOCH).total_seconds()
