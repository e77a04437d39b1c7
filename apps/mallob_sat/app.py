"""The SAT application: reads a formula once, and lets each worker try it in its own way.

Worker i runs strategy i of the portfolio on the whole formula, or several, in solver processes
(see `race`), and exchanges learned clauses with the others (see `sharing`); the first answer ends
the job. A model is checked against the formula before it leaves its process, so that a wrong one is an
error of the job and never an answer.

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
from mallob_sat.portfolio import Portfolio
from mallob_sat.proof_search import ProofSearch, solve_with_proof
from mallob_sat.proofs.request import ProofRequest
from mallob_sat.race import race
from mallob_sat.search import Search, solve_quickly
from mallob_sat.sharing import Sharing


class SatApplication(Application):
    """Decides propositional formulas with a portfolio of sequential solvers."""

    name: ClassVar[str] = "SAT"

    def check(self, configuration: Mapping[str, Any]) -> None:
        _portfolio(configuration)

    def read(self, job: JobInput) -> Payload:
        formula = read_formula(job)
        proof = ProofRequest.from_configuration(job.configuration)
        return {**formula.to_payload(), **(proof.prepare(formula) if proof else {})}

    def run(self, context: WorkerContext) -> Result:
        formula = Formula.from_payload(context.payload)
        portfolio = _portfolio(context.configuration)
        proof = ProofRequest.from_configuration(context.configuration)
        if proof is not None:
            return _prove(context, formula, portfolio, proof)
        quick = solve_quickly(formula, portfolio.strategy(context.index * context.threads))
        if quick is not None:
            return quick
        sharing = Sharing(context)
        result = race(context, lambda number: Search(formula, portfolio.strategy(number)), sharing.turn)
        shared = {"shared_clauses": {"given": sharing.given, "taken": sharing.taken}}
        return Result(result.code, result.solution, dict(result.fields) | shared)


def _portfolio(configuration: Mapping[str, Any]) -> Portfolio:
    portfolio = Portfolio.from_configuration(configuration)
    proof = ProofRequest.from_configuration(configuration)
    return proof.portfolio(portfolio) if proof else portfolio


def _prove(context: WorkerContext, formula: Formula, portfolio: Portfolio, proof: ProofRequest) -> Result:
    """Each solver on its own: a proof must not depend on what others have learned."""
    if formula.has_empty_clause:
        return solve_with_proof(formula, portfolio.strategy(0), proof, context.payload)
    return race(
        context,
        lambda number: ProofSearch(formula, portfolio.strategy(number), proof, context.payload),
        lambda messages, searches: None,
    )


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
