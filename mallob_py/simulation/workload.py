"""Streams of jobs: drawn as in P 5.3, or read from a CSV file."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

import msgspec

from mallob_py.simulation.setting import Jobs, SettingError

STREAM_COLUMNS = ("client", "name", "arrival_s", "priority", "wallclock_limit_s", "max_demand")
_TRIES = 100
_ARRIVALS = ("poisson", "uniform", "normal")


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One job to come.

    It is solved when it has done `work_s`, at a speed of volume ** `speedup`; never, if that is 0.
    """

    arrival_s: float
    client: int
    name: str
    priority: float
    wallclock_limit_s: float
    cpu_limit_s: float = 0.0
    max_demand: int
    work_s: float = 0.0
    speedup: float = 0.0


def job_stream(jobs: Jobs, pes: int, seconds: float, seed: int) -> list[JobSpec]:
    """All jobs that arrive within `seconds`, in order of arrival. Raises SettingError."""
    if jobs.arrivals not in _ARRIVALS:
        raise SettingError(f"jobs.arrivals: {jobs.arrivals!r} is none of {', '.join(_ARRIVALS)}")
    choose = random.Random(f"jobs {seed}")
    specs = _drawn(jobs, pes, seconds, choose) if jobs.stream is None else read_stream(Path(jobs.stream), pes)
    specs = [spec for spec in specs if spec.arrival_s < seconds]
    specs.sort(key=lambda spec: spec.arrival_s)
    return [
        msgspec.structs.replace(spec, cpu_limit_s=jobs.cpu_limit_s, work_s=_work_s(jobs, spec, choose))
        for spec in specs
    ]


def _work_s(jobs: Jobs, spec: JobSpec, choose: random.Random) -> float:
    return spec.wallclock_limit_s * choose.random() ** 2 if choose.random() < jobs.solved else 0.0


def _drawn(jobs: Jobs, pes: int, seconds: float, choose: random.Random) -> list[JobSpec]:
    specs = []
    for client in range(jobs.clients):
        number, now = 0, _interarrival_s(jobs, choose)
        while now < seconds:
            for _ in range(_burst(jobs, choose)):
                number += 1
                wallclock_s = choose.gauss(jobs.wallclock_mean_s, jobs.wallclock_deviation_s)
                specs.append(
                    JobSpec(
                        arrival_s=now,
                        client=client % pes,
                        name=f"job-{number}",
                        priority=choose.uniform(jobs.priority_min, jobs.priority_max),
                        wallclock_limit_s=min(max(wallclock_s, jobs.wallclock_min_s), jobs.wallclock_max_s),
                        max_demand=choose.randint(1, jobs.demand_max or pes),
                    )
                )
            now += _interarrival_s(jobs, choose)
    return specs


def _burst(jobs: Jobs, choose: random.Random) -> int:
    """A rounded normal number, drawn again (not for ever) until it is within bounds."""
    burst = 0
    for _ in range(_TRIES):
        burst = round(choose.gauss(jobs.burst_mean, jobs.burst_deviation))
        if 1 <= burst <= jobs.burst_max:
            break
    return min(max(burst, 1), jobs.burst_max)


def _interarrival_s(jobs: Jobs, choose: random.Random) -> float:
    mean_s = jobs.interarrival_s
    if jobs.arrivals == "poisson":
        return choose.expovariate(1.0 / mean_s)
    if jobs.arrivals == "uniform":
        return choose.uniform(0.0, 2.0 * mean_s)
    return max(0.0, choose.gauss(mean_s, mean_s / 3.0))


def read_stream(path: Path, pes: int) -> list[JobSpec]:
    """The jobs of a CSV file with the columns STREAM_COLUMNS, a header line or none.

    Raises SettingError that names the line.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}") from None
    specs = []
    for line, row in enumerate(rows, 1):
        if not row or (line == 1 and row[0].strip() == STREAM_COLUMNS[0]):
            continue
        try:
            specs.append(_parsed(row, pes))
        except ValueError as error:
            raise SettingError(f"{path}, line {line}: {error}") from None
    return specs


def _parsed(row: list[str], pes: int) -> JobSpec:
    if len(row) != len(STREAM_COLUMNS):
        raise ValueError(f"{len(row)} columns instead of {', '.join(STREAM_COLUMNS)}")
    client, name, *numbers = row
    arrival_s, priority, wallclock_s, demand = (float(number) for number in numbers)
    if not (arrival_s >= 0 and priority > 0 and wallclock_s >= 0 and demand >= 0):
        raise ValueError("arrival, limit and demand must not be negative, the priority must be above 0")
    if not all(math.isfinite(value) for value in (arrival_s, priority, wallclock_s, demand)):
        raise ValueError("numbers must be finite")
    return JobSpec(
        arrival_s=arrival_s,
        client=int(client) % pes,
        name=name,
        priority=priority,
        wallclock_limit_s=wallclock_s,
        max_demand=int(demand),
    )
