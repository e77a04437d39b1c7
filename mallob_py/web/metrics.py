"""The service's numbers for Prometheus, in its text format.

All numbers come from the status file, so that a scrape costs the service nothing; only the memory of this
host's ranks is read from /proc. Counters start at zero with the service.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import cast

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from mallob_py.launchers import RANK_VARIABLES
from mallob_py.service.telemetry.measures import MEASURES, Measure, Value
from mallob_py.service.telemetry.status import BOUNDS_S, Histogram, ServiceStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "mallob_py_"


def metrics(status: ServiceStatus | None, upload_bytes: int, turns: int) -> bytes:
    """Return the whole page, also if no service runs. `turns`: turns per second of the web server's loop."""
    page: bytes = generate_latest(cast(Collector, _Numbers(status, upload_bytes, turns)))
    return page


class _Numbers:
    def __init__(self, status: ServiceStatus | None, upload_bytes: int, turns: int) -> None:
        self._status = status
        self._upload_bytes = upload_bytes
        self._turns = turns

    def collect(self) -> Iterable[Metric]:
        yield _gauge("up", "Whether a service runs on the api folder.", self._status is not None)
        yield _gauge("web_upload_bytes", "Uploads kept for live jobs.", self._upload_bytes)
        turns = "Turns per second of the web server's event loop, to one significant digit; 0 if below 20."
        yield _gauge("web_loop_turns_per_second", turns, self._turns)
        if self._status is not None:
            yield from _of_service(self._status)


def _of_service(status: ServiceStatus) -> Iterator[Metric]:
    for measure in MEASURES:
        yield _family(measure, measure.of(status))
    yield _durations(status.totals.times)
    memory = {str(rank): float(size) for rank, size in sorted(_memory(status).items())}
    yield _family(_RANK_MEMORY, memory)


_RANK_MEMORY = Measure("rank_resident_memory_bytes", "Memory of ranks on this host.", lambda it: {}, "rank")


def _family(measure: Measure, value: Value) -> Metric:
    kind = CounterMetricFamily if measure.is_counter else GaugeMetricFamily
    labels = [measure.label] if measure.label else None
    family = kind(_PREFIX + measure.name, measure.meaning, labels=labels)
    values = value.items() if isinstance(value, Mapping) else [(None, value)]
    for label_value, number in values:
        family.add_metric([] if label_value is None else [label_value], number)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value)


def _durations(times: Mapping[str, Histogram]) -> Metric:
    text = "Durations of the parts of jobs that have ended."
    family = HistogramMetricFamily(f"{_PREFIX}job_duration_seconds", text, labels=["part"])
    edges = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")
    for part, histogram in sorted(times.items()):
        buckets = list(zip(edges, map(float, accumulate(histogram.counts)), strict=True))
        family.add_metric([part], buckets, histogram.sum_s)
    return family


_TITLE = re.compile(rb"mallob-py serve: rank (\d+)")


def _memory(status: ServiceStatus) -> dict[int, float]:
    """Return rank -> memory [bytes] of the ranks of this host that have a client's launcher as parent."""
    host = socket.gethostname()
    found: dict[int, float] = {}
    for process in status.processes:
        if process.host != host:
            continue
        parent = _parent(process.pid)
        pids = _children(parent) if parent > 1 else []
        if parent > 1 and _rank_number(parent) is not None:  # the rank's guard, whose parent is the launcher
            pids = [pid for guard in _children(_parent(parent)) for pid in _children(guard)]
        for pid in pids:
            rank = _rank_number(pid)
            if rank is not None:
                found[rank] = _resident_bytes(pid)
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _children(parent: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def _rank_number(pid: int) -> int | None:
    """Return the number that the launcher has assigned to this rank; None: the process is no rank.

    A rank that is a fork of the launcher has its number in its title, any other rank in its environment.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if (titled := _TITLE.match(command)) is not None:
            return int(titled[1])
        if b"mallob" not in command:
            return None
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    given = dict(entry.partition(b"=")[::2] for entry in environment)
    numbers = (given.get(variable.encode(), b"") for variable in RANK_VARIABLES)
    return next((int(number) for number in numbers if number.isdigit()), None)


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
