"""The application SMT: reads a script once, and has each worker run other engines on the script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mallob_py.kit import Application, InputError, JobInput, Payload, Result, WorkerContext
from mallob_py.kit.input_file import read_text
from mallob_smt.declaration import SmtDeclaration
from mallob_smt.engines import Wishes, installed_engines
from mallob_smt.running import run_engines
from mallob_smt.script import Script, script_from_text
from mallob_smt.sessions import load


class SmtApplication(SmtDeclaration, Application):
    """SMT: answers scripts in SMT-LIB 2 with the first engine that can."""

    def check(self, configuration: Mapping[str, Any]) -> None:
        Wishes.from_configuration(configuration)

    def read(self, job: JobInput) -> Payload:
        if job.literals is not None or job.assumptions:
            raise InputError("SMT takes no literals; name a file with the script", "literals")
        if len(job.files) != 1:
            raise InputError(f"one script in SMT-LIB 2 is needed, {len(job.files)} files given")
        (path,) = job.files
        return script_from_text(read_text(path), path).to_payload()

    def prepare(self) -> None:
        for engine in installed_engines():
            load(engine)

    def run(self, context: WorkerContext) -> Result:
        wishes = Wishes.from_configuration(context.configuration)
        return run_engines(context, Script.from_payload(context.payload), wishes)
