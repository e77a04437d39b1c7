"""Streams of jobs: drawn as in P 5.3, or read from a CSV file."""

from __future__ import annotations

import csv
import io
import math
import random
from pathlib import Path

import msgspec

from mallob_py.simulation.setting import Jobs, SettingError

STREAM_COLUMNS = ("client", "name", "arrival_s", "priority", "wallclock_limit_s", "max_demand")
_TRIES = 100


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
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{path} is not text in UTF-8") from None
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        rows = enumerate(filter(any, reader))
        return [_parsed(row, pes) for number, row in rows if number > 0 or not _is_header(row)]
    except (csv.Error, ValueError) as error:
        raise SettingError(f"{path}, line {reader.line_num}: {error}") from None


def _is_header(row: list[str]) -> bool:
    columns = tuple(cell.strip() for cell in row)
    if columns[0] != STREAM_COLUMNS[0]:
        return False
    if columns != STREAM_COLUMNS:
        raise ValueError(f"the columns must be {', '.join(STREAM_COLUMNS)}, in this order")
    return True


def _parsed(row: list[str], pes: int) -> JobSpec:
    if len(row) != len(STREAM_COLUMNS):
        raise ValueError(f"{len(row)} columns instead of {', '.join(STREAM_COLUMNS)}")
    cells = dict(zip(STREAM_COLUMNS, row, strict=True))
    priority = _number(cells, "priority")
    if not priority:
        raise ValueError("priority must be above 0")
    return JobSpec(
        arrival_s=_number(cells, "arrival_s"),
        client=_whole_number(cells, "client") % pes,
        name=cells["name"],
        priority=priority,
        wallclock_limit_s=_number(cells, "wallclock_limit_s"),
        max_demand=_whole_number(cells, "max_demand"),
    )


def _number(cells: dict[str, str], column: str) -> float:
    try:
        number = float(cells[column])
    except ValueError:
        raise ValueError(f"{column} {cells[column]!r} is not a number") from None
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError(f"{column} {cells[column]!r} is not a finite number of at least 0")
    return number


def _whole_number(cells: dict[str, str], column: str) -> int:
    number = _number(cells, column)
    if not number.is_integer():
        raise ValueError(f"{column} {cells[column]!r} is not a whole number")
    return int(number)
