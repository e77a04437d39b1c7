"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers per line, comments after `;`.

numpy reads a whole file at once; only a file with damaged lines is read line by line, so that errors name
these lines. The fields of a line: number, submission [s], wait [s], run time [s], processors, CPU time [s],
memory [KB], requested processors, requested time [s], requested memory [KB], status, user, group, executable,
queue, partition, preceding job, think time [s]. -1 means unknown.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.job import Job, Kind, Rejected, Truth, Workload
from mallob_py.batch.workload.machine import Header, demand_of, machine_of, overload, unknown

FIELDS = 18
#: the largest value of a field; a float is exact for all integers up to this value
VALUE_MAX = 1e15
#: the mark of an unknown time of submission
_UNKNOWN_S = -1.0
#: the status of a line for a whole job, and of a line for a part of its execution
_WHOLE, _PARTIAL = (0, 1), (2, 3, 4)
#: the time of submission [s] (three years) above which a time is taken to count from 1970
_EPOCH_MIN_S = 1e8
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
}
_PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
_HEADER = re.compile(rb"^;\s*([A-Za-z]+):[ \t]*(.*?)\s*$", re.MULTILINE)


class SwfError(Exception):
    """A trace has an error. The error's text names file and line."""


class Swf(msgspec.Struct, frozen=True):
    """The content of a trace: rows (float64, shape (jobs, 18)), header, and errors of damaged lines."""

    rows: NDArray[np.float64]
    header: dict[str, str]
    damaged: tuple[str, ...] = ()

    def header_number(self, key: str) -> int:
        """Return the integer of a header field; 0: the field or its integer is missing."""
        match = re.match(r"\d{1,3}(,\d{3})+(?![\d,])|\d+", self.header.get(key, ""))
        return int(match[0].replace(",", "")) if match else 0


def read_swf(path: Path, strict: bool = False) -> Swf:
    """Read a trace, also one compressed by gzip, xz or bzip2.

    Lines that are no jobs are left out and listed in `damaged`; with `strict`, the first one raises SwfError.
    Raises SwfError also for a file without jobs, and OSError if the file cannot be read.
    """
    content = content_of(path).removeprefix(_BYTE_ORDER_MARK)
    head = content[: content.find(b"\n", content.rfind(b"\n;") + 1) + 1] if b";" in content else b""
    header = {key.decode(): value.decode(errors="replace") for key, value in _HEADER.findall(head)}
    rows, damaged = _rows_at_once(content), tuple[str, ...]()
    if rows is None:
        rows, damaged = _rows_by_line(path, content, strict)
    if not len(rows):
        raise SwfError(f"{path}: no jobs in it" + (f" ({damaged[0]})" if damaged else ""))
    return Swf(rows, header, damaged)


def content_of(path: Path) -> bytes:
    """Return a file's decompressed content. Raises OSError, and SwfError for a damaged archive."""
    try:
        return _UNPACK.get(path.suffix, bytes)(path.read_bytes())
    except (EOFError, ValueError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise SwfError(f"{path}: damaged archive ({error})") from error


def _rows_at_once(content: bytes) -> NDArray[np.float64] | None:
    """Return all rows; None: a line is damaged."""
    if b";" in content:
        content = re.sub(rb";[^\n]*", b"", content)
    fields = _fields_per_line(content)
    if not ((fields == 0) | (fields == FIELDS)).all():
        return None
    # numpy reads integers six times faster; most traces have only integers.
    for kind in (np.int64, np.float64):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)
                numbers = np.fromstring(content, dtype=kind, sep=" ")
        except (ValueError, DeprecationWarning):
            continue
        values = numbers.astype(np.float64)
        if len(values) == fields.sum() and (abs(values) <= VALUE_MAX).all():
            return values.reshape(-1, FIELDS)
    return None


def _fields_per_line(content: bytes) -> NDArray[np.int64]:
    """Return the number of fields in each line."""
    is_word = np.frombuffer(b"\n" + content, dtype=np.uint8) > ord(" ")
    begins = np.flatnonzero(is_word[1:] & ~is_word[:-1])
    ends = np.flatnonzero(np.frombuffer(content, dtype=np.uint8) == ord("\n"))
    return np.diff(begins.searchsorted(ends), prepend=0, append=len(begins))


def _rows_by_line(path: Path, content: bytes, strict: bool) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    rows: list[list[float]] = []
    damaged: list[str] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        words = line.partition(b";")[0].split()
        if not words:
            continue
        try:
            row = [float(word) for word in words]
            problem = "" if len(row) == FIELDS else f"{len(row)} fields instead of {FIELDS}"
            if not (problem or all(abs(value) <= VALUE_MAX for value in row)):
                problem = "a field is too large, or nan"
        except ValueError:
            problem = "a field is no number"
        if problem:
            damaged.append(f"{path}, line {number}: {problem}")
            if strict:
                raise SwfError(damaged[0])
        else:
            rows.append(row)
    return np.array(rows, dtype=np.float64).reshape(-1, FIELDS), tuple(damaged)


def workload_of(
    swf: Swf,
    *,
    name: str = "",
    nodes: int = 0,
    processors_per_node: int = 0,
    partition: int | None = None,
    rows: slice | None = None,
    minimal_run_s: int | None = None,
) -> Workload:
    """Return the jobs of a trace as rigid jobs, sorted by (submission, number), the first at second 1.

    Jobs without a time of submission, processors or run time, and jobs too large for the machine are left
    out; `left_out` counts them, `rejected` contains them. `minimal_run_s`: shorter run times are raised to
    it. Partial executions of a job that has a line for the whole job are no jobs; `left_out` counts them.
    Estimates below run times are raised to these. `rows`: only these rows of the sorted ones are used.
    The machine has `nodes` nodes of `processors_per_node` processors; where these are 0, the header
    determines them, and `remarks` say how. Raises ValueError if the machine's number of nodes is unknown.
    """
    data, partial = _without_parts(swf.rows)
    data = data if partition is None else data[data[:, 15] == partition]
    header = Header(swf.header_number("MaxProcs"), swf.header_number("MaxNodes"))
    machine = machine_of(header, _processors(data), nodes, processors_per_node)
    data = data[np.lexsort((data[:, 0], data[:, 1]))]
    if rows is not None:
        data = data[rows]
    processors = _processors(data)
    sizes = -(-processors // machine.processors_per_node)
    runs = data[:, 3] if minimal_run_s is None else np.maximum(data[:, 3], minimal_run_s)
    has_submission = data[:, 1] != _UNKNOWN_S
    demand = demand_of(data[:, 1], np.where(has_submission, sizes, 0), runs)
    if not machine.nodes:
        raise ValueError(unknown(demand))
    said = machine.remark, overload(header, machine, demand, nodes), _zero_among(data), _parts_among(data)
    remarks = tuple(filter(None, said))
    wanted = {
        "without a time of submission": has_submission,
        "without processors": processors > 0,
        "without run time": runs > 0,
        f"larger than the machine ({machine.nodes} nodes)": sizes <= machine.nodes,
    }
    reasons, fits = _sorted_out(wanted)
    left_out = (*partial, *((reason, int(them.sum())) for reason, them in reasons.items() if them.any()))
    # The first submission of a job that can run, or if no job can, of any job.
    first_s = data[fits if fits.any() else slice(None), 1][:1].sum()
    rejected = tuple(
        _rejected(row, int(size), reason, first_s)
        for reason, them in reasons.items()
        for row, size in zip(data[them], sizes[them], strict=True)
    )
    data, sizes, runs = data[fits], sizes[fits].astype(int), runs[fits]
    if not len(data):
        return Workload((), (), machine.nodes, name, left_out, rejected=rejected, remarks=remarks)
    columns = (data[:, 1] - first_s + 1, sizes, np.maximum(data[:, 8], runs), data[:, 0].astype(int))
    fields = zip(*(each.tolist() for each in columns), _texts(data[:, 14]), _texts(data[:, 11]), strict=True)
    jobs = [
        Job(number, submit, size, estimate, number=own, queue=queue, user=user)
        for number, (submit, size, estimate, own, queue, user) in enumerate(fields)
    ]
    truths = list(map(Truth, runs.tolist()))
    return Workload(jobs, truths, machine.nodes, name, left_out, rejected=rejected, remarks=remarks)


def _without_parts(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[tuple[str, int], ...]]:
    """Return the rows without partial executions of whole jobs, and a reason with their number if any."""
    whole = rows[np.isin(rows[:, 10], _WHOLE), 0]
    parts = np.isin(rows[:, 10], _PARTIAL) & np.isin(rows[:, 0], whole)
    if not parts.any():
        return rows, ()
    return rows[~parts], (("partial executions (status 2 to 4) of whole jobs", int(parts.sum())),)


def _parts_among(data: NDArray[np.float64]) -> str:
    """Return a remark if partial executions are played as jobs, for lack of a line for their job; else ""."""
    parts = data[np.isin(data[:, 10], _PARTIAL), 0]
    if not parts.size:
        return ""
    return (
        f"{parts.size} partial executions (status 2 to 4), such as one of job {parts[0]:.0f}, are jobs of"
        " their own here: the trace has no line for the whole job"
    )


def _sorted_out(
    wanted: dict[str, NDArray[np.bool_]],
) -> tuple[dict[str, NDArray[np.bool_]], NDArray[np.bool_]]:
    """Return two results: condition -> jobs that fail it but no earlier condition; and the jobs that meet all
    conditions.
    """
    failing, left = dict[str, NDArray[np.bool_]](), np.array(True)
    for reason, holds in wanted.items():
        failing[reason], left = left & ~holds, left & holds
    return failing, left


def _rejected(row: NDArray[np.float64], size: int, reason: str, first_s: float) -> Rejected:
    queue, user = _texts(row[[14, 11]])
    wanted_s = max(0.0, float(row[8]))
    submit_s = float(row[1] - first_s + 1) if row[1] != _UNKNOWN_S else _UNKNOWN_S
    return Rejected(int(row[0]), submit_s, max(0, size), wanted_s, reason, queue, user)


def _zero_among(data: NDArray[np.float64]) -> str:
    """Return a remark if a trace counts seconds from 1970 but has jobs submitted at second 0; else ""."""
    zeros = data[data[:, 1] == 0, 0]
    later = data[data[:, 1] > 0, 1]
    if not zeros.size or not later.size or later.min() < _EPOCH_MIN_S:
        return ""
    return (
        f"{zeros.size} of {len(data)} jobs, such as job {zeros[0]:.0f}, are submitted at second 0, all others"
        f" from second {later.min():.0f} on: if unknown, write -1, so that these jobs are left out"
    )


def _processors(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each job's number of processors: those that it had or, if unknown, those that it requested."""
    return np.where(rows[:, 4] > 0, rows[:, 4], rows[:, 7])


def _texts(numbers: NDArray[np.float64]) -> Sequence[str]:
    """Return the numbers as texts (negative: ""); equal numbers share one text object."""
    values, places = np.unique(numbers, return_inverse=True)
    texts = [f"{value:.16g}" if value >= 0 else "" for value in values]
    return [texts[place] for place in places]


def write_trace(workload: Workload, path: Path) -> None:
    """Write rigid jobs as a trace, compressed if the name ends with .gz, .xz or .bz2.

    Raises ValueError for what the format cannot express: a job that is not rigid, and shared nodes. Raises
    OSError.
    """
    if workload.cluster is not None or any(job.kind is not Kind.RIGID for job in workload.jobs):
        raise ValueError(f"{path}: SWF cannot express jobs that are not rigid, or share nodes")
    lines = [
        f"; Version: 2.2\n; Note: {workload.name}\n; MaxJobs: {len(workload.jobs)}",
        f"; MaxNodes: {workload.nodes}\n; MaxProcs: {workload.nodes}",
    ]
    for job, truth in zip(workload.jobs, workload.truths, strict=True):
        fields = [-1.0] * FIELDS
        fields[:2] = job.number, job.submit_s
        fields[3:5] = truth.run_s, job.nodes
        fields[7:9] = job.nodes, job.estimate_s
        fields[10] = 1
        fields[14] = float(job.queue) if job.queue.isdecimal() else -1.0
        lines.append(" ".join(f"{field:.10g}" for field in fields))
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(_PACK.get(path.suffix, bytes)(content))
