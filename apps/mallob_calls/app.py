"""The application CALLS: the workers of a job connect to an executor, which sends them calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mallob_calls.declaration import CallsDeclaration
from mallob_calls.worker import Meeting, Worker
from mallob_py.kit import Application, InputError, JobInput, Payload, Result, WorkerContext


class CallsApplication(CallsDeclaration, Application):
    """The application CALLS. An executor writes the configuration, which contains the executor's address."""

    def check(self, configuration: Mapping[str, Any]) -> None:
        _meeting(configuration)

    def read(self, job: JobInput) -> Payload:
        return {}

    def prepare(self) -> None:
        import mallob_calls.inner  # noqa: F401 (for calls that submit calls)

    def run(self, context: WorkerContext) -> Result | None:
        return Worker(context, _meeting(context.configuration)).run()


def _meeting(configuration: Mapping[str, Any]) -> Meeting:
    try:
        return msgspec.convert(configuration, Meeting)
    except msgspec.ValidationError as error:
        raise InputError(
            f"a job of CALLS comes from an executor in Python; do not write its job file yourself ({error})",
            "configuration",
        ) from None
