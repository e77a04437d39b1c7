"""Retention (`serve --keep T`): removes what one client's service has written for jobs that ended long ago.

The jobs are found in the history alone. A job's files are removed before the job's line in the history, so a
sweep that is cut off is done again. Only plain files of our user below our own folders are removed, never
through a link, and only if the file itself is old, too: the reply to a later job of the same name is younger.

A sweep runs in steps within the event loop: a few milliseconds, then a pause.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.kit.result_file import ResultFileError, ResultsFolder, is_old, remove_old, remove_result
from mallob_py.runtime.workers.output import OUTPUT_FOLDER, log_names
from mallob_py.service.jobs.job_file import identity_of
from mallob_py.service.jobs.reply import REFUSED
from mallob_py.service.store import own_folder
from mallob_py.service.store.entries import refusal_name, reply_name
from mallob_py.service.telemetry.history import HISTORY_FILES, drop_beginning, old_lines
from mallob_py.service.telemetry.status import EndedJob

#: time between two sweeps, time for the steps of one turn, pause between two turns of a sweep
_PERIOD_S, _STEPS_S, _PAUSE_S = 3600.0, 0.002, 0.02
#: size of the largest reply that is read for the names of its result files
_REPLY_BYTES_MAX = 64 << 20


class _Result(msgspec.Struct):
    files: dict[str, Any] = msgspec.field(name="result-files", default_factory=dict)


class _Reply(msgspec.Struct):
    result: _Result = msgspec.field(default_factory=_Result)


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one client in which files of its jobs lie."""

    client_dir: Path
    results: str
    output: Path

    @classmethod
    def of(cls, client_dir: Path, results: str) -> Folders:
        return cls(client_dir, results, client_dir.parent / OUTPUT_FOLDER)

    def forget(self, job: EndedJob, before_s: float) -> None:
        """Remove all files of an ended job that were written before `before_s` (seconds since 1970)."""
        identity = identity_of(job.user, job.name)
        replies = [reply_name(identity)] if job.user else []
        if job.outcome == REFUSED:
            replies.append(refusal_name(job.name))
        with suppress(OSError), own_folder.opened(self.client_dir / "out") as out:
            for name in replies:
                self._remove_results(name, out, before_s)
            _remove([f"{identity}.{job.id}.solution"], out, before_s)
            with suppress(OSError), own_folder.opened(self.output) as output:
                _remove(log_names(job.id), output, before_s)
            _remove(replies, out, before_s)  # replies are removed last: a reply names the result files

    def _remove_results(self, reply: str, out: int, before_s: float) -> None:
        folder = ResultsFolder(self.results, "")
        with suppress(OSError, ValueError, msgspec.MsgspecError, RecursionError):
            if not is_old(reply, out, before_s):
                return
            told = msgspec.json.decode(own_folder.read_file(reply, out, _REPLY_BYTES_MAX), type=_Reply)
            for path in told.result.files.values():
                if isinstance(path, str):
                    with suppress(OSError, ResultFileError):
                        remove_result(folder.resolve(path), folder.path, before_s)


def _remove(names: list[str] | tuple[str, ...], folder: int, before_s: float) -> None:
    for name in names:
        if "/" not in name:
            with suppress(OSError, ValueError):
                remove_old(name, folder, before_s)


class Retention:
    """The sweeps of one client."""

    def __init__(
        self,
        keep_s: float,
        client_dir: Path,
        forget: Callable[[EndedJob, float], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`forget`: removes files of a job that were written before a time; `clock`: seconds since 1970."""
        self._keep_s = keep_s
        self._client_dir = client_dir
        self._forget = forget
        self._clock = clock
        self._sweep: Iterator[None] | None = None
        #: time at which `turn` has something to do
        self.deadline_s = -math.inf

    def turn(self, now: float) -> None:
        """Do some steps of the current sweep, or of a new sweep."""
        if self._sweep is None:
            self._sweep = self._steps()
        until_s = time.monotonic() + _STEPS_S
        for _ in self._sweep:
            if time.monotonic() >= until_s:
                self.deadline_s = now + _PAUSE_S
                return
        self._sweep = None
        self.deadline_s = now + _PERIOD_S

    def _steps(self) -> Iterator[None]:
        now_s = self._clock()
        before_s = now_s - self._keep_s
        for name in HISTORY_FILES:
            path = self._client_dir / name
            with suppress(OSError):  # the next sweep tries again
                end_bytes = 0
                for job, end_bytes in old_lines(path, before_s, now_s):  # noqa: B007 (the last one counts)
                    if job is not None:
                        self._forget(job, before_s)
                    yield
                if end_bytes:
                    yield from drop_beginning(path, end_bytes)
