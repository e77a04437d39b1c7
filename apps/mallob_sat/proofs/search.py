"""Deciding a formula with a proof: an answer UNSAT leaves its worker only with its proof in the file.

Nothing is shared between solvers here, and no variable is renamed: a proof speaks of the
formula's own clauses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mallob_py.kit import InputError, Payload, Result, ResultFileError
from mallob_py.kit.result_file import ResultPath
from mallob_sat.declaration import SATISFIABLE, UNSATISFIABLE
from mallob_sat.formula import Formula
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.proofs.writing import (
    PROVERS,
    ProofFormat,
    ProofOfSolver,
    Scribe,
    options_for,
    write_empty_clause_proof,
    writing_to,
)
from mallob_sat.search import check_model, random_phases, set_up, solve_trivial
from mallob_sat.solvers import Verdict

_FIELD = "configuration"


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A proof is wanted in this file."""

    file: ResultPath
    format: ProofFormat

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> ProofRequest | None:
        """None if none is wanted. Raises InputError."""
        name = configuration.get("proof-format", ProofFormat.LRAT.value)
        formats = [format_.value for format_ in ProofFormat]
        if name not in formats:
            raise InputError(f"proof-format is {name!r:.40}; known are {', '.join(formats)}", _FIELD)
        file = ResultPath.from_configuration(configuration, "proof")
        return None if file is None else cls(file, ProofFormat(name))

    def portfolio(self, portfolio: Portfolio) -> Portfolio:
        """Of solvers that can write it, each on its own. Raises InputError."""
        able = portfolio.restricted_to(PROVERS[self.format], "write such a proof")
        return replace(able, shares=False, renames=False)

    def prepare(self, formula: Formula) -> Payload:
        """At the client: what workers need, to be put into the job's payload. Raises InputError."""
        if formula.assumptions.size:
            raise InputError("a formula with assumptions has no proof", _FIELD)
        return self.file.prepare()


class ProofSearch:
    """An attempt to decide a formula without assumptions, with a proof; for `race`."""

    fds: tuple[int, ...] = ()

    def __init__(self, formula: Formula, strategy: Strategy, proof: ProofRequest, payload: Payload) -> None:
        self._formula = formula
        self._strategy = strategy
        self._proof = proof
        self._payload = payload

    def run(self) -> Result:
        """Raises InputError if the file cannot be written."""
        return solve_with_proof(self._formula, self._strategy, self._proof, self._payload)

    def close(self) -> None:
        pass


def solve_with_proof(formula: Formula, strategy: Strategy, proof: ProofRequest, payload: Payload) -> Result:
    """Decide a formula without assumptions; UNSAT only with a complete proof in its file.

    Raises InputError if the file cannot be written.
    """
    if not formula.has_empty_clause and (trivial := solve_trivial(formula)) is not None:
        return trivial
    try:
        with writing_to(proof.file.begin(payload)) as scribe:
            return _solve_and_prove(formula, strategy, proof.format, scribe)
    except ResultFileError as error:
        raise proof.file.refusal(error) from None


def _solve_and_prove(formula: Formula, strategy: Strategy, format_: ProofFormat, scribe: Scribe) -> Result:
    if formula.has_empty_clause:
        write_empty_clause_proof(formula, format_, scribe)
        scribe.deliver()
        return Result(UNSATISFIABLE, [])
    assert strategy.renaming_seed is None, "a proof speaks of the formula's variables"
    solver = set_up(strategy, options_for(format_))
    writer = ProofOfSolver(solver, format_, scribe)
    writer.add(formula)
    if strategy.phase_seed is not None:
        solver.set_phases(random_phases(formula.n_vars, strategy.phase_seed))
    fields = {"solver": strategy.title}
    if solver.solve() is Verdict.UNSATISFIABLE:
        writer.close()
        scribe.deliver()
        return Result(UNSATISFIABLE, [], fields)
    model = solver.model()
    check_model(formula, model, strategy)
    return Result(SATISFIABLE, model, fields)
