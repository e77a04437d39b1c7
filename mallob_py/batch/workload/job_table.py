"""Job tables of the Argonne Leadership Computing Facility, `DIM_JOB_COMPOSITE`, as traces.

A table is a CSV file: its first line names the columns, each further line is a job. Columns other than
`_COLUMNS` are ignored. Times have no zone and are taken as UTC. Users and queues get numbers in the order of
their appearance.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from mallob_py.batch.workload.swf import FIELDS, VALUE_MAX, Swf, SwfError, content_of

SUFFIX = ".csv"
_COLUMNS = (
    "JOB_NAME", "QUEUED_TIMESTAMP", "START_TIMESTAMP", "RUNTIME_SECONDS", "NODES_USED", "NODES_REQUESTED",
    "WALLTIME_SECONDS", "USERNAME_GENID", "QUEUE_NAME",
)  # fmt: skip


def read_job_table(path: Path, strict: bool = False) -> Swf:
    """Read a table, also a compressed one, as the rows of a trace whose processors are nodes.

    Lines that are no jobs are left out and listed in `damaged`; with `strict`, the first one raises SwfError.
    Raises SwfError also for a missing column and for a table without jobs, OSError if it cannot be read.
    """
    lines = csv.reader(io.StringIO(content_of(path).decode("utf-8-sig", errors="replace"), newline=""))
    rows, damaged = list[list[float]](), list[str]()
    try:
        names = next(lines, [])
        if missing := [name for name in _COLUMNS if name not in names]:
            raise SwfError(f"{path}, line 1: not a job table of ALCF: no column {', '.join(missing)}")
        row_of = _Rows([names.index(name) for name in _COLUMNS])
        for line in filter(None, lines):
            try:
                rows.append(row_of(line, len(rows) + 1))
            except ValueError as error:
                damaged.append(f"{path}, line {lines.line_num}: {error}")
                if strict:
                    raise SwfError(damaged[0]) from None
    except csv.Error as error:
        raise SwfError(f"{path}, line {lines.line_num}: {error}") from None
    if not rows:
        raise SwfError(f"{path}: no jobs in it" + (f" ({damaged[0]})" if damaged else ""))
    return Swf(np.array(rows), {}, tuple(damaged))


class _Rows:
    """Converts lines into rows of a trace. `places`: the index of each of `_COLUMNS` in a line."""

    def __init__(self, places: list[int]) -> None:
        self._places = places
        self._users: dict[str, int] = {}
        self._queues: dict[str, int] = {}

    def __call__(self, line: list[str], count: int) -> list[float]:
        """Convert a line into a row; a job without number gets `count`. Raises ValueError with the reason."""
        if len(line) <= max(self._places):
            raise ValueError(f"{len(line)} fields, too few for the columns")
        fields = dict(zip(_COLUMNS, (line[place].strip() for place in self._places), strict=True))

        def value(name: str, read: Callable[[str], float]) -> float:
            if not (text := fields[name]):
                return -1.0
            try:
                number = read(text)
            except ValueError:
                number = np.nan
            if not abs(number) <= VALUE_MAX:
                raise ValueError(f"{name} is {text!r}")
            return number

        submit_s, start_s = value("QUEUED_TIMESTAMP", _seconds), value("START_TIMESTAMP", _seconds)
        nodes, asked = value("NODES_USED", float), value("NODES_REQUESTED", float)
        number = re.match(r"\d{1,15}", fields["JOB_NAME"])
        row = [-1.0] * FIELDS
        row[:5] = (
            float(number[0]) if number else count,
            submit_s,
            -1.0,
            value("RUNTIME_SECONDS", float),
            nodes,
        )
        if min(submit_s, start_s) >= 0.0:
            row[2] = start_s - submit_s
        row[7:9] = asked, value("WALLTIME_SECONDS", float)
        row[11] = self._users.setdefault(fields["USERNAME_GENID"], len(self._users) + 1)
        row[14] = self._queues.setdefault(fields["QUEUE_NAME"], len(self._queues) + 1)
        return row


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
