"""The SAT application: reads a formula once, and has each worker search in its own way.

The job's configuration chooses the question and the mode (see `modes`). By default, worker i runs strategy i
of the portfolio, or several strategies, on the whole formula in solver processes (see `kit.process_race`),
and exchanges learned clauses with other workers (see `sharing`); the first answer ends the job. A model is
checked against the formula before it leaves its process, so that a wrong model is an error of the job and
never an answer. Revisions of a growing formula go to a solver that stays alive (see `incremental`).

Guarantees: a model assigns variables 1..n_vars in order, once each; with UNSAT the solution contains
assumptions that cannot hold together (none if the formula alone is unsatisfiable). If the configuration asks
for a proof, UNSAT is answered only when the proof's file is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mallob_py.kit import (
    COMPRESSED_SUFFIXES,
    Application,
    InputError,
    JobInput,
    Payload,
    Result,
    WorkerContext,
    read_decompressed,
    read_plain,
)
from mallob_py.kit.input_file import text_blocks
from mallob_sat.checked import SecondReader
from mallob_sat.declaration import SatDeclaration
from mallob_sat.dimacs import read_dimacs
from mallob_sat.formula import Formula, check_numbering, formula_from_list, formula_from_raw
from mallob_sat.incremental import Revisions, grown
from mallob_sat.kissat_door import door_is_open
from mallob_sat.modes import mode_of
from mallob_sat.portfolio import content_mode


class SatApplication(SatDeclaration, Application):
    """The application SAT. It decides propositional formulas with a portfolio of sequential solvers."""

    def __init__(self) -> None:
        self._revisions = Revisions()

    def prepare(self) -> None:
        door_is_open()

    def check(self, configuration: Mapping[str, Any]) -> None:
        mode_of(configuration)

    def read(self, job: JobInput) -> Payload:
        formula = read_formula(job)
        if job.revision is not None:
            Revisions.check(job.configuration)
            return formula.to_payload()
        return {**formula.to_payload(), **mode_of(job.configuration).prepare(formula)}

    def run(self, context: WorkerContext) -> Result:
        formula = Formula.from_payload(context.payload)
        mode = self._revisions if context.chain else mode_of(context.configuration)
        return mode.run(context, formula)


def read_formula(job: JobInput) -> Formula:
    """Return the formula of a job, with the clauses of former revisions. Raises InputError."""
    formula = grown(job.former, _clauses_of(job).assuming(job.assumptions))
    check_numbering(formula.n_vars, formula.n_literals, "files" if job.files else "literals")
    return formula


def _clauses_of(job: JobInput) -> Formula:
    if job.literals is not None:
        if job.files:
            raise InputError("give either files or literals, not both", "literals")
        return formula_from_list(job.literals)
    if not job.files and job.revision is not None:
        return formula_from_list([])
    if len(job.files) != 1:
        raise InputError(f"one formula file is needed, {len(job.files)} given")
    path = job.files[0]
    if content_mode(job.configuration) == "raw":
        # Raw integers may begin like a compressed file, so the file's name decides.
        named_compressed = path.endswith(COMPRESSED_SUFFIXES)
        return formula_from_raw(read_decompressed(path) if named_compressed else read_plain(path), path)
    if not job.configuration.get("checked"):
        return _formula_from_text(text_blocks(path), path)
    with SecondReader() as second:
        formula = _formula_from_text(second.passing(text_blocks(path)), path)
        second.compare(formula, path)
        return formula


def _formula_from_text(blocks: Iterator[bytes], path: str) -> Formula:
    try:
        return read_dimacs(blocks, path)
    except InputError:
        for _ in blocks:  # raises another InputError if the file is damaged
            pass
        raise
