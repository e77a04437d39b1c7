"""Two applications that compute nothing, to measure and test the scheduling alone.

NOOP ends at once: its latency is what the system itself costs. SLEEP never ends: a job of it
occupies whatever workers it is given until a limit or an interruption, which is how streams
of malleable jobs are replayed in scheduling studies.

Guarantees: importing this costs nothing beyond the standard library, and neither computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from mallob_py.kit import Application, InputError, JobInput, Payload, Result, WorkerContext

__all__ = ["NoopApplication", "SleepApplication"]


_DONE = 10


def _refuse_input(job: JobInput) -> None:
    """Reject input: a caller that reads input although `takes_input` is false must not lose data silently."""
    if job.files:
        raise InputError("this application takes no files", "files")
    if job.literals is not None:
        raise InputError("this application takes no literals", "literals")


class NoopApplication(Application):
    """An application that answers as soon as the root has started; other workers wait for the answer."""

    name: ClassVar[str] = "NOOP"
    takes_input: ClassVar[bool] = False
    result_strings: ClassVar[Mapping[int, str]] = {_DONE: "DONE"}

    def read(self, job: JobInput) -> Payload:
        _refuse_input(job)
        return {}

    def run(self, context: WorkerContext) -> Result:
        if context.index > 0:
            context.park()
        return Result(_DONE, [])


class SleepApplication(Application):
    """An application that holds its workers until the job is ended from outside."""

    name: ClassVar[str] = "SLEEP"
    takes_input: ClassVar[bool] = False

    def check(self, configuration: Mapping[str, Any]) -> None:
        """Accept any configuration: replayed streams contain configurations of other applications."""

    def read(self, job: JobInput) -> Payload:
        _refuse_input(job)
        return {}

    def run(self, context: WorkerContext) -> NoReturn:
        context.park()
