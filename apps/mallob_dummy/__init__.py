"""Two applications that compute nothing, to measure and test the scheduling alone.

NOOP ends at once: its latency is the time that the system itself takes. SLEEP never ends: its job occupies
the workers that it gets until a limit or an interruption. Scheduling studies use SLEEP to replay streams of
malleable jobs.

Guarantee: importing this module imports only the standard library and `mallob_py.kit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from mallob_py.kit import Application, InputError, JobInput, Payload, Result, WorkerContext

__all__ = ["NoopApplication", "SleepApplication"]


_DONE = 10


def _refuse_input(job: JobInput) -> None:
    """Reject input. A client that ignores `takes_input` must not lose its input unnoticed."""
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
    """An application that keeps its workers until a limit or an interruption ends the job."""

    name: ClassVar[str] = "SLEEP"
    takes_input: ClassVar[bool] = False

    def check(self, configuration: Mapping[str, Any]) -> None:
        """Accept any configuration, because replayed jobs may have configurations of other applications."""

    def read(self, job: JobInput) -> Payload:
        _refuse_input(job)
        return {}

    def run(self, context: WorkerContext) -> NoReturn:
        context.park()
