"""The setting of a simulated run, as one TOML file in which every field has a default.

The costs of messages were measured with two ranks on two cores. Distances between hosts cannot be measured on
one machine: they are an assumption, a fast cluster network plus the wake-up of the receiver. Jobs come in
streams, drawn as in P 5.3 or read from a CSV file.
"""

from __future__ import annotations

import csv
import io
import math
import random
from itertools import cycle
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from mallob_py.protocol.config import Config
from mallob_py.service.toml_file import TomlError, read_toml

ARRIVALS = ("poisson", "uniform", "normal")
STREAM_COLUMNS = ("client", "name", "arrival_s", "priority", "wallclock_limit_s", "max_demand")
_TRIES = 100
#: largest number accepted: larger ones are typing errors, or infinity
_LARGEST = 1e9

Pes = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Count = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=_LARGEST)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=_LARGEST)]


class SettingError(Exception):
    """A setting cannot be used; the message names file, field and reason."""


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The costs of messages. A message takes its latency plus an exponentially distributed jitter.

    `handling_us`: time of a PE's event loop to receive a message. `sending_us`: time to send one.
    """

    same_rank_us: NotNegative = 2.0
    same_host_us: NotNegative = 15.0
    other_host_us: NotNegative = 20.0
    jitter_us: NotNegative = 5.0
    handling_us: NotNegative = 30.0
    sending_us: NotNegative = 15.0


class Processes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations of worker processes' steps, each drawn at random from 0.5 to 1.5 times the given value."""

    start_ms: NotNegative = 2.0
    resume_ms: NotNegative = 0.1
    fetch_ms: NotNegative = 1.0


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slow PEs, and slow messages, which later messages of other senders may overtake."""

    slow_pes: Share = 0.0
    slow_factor: Annotated[float, msgspec.Meta(ge=1.0, le=_LARGEST)] = 10.0
    delayed_messages: Share = 0.0
    delay_ms: NotNegative = 10.0


class Jobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stream of jobs: drawn as in P 5.3, or read from a CSV file.

    Each of `clients` users brings bursts of jobs, at intervals with mean `interarrival_s` (`arrivals`:
    poisson, uniform or normal). `solved`: share of the jobs that end with a solution before their wallclock
    limit, at this limit times the square of a uniform random number.
    """

    stream: str | None = None
    clients: Count = 4
    arrivals: str = "poisson"
    interarrival_s: Positive = 5.0
    burst_mean: Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)] = 1.0
    burst_deviation: NotNegative = 2.0
    burst_max: Count = 8
    priority_min: Positive = 0.01
    priority_max: Positive = 1.0
    wallclock_mean_s: Positive = 300.0
    wallclock_deviation_s: NotNegative = 100.0
    wallclock_min_s: Positive = 1.0
    wallclock_max_s: Positive = 600.0
    #: largest demand drawn; 0: the number of PEs
    demand_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    cpu_limit_s: NotNegative = 0.0
    solved: Share = 0.74

    def __post_init__(self) -> None:
        if self.arrivals not in ARRIVALS:
            raise ValueError(f"arrivals {self.arrivals!r} is none of {', '.join(ARRIVALS)}")
        if self.priority_min > self.priority_max:
            raise ValueError(f"priority_min {self.priority_min:g} exceeds priority_max {self.priority_max:g}")
        if self.wallclock_min_s > self.wallclock_max_s:
            raise ValueError(
                f"wallclock_min_s {self.wallclock_min_s:g} exceeds wallclock_max_s {self.wallclock_max_s:g}"
            )


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated run."""

    pes: Pes = 1536
    pes_per_host: Count = 12
    #: PEs of the ranks, in turn: [1]: one PE each; [4, 2]: ranks of four and two PEs
    capacities: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)] = (1,)
    seconds: Positive = 3600.0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    network: Network = Network()
    processes: Processes = Processes()
    faults: Faults = Faults()
    jobs: Jobs = Jobs()
    protocol: Config = Config()

    def rank_capacities(self) -> list[int] | None:
        """Return the number of PEs of each rank (the last rank gets the remainder); None: one PE each."""
        if self.capacities == (1,):
            return None
        capacities: list[int] = []
        left = self.pes
        for capacity in cycle(self.capacities):
            capacities.append(min(capacity, left))
            left -= capacities[-1]
            if not left:
                break
        return capacities


def chosen_setting(file: str | None, stream: str | None, **chosen: float | None) -> Setting:
    """Return the setting of `file` (None: the defaults) with this `stream` and these fields, if not None."""
    setting = Setting() if file is None else read_setting(Path(file))
    if stream is not None:
        setting = replace(setting, jobs=replace(setting.jobs, stream=stream))
    return replace(setting, **{name: value for name, value in chosen.items() if value is not None})


def read_setting(path: Path) -> Setting:
    """Return the setting in a TOML file. Raises SettingError, which names the file and the field."""
    try:
        return read_toml(path, Setting)
    except TomlError as error:
        raise SettingError(str(error)) from None


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job to come, solved after `work_s` of work (0: never) at a speed of volume ** `speedup`."""

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
    """Return all jobs that arrive within `seconds`, in order of arrival. Raises SettingError."""
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
    """Draw rounded normal numbers until one is within bounds; after many tries, clip the last one."""
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
    """Return the jobs of a CSV file with STREAM_COLUMNS, with or without a header. Raises SettingError."""
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
