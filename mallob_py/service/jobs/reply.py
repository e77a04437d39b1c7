"""Replies: what a client finds in `out/` when its job has ended, been refused or failed.

Compatible with Mallob's replies: the submitted fields, `internal_id`, `internal_revision`, `result` and
`stats`. A solution of more than `inline_max` integers goes to a file beside the reply (32-bit, little
endian), named in `result.solution-file`, with the number of integers in `result.solution-size`; the IPASIR
bridge always gets that file. Every reply of a job that was run has statistics, also after limits,
interruptions and failures.

A solution in bytes is Base64 text, with `result.solution-format` "base64". In a file it is the bytes
themselves, with their number in `result.solution-size` and the format "bytes".

A job that ended early is answered with the best offer of its workers, if any: then `result.complete` is
false, `result.value` is the offer's value and `result.bound` a bound that no answer can beat, if known.

Files for large results: an application declares which keys of a configuration name files
(`Application.result_files`), and the operator in which folder these files may be; `mallob_py.kit.result_file`
confines jobs to that folder.
"""

from __future__ import annotations

import array
import base64
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.kit.declaration import UNKNOWN
from mallob_py.kit.result_file import ResultFileError, ResultsFolder, discard_unfinished, is_delivered
from mallob_py.protocol.effects import JobEnded, JobStats, Outcome
from mallob_py.protocol.interim import Interim
from mallob_py.runtime.worker_wire import SolutionForm, decode_result
from mallob_py.service import JobFileError
from mallob_py.service.jobs import mallob_clients
from mallob_py.service.jobs.job_file import JobFile

SOLUTION_INLINE_MAX = 1_000_000
#: greatest number of literals that a reply repeats, so that writing a reply does not delay other replies
LITERALS_ECHO_MAX = 100_000
_INTEGER_BYTES = 4
#: outcome of a job that was never accepted
REFUSED = "refused"


class JobStatistics(msgspec.Struct, frozen=True):
    """The cost of a job. Times of events that never happened (no worker yet) are 0."""

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
    #: time for which the job had a PE; the time limit bounds it
    used_turns_s: float = 0.0


def statistics_of(stats: JobStats, parsing_s: float, total_s: float) -> JobStatistics:
    """Return the statistics of a job that was run."""
    return JobStatistics(
        parsing_s=parsing_s,
        scheduling_s=stats.scheduled_s or 0.0,
        first_balancing_latency_s=stats.balanced_s or 0.0,
        processing_s=stats.wallclock_s,
        total_s=total_s,
        used_pe_s=stats.pe_s,
        used_wallclock_s=stats.wallclock_s,
        max_volume=stats.max_volume,
        peak_memory_bytes=stats.peak_memory_bytes,
        used_cpu_s=stats.cpu_s,
        used_turns_s=stats.turns_s,
    )


class Ending(msgspec.Struct, frozen=True):
    """The end of a job, and its result as encoded by workers."""

    outcome: Outcome
    code: int = UNKNOWN
    fields: bytes = b"{}"
    solution: bytes = b""
    form: SolutionForm = SolutionForm.INTEGERS
    #: the application's name for the result
    name: str = "UNKNOWN"
    #: the best offer of workers if the job was ended early, else None
    interim: Interim | None = None


def ending_of(ended: JobEnded) -> Ending:
    """Return the ending of a job that was run and did not fail."""
    interim, body = None, ended.body
    if body is None:
        interim = ended.interim
        body = None if interim is None else interim.body
    if body is None:
        return Ending(ended.outcome, interim=interim)
    result = decode_result(body)
    return Ending(
        ended.outcome, result.code, result.fields, result.solution, result.form, result.name, interim
    )


class Reply(msgspec.Struct, frozen=True):
    """The bytes of a reply and, for a large solution, of the file of the solution."""

    body: bytes
    solution_path: str | None = None
    solution: bytes = b""
    #: outcome of the job
    outcome: str = Outcome.RESULT.value


class _TellsOutcome(msgspec.Struct):
    outcome: str = ""


class _TellsResult(msgspec.Struct):
    result: _TellsOutcome = msgspec.field(default_factory=_TellsOutcome)


def outcome_in(body: bytes) -> str:
    """Return the outcome of the job in a reply; "": unreadable."""
    try:
        return msgspec.json.decode(body, type=_TellsResult).result.outcome
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def result_reply(
    job: JobFile,
    internal_id: int,
    ending: Ending,
    statistics: JobStatistics,
    solution_path: str,
    result_files: Mapping[str, str] | None = None,
    inline_max: int = SOLUTION_INLINE_MAX,
    revision: int = 0,
) -> Reply:
    """Return the reply to a job that ended with a result, by a limit or by interruption.

    `internal_id`: for a revision, the id of its chain's first revision. `solution_path` "": no file can be
    written, not even for the IPASIR bridge. `result_files`: configuration key -> path of the written file.
    """
    result: dict[str, Any] = {
        "resultcode": ending.code,
        "resultstring": ending.name,
        "outcome": ending.outcome.value,
    }
    solution = ending.solution
    extra = msgspec.json.decode(ending.fields or b"{}", type=dict[str, msgspec.Raw])
    own = {"resultcode", "resultstring", "outcome", "result-files"}
    own |= {"solution", "solution-file", "solution-size", "solution-format"}
    numbers: dict[str, Any] = {}
    if ending.interim is not None:
        told = {"value": ending.interim.value, "bound": ending.interim.bound}
        numbers = {key: number for key, number in told.items() if number is not None}
        own |= {"complete"} | numbers.keys()
    result.update((key, value) for key, value in extra.items() if key not in own)
    if ending.interim is not None:
        result["complete"] = False
        result.update(numbers)
    is_plain = ending.form is SolutionForm.INTEGERS and "solutions" not in extra
    is_waiting = bool(solution_path) and mallob_clients.is_bridge(job.user, job.name, job.submitted)
    is_bridge = is_plain and is_waiting
    if is_bridge and ending.code == mallob_clients.SATISFIABLE:
        solution = bytes(_INTEGER_BYTES) + solution
    is_long = len(solution) > _INTEGER_BYTES * inline_max
    is_beside = is_long or (is_bridge and bool(solution))
    if ending.form is SolutionForm.BYTES:
        result["solution-format"] = "bytes" if is_long else "base64"
    if is_beside:
        result["solution-file"] = str(solution_path)
        unit_bytes = 1 if ending.form is SolutionForm.BYTES else _INTEGER_BYTES
        result["solution-size"] = len(solution) // unit_bytes
    if not is_long:
        is_text = ending.form is SolutionForm.BYTES
        result["solution"] = base64.b64encode(solution).decode() if is_text else _integers(solution).tolist()
    if result_files:
        result["result-files"] = result_files
    body = _body(job, internal_id, revision, {"result": result, "stats": _statistics(statistics)})
    outcome = ending.outcome.value
    return Reply(body, solution_path, solution, outcome) if is_beside else Reply(body, outcome=outcome)


def failure_reply(
    job: JobFile, internal_id: int, field: str, message: str, statistics: JobStatistics, revision: int = 0
) -> Reply:
    """Return the reply to an accepted job that failed (bad input, crashed application)."""
    parts = {"error": _error(field, message), "result": _unknown("failed"), "stats": _statistics(statistics)}
    return Reply(_body(job, internal_id, revision, parts), outcome=Outcome.FAILED.value)


def refusal_reply(error: JobFileError, file_name: str, internal_id: int) -> Reply:
    """Return the reply to a job file that was not accepted."""
    content = {
        "internal_id": internal_id,
        "file": valid_text(file_name),
        "error": _error(error.field, error.message),
        "result": _unknown(REFUSED),
    }
    return Reply(msgspec.json.encode(content) + b"\n", outcome=REFUSED)


def _unknown(outcome: str) -> dict[str, Any]:
    """Return a result with code UNKNOWN, since clients written for Mallob read the result code first."""
    return {"resultcode": UNKNOWN, "resultstring": "UNKNOWN", "outcome": outcome, "solution": []}


def _body(job: JobFile, internal_id: int, revision: int, parts: Mapping[str, Any]) -> bytes:
    content: dict[str, Any] = {key: msgspec.Raw(text) for key, text in job.submitted.items()}
    if job.literals is not None and len(job.literals) <= LITERALS_ECHO_MAX:
        content["literals"] = job.literals.tolist()
    if SECRET in job.configuration:
        content["configuration"] = {key: job.configuration[key] for key in job.configuration if key != SECRET}
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
        "used_turns_seconds": statistics.used_turns_s,
        "max_volume": statistics.max_volume,
        "peak_memory_bytes": statistics.peak_memory_bytes,
    }


def _error(field: str, message: str) -> dict[str, str]:
    return {"field": valid_text(field), "message": valid_text(message)}


def valid_text(text: str) -> str:
    """Return a text in which unpaired surrogates, which no encoder takes, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def _integers(data: bytes) -> array.array[int]:
    integers = array.array("i")
    integers.frombytes(data)
    if sys.byteorder == "big":
        integers.byteswap()
    return integers


#: configuration key that is left out of replies, which other users may read
SECRET = "secret"
#: default folder of results, beside a client's `out`
RESULTS_FOLDER = "results"


class ResultFiles:
    """The result files of one client. Jobs are known by internal ids, which are never reused."""

    def __init__(self, folder: Path, client_dir: Path, keys: Mapping[str, Sequence[str]]) -> None:
        """`keys`: application -> configuration keys that name files. Several services may share `folder`."""
        self._path = os.path.abspath(folder)
        self._keys = keys
        self._client = hashlib.blake2b(os.fsencode(client_dir), digest_size=6).hexdigest()

    @property
    def root(self) -> str:
        """Return the folder below which all result files are."""
        return self._path

    def folder_for(self, job: int) -> ResultsFolder:
        return ResultsFolder(self._path, f"{self._client}-{job}")

    def named_by(self, file: JobFile) -> dict[str, str]:
        """Return configuration key -> absolute path for the files that a job names. Raises JobFileError."""
        return self._resolved(file.application, file.configuration, file)

    def configured(self, application: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Return an accepted configuration with absolute paths; make the folder of results if need be."""
        named = self._resolved(application, configuration, None)
        if named:
            with suppress(OSError):  # preparing the file will report the error
                os.makedirs(self._path, exist_ok=True)
        return {**configuration, **named}

    def _resolved(
        self, application: str, configuration: Mapping[str, Any], file: JobFile | None
    ) -> dict[str, str]:
        resolved: dict[str, str] = {}
        if not (keys := self._keys.get(application)):
            return resolved
        folder = self.folder_for(0)
        for key in keys:
            if isinstance(path := configuration.get(key), str):
                try:
                    resolved[key] = folder.resolve(path)
                except ResultFileError as error:
                    identity = None if file is None else file.identity
                    raise JobFileError("configuration", f"{key} {error}", identity) from None
        return resolved

    def delivered(self, job: int, file: JobFile) -> dict[str, str]:
        """Return configuration key -> path for the files that a job has written."""
        folder = self.folder_for(job)
        return {key: path for key, path in self.named_by(file).items() if is_delivered(path, folder)}

    def discard_unfinished(self, job: int, file: JobFile) -> None:
        """Remove a job's unfinished files after its reply; the job never runs again."""
        for path in self.named_by(file).values():
            discard_unfinished(path, self.folder_for(job))
