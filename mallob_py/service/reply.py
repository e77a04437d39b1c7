"""Replies: what a client finds in `out/` when its job has ended, been refused or failed.

Compatible with Mallob's replies: the submitted fields echoed, `internal_id`,
`internal_revision`, `result` and `stats`. A solution beyond `inline_max` integers goes to a
file beside the reply (32-bit little-endian integers), named in `result.solution-file` with its
number of integers in `result.solution-size`. Every reply that was run carries statistics, also
after timeouts, interruptions and failures.

A solution that an application gives as bytes is a text in Base64, with `result.solution-format`
"base64". In a file it is these bytes themselves, `result.solution-size` their number and the format
"bytes".
"""

from __future__ import annotations

import array
import base64
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.kit.app import RESULT_STRINGS, SATISFIABLE, UNKNOWN
from mallob_py.runtime.worker_wire import SolutionForm
from mallob_py.service.errors import JobFileError
from mallob_py.service.job_file import JobFile

SOLUTION_INLINE_MAX = 1_000_000
LITERALS_ECHO_MAX = 1_000_000
_INTEGER_BYTES = 4


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """What a job cost. Times that did not come about (no worker yet) are 0."""

    parsing_s: float = 0.0
    scheduling_s: float = 0.0
    first_balancing_latency_s: float = 0.0
    processing_s: float = 0.0
    total_s: float = 0.0
    used_pe_s: float = 0.0
    used_wallclock_s: float = 0.0
    max_volume: int = 0
    peak_memory_bytes: int = 0
    used_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: the event log's outcome word and the result, encoded as workers send it."""

    kind: str
    code: int = UNKNOWN
    fields: bytes = b"{}"
    solution: bytes = b""
    form: SolutionForm = SolutionForm.INTEGERS


@dataclass(frozen=True, slots=True)
class Reply:
    """The bytes of a reply file and, where the solution is large, of the file beside it."""

    body: bytes
    solution_path: Path | None = None
    solution: bytes = b""


def result_reply(
    job: JobFile,
    internal_id: int,
    outcome: Outcome,
    statistics: JobStatistics,
    solution_path: Path,
    result_files: Mapping[str, str] | None = None,
    inline_max: int = SOLUTION_INLINE_MAX,
    revision: int = 0,
) -> Reply:
    """The reply of a job that ended with a result, by a limit or by interruption.

    `internal_id` is that of a chain's first revision for all of them. `result_files` are the files that
    it has written, by the keys of its configuration that name them.
    """
    result: dict[str, Any] = {
        "resultcode": outcome.code,
        "resultstring": result_string(outcome.code),
        "outcome": outcome.kind,
    }
    solution = outcome.solution
    extra = msgspec.json.decode(outcome.fields or b"{}", type=dict[str, msgspec.Raw])
    own = {"resultcode", "outcome", "result-files"}
    own |= {"solution", "solution-file", "solution-size", "solution-format"}
    if outcome.code in RESULT_STRINGS:
        own.add("resultstring")  # codes beyond SAT, UNSAT, UNKNOWN are the application's to name
    result.update((key, value) for key, value in extra.items() if key not in own)
    is_model = outcome.code == SATISFIABLE and outcome.form is SolutionForm.INTEGERS
    if job.indexes_model and is_model and "solutions" not in extra:
        solution = bytes(_INTEGER_BYTES) + solution
    is_long = len(solution) > _INTEGER_BYTES * inline_max
    if outcome.form is SolutionForm.BYTES:
        result["solution-format"] = "bytes" if is_long else "base64"
    if is_long:
        result["solution-file"] = str(solution_path)
        unit_bytes = 1 if outcome.form is SolutionForm.BYTES else _INTEGER_BYTES
        result["solution-size"] = len(solution) // unit_bytes
    elif outcome.form is SolutionForm.BYTES:
        result["solution"] = base64.b64encode(solution).decode()
    else:
        result["solution"] = _integers(solution).tolist()
    if result_files:
        result["result-files"] = result_files
    body = _body(job, internal_id, revision, {"result": result, "stats": _statistics(statistics)})
    return Reply(body, solution_path, solution) if is_long else Reply(body)


def result_string(code: int) -> str:
    """Such as SAT or UNSAT."""
    return RESULT_STRINGS.get(code, str(code))


def failure_reply(
    job: JobFile, internal_id: int, field: str, message: str, statistics: JobStatistics, revision: int = 0
) -> Reply:
    """The reply of an accepted job that could not be run to an end (bad input, crashed application)."""
    parts = {"error": _error(field, message), "result": _unknown("failed"), "stats": _statistics(statistics)}
    return Reply(_body(job, internal_id, revision, parts))


def refusal_reply(error: JobFileError, file_name: str, internal_id: int) -> Reply:
    """The reply of a job file that was not accepted."""
    content = {
        "internal_id": internal_id,
        "file": valid_text(file_name),
        "error": _error(error.field, error.message),
        "result": _unknown("refused"),
    }
    return Reply(msgspec.json.encode(content) + b"\n")


def _unknown(outcome: str) -> dict[str, Any]:
    """Clients written for Mallob look at the result code before anything else: it must be there."""
    return {
        "resultcode": UNKNOWN,
        "resultstring": RESULT_STRINGS[UNKNOWN],
        "outcome": outcome,
        "solution": [],
    }


def _body(job: JobFile, internal_id: int, revision: int, parts: Mapping[str, Any]) -> bytes:
    content: dict[str, Any] = {
        # The standard library's encoder takes what users may submit and msgspec refuses:
        # integers beyond 64 bits and unpaired surrogates.
        key: msgspec.Raw(json.dumps(value).encode())
        for key, value in job.submitted.items()
    }
    if job.literals is not None and len(job.literals) <= LITERALS_ECHO_MAX:
        content["literals"] = job.literals.tolist()
    if job.warnings:
        content["warnings"] = list(job.warnings)
    content["internal_id"] = internal_id
    content["internal_revision"] = revision
    content.update(parts)
    return msgspec.json.encode(content) + b"\n"


def _statistics(statistics: JobStatistics) -> dict[str, Any]:
    return {
        "time": {
            "parsing": statistics.parsing_s,
            "scheduling": statistics.scheduling_s,
            "first_balancing_latency": statistics.first_balancing_latency_s,
            "processing": statistics.processing_s,
            "total": statistics.total_s,
        },
        "used_cpu_seconds": statistics.used_cpu_s,
        "used_pe_seconds": statistics.used_pe_s,
        "used_wallclock_seconds": statistics.used_wallclock_s,
        "max_volume": statistics.max_volume,
        "peak_memory_bytes": statistics.peak_memory_bytes,
    }


def _error(field: str, message: str) -> dict[str, str]:
    return {"field": valid_text(field), "message": valid_text(message)}


def valid_text(text: str) -> str:
    """The text with unpaired surrogates written out, which no encoder takes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _integers(data: bytes) -> array.array[int]:
    integers = array.array("i")
    integers.frombytes(data)
    if sys.byteorder == "big":
        integers.byteswap()
    return integers
