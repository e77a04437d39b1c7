"""The SAT application: reads a formula once, and lets each worker try it in its own way.

What is to be found out, and how, is chosen by the job's configuration (see `ways`). As a rule, worker
i runs strategy i of the portfolio on the whole formula, or several, in solver processes (see `race`),
and exchanges learned clauses with the others (see `sharing`); the first answer ends the job. A model is
checked against the formula before it leaves its process, so that a wrong one is an error of the job
and never an answer.

Guarantees: a model assigns variables 1..n_vars in order, once each; with UNSAT the solution
holds assumptions that cannot hold together (none if the formula alone is unsatisfiable). If the
configuration asks for a proof, UNSAT is answered once it lies complete in its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mallob_py.app import Application, InputError, JobInput, Payload, Result, WorkerContext
from mallob_sat.dimacs import parse_dimacs
from mallob_sat.files import COMPRESSED_SUFFIXES, read_decompressed, read_plain
from mallob_sat.formula import Formula, formula_from_list, formula_from_raw
from mallob_sat.ways import way_of


class SatApplication(Application):
    """Decides propositional formulas with a portfolio of sequential solvers."""

    name: ClassVar[str] = "SAT"

    def check(self, configuration: Mapping[str, Any]) -> None:
        way_of(configuration)

    def read(self, job: JobInput) -> Payload:
        formula = read_formula(job)
        return {**formula.to_payload(), **way_of(job.configuration).prepare(formula)}

    def run(self, context: WorkerContext) -> Result:
        return way_of(context.configuration).run(context, Formula.from_payload(context.payload))


def read_formula(job: JobInput) -> Formula:
    """The formula that a job file names or holds. Raises InputError."""
    if job.literals is not None:
        if job.files:
            raise InputError("give either files or literals, not both", "literals")
        return formula_from_list(job.literals)
    if len(job.files) != 1:
        raise InputError(f"one formula file is needed, {len(job.files)} given")
    path = job.files[0]
    if job.configuration.get("content-mode") == "raw":
        # raw integers may begin like a compressed file, so here the name decides
        named_compressed = path.endswith(COMPRESSED_SUFFIXES)
        return formula_from_raw(read_decompressed(path) if named_compressed else read_plain(path), path)
    return parse_dimacs(read_decompressed(path), path)
