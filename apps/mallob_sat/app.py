"""The SAT application: reads a formula once, and lets each worker try it in its own way.

Worker i runs strategy i of the portfolio on the whole formula, or several with as many solver
processes (see `race`); the first answer ends the job. Nothing is exchanged between workers. A
model is checked against the formula before it leaves its process, so that a wrong one is an
error of the job and never an answer.

Guarantees: a model assigns variables 1..n_vars in order, once each; with UNSAT the solution
holds assumptions that cannot hold together (none if the formula alone is unsatisfiable). If the
configuration asks for a proof, UNSAT is answered once it lies complete in its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mallob_py.app import (
    SATISFIABLE,
    UNSATISFIABLE,
    Application,
    InputError,
    JobInput,
    Payload,
    Result,
    ResultFileError,
    WorkerContext,
)
from mallob_sat.dimacs import parse_dimacs
from mallob_sat.files import COMPRESSED_SUFFIXES, read_decompressed, read_plain
from mallob_sat.formula import Formula, Literals, formula_from_list, formula_from_raw
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.proofs.request import ProofRequest
from mallob_sat.proofs.scribe import Scribe, writing_to
from mallob_sat.proofs.writing import ProofFormat, ProofOfSolver, options_for, write_empty_clause_proof
from mallob_sat.race import race
from mallob_sat.solvers import Answer, Solver


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

        def attempt(number: int) -> Result:
            strategy = portfolio.strategy(number)
            if proof is None:
                return solve(formula, strategy)
            return solve_with_proof(formula, strategy, proof, context.payload)

        if context.threads == 1 or (proof is not None and formula.has_empty_clause):
            return attempt(context.index)
        if (trivial := _solve_trivial(formula)) is not None:
            return trivial
        return race(context, attempt)


def _portfolio(configuration: Mapping[str, Any]) -> Portfolio:
    portfolio = Portfolio.from_configuration(configuration)
    proof = ProofRequest.from_configuration(configuration)
    return portfolio.restricted_to(proof.engines) if proof else portfolio


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


def solve(formula: Formula, strategy: Strategy) -> Result:
    """Decide a formula. Raises RuntimeError if the solver's model is wrong."""
    trivial = _solve_trivial(formula)
    if trivial is not None:
        return trivial
    renaming = _Renaming.for_strategy(formula, strategy)
    renamed = renaming.apply(formula)
    solver = _set_up(strategy)
    solver.add_formula(renamed)
    if strategy.phase_seed is not None:
        solver.set_phases(_random_phases(renamed.n_vars, strategy.phase_seed))
    answer = solver.solve(renamed.assumptions.tolist())
    fields = {"solver": strategy.title}
    if answer is Answer.UNSATISFIABLE:
        return Result(UNSATISFIABLE, renaming.undo_literals(solver.core()), fields)
    model = renaming.undo_model(solver.model(), formula.n_vars)
    check_model(formula, model, strategy)
    return Result(SATISFIABLE, model, fields)


def solve_with_proof(formula: Formula, strategy: Strategy, proof: ProofRequest, payload: Payload) -> Result:
    """The same for a formula without assumptions; UNSAT only with a complete proof in its file.

    Raises InputError if the file cannot be written.
    """
    if not formula.has_empty_clause and (trivial := _solve_trivial(formula)) is not None:
        return trivial
    try:
        with writing_to(proof.begin(payload)) as scribe:
            return _solve_and_prove(formula, strategy, proof.format, scribe)
    except ResultFileError as error:
        raise InputError(f"proof {error}", "configuration") from None


def _solve_and_prove(formula: Formula, strategy: Strategy, format_: ProofFormat, scribe: Scribe) -> Result:
    if formula.has_empty_clause:
        write_empty_clause_proof(formula, format_, scribe)
        scribe.deliver()
        return Result(UNSATISFIABLE, [])
    assert strategy.renaming_seed is None, "a proof speaks of the formula's variables"
    solver = _set_up(strategy, options_for(format_))
    writer = ProofOfSolver(solver, format_, scribe)
    writer.add(formula)
    if strategy.phase_seed is not None:
        solver.set_phases(_random_phases(formula.n_vars, strategy.phase_seed))
    fields = {"solver": strategy.title}
    if solver.solve() is Answer.UNSATISFIABLE:
        writer.close()
        scribe.deliver()
        return Result(UNSATISFIABLE, [], fields)
    model = solver.model()
    check_model(formula, model, strategy)
    return Result(SATISFIABLE, model, fields)


def _set_up(strategy: Strategy, further_options: tuple[tuple[str, int], ...] = ()) -> Solver:
    solver = Solver(strategy.solver)
    for name, value in strategy.options + further_options:
        solver.set_option(name, value)
    return solver


def check_model(formula: Formula, model: Literals, strategy: Strategy) -> None:
    """Raise RuntimeError unless the model satisfies every clause and assumption."""
    falsified = formula.first_falsified(model)
    if falsified is not None:
        raise RuntimeError(f"{strategy.title} gave a wrong model: clause {falsified + 1} is false")
    assumptions = formula.assumptions
    if not np.array_equal(model[np.abs(assumptions) - 1], assumptions):
        raise RuntimeError(f"{strategy.title} gave a wrong model: an assumption is false")


def _solve_trivial(formula: Formula) -> Result | None:
    """Answers that need no solver: an empty clause, no clause, assumptions x and -x."""
    if formula.has_empty_clause:
        return Result(UNSATISFIABLE, [])
    assumed = set(formula.assumptions.tolist())
    clashing = [literal for literal in assumed if -literal in assumed]
    if clashing:
        variable = min(abs(literal) for literal in clashing)
        return Result(UNSATISFIABLE, [-variable, variable])
    if formula.n_clauses:
        return None
    model = -np.arange(1, formula.n_vars + 1, dtype=np.int32)
    model[np.abs(formula.assumptions) - 1] = formula.assumptions
    return Result(SATISFIABLE, model)


@dataclass(frozen=True, slots=True)
class _Renaming:
    """A renaming of variables: `original[w]` is the variable that the solver knows as w (w >= 1)."""

    original: Literals | None

    @classmethod
    def for_strategy(cls, formula: Formula, strategy: Strategy) -> _Renaming:
        """Random if the strategy says so; dense if most variables never occur; else none.

        Solvers take memory for every variable up to the largest, used or not.
        """
        sparse = formula.n_vars > 1000 + 2 * (formula.literals.size + formula.assumptions.size)
        if not sparse and strategy.renaming_seed is None:
            return cls(None)
        if sparse:
            used = np.unique(np.abs(np.concatenate((formula.literals, formula.assumptions))))
            used = used[used > 0]
        else:
            used = np.arange(1, formula.n_vars + 1, dtype=np.int32)
        if strategy.renaming_seed is not None:
            np.random.default_rng(strategy.renaming_seed).shuffle(used)
        return cls(np.concatenate((np.zeros(1, dtype=np.int32), used.astype(np.int32))))

    def apply(self, formula: Formula) -> Formula:
        if self.original is None:
            return formula
        n_vars = self.original.size - 1
        order = np.argsort(self.original[1:])
        known = self.original[1:][order]
        names = (order + 1).astype(np.int32)

        def rename(literals: Literals) -> Literals:
            renamed = names[np.minimum(np.searchsorted(known, np.abs(literals)), n_vars - 1)]
            return (renamed * np.sign(literals)).astype(np.int32)

        return Formula(rename(formula.literals), n_vars, formula.n_clauses, rename(formula.assumptions))

    def undo_literals(self, literals: list[int]) -> list[int]:
        if self.original is None:
            return literals
        return [int(self.original[abs(x)]) * (1 if x > 0 else -1) for x in literals]

    def undo_model(self, model: Literals, n_vars: int) -> Literals:
        """The model over all variables of the formula; those that never occur are false."""
        if self.original is None:
            return model
        full = -np.arange(1, n_vars + 1, dtype=np.int32)
        variables = self.original[1:]
        full[variables - 1] = variables * np.sign(model)
        return full


def _random_phases(n_vars: int, seed: int) -> list[int]:
    signs = np.random.default_rng(seed).choice(np.array([-1, 1], dtype=np.int64), n_vars)
    phases: list[int] = (np.arange(1, n_vars + 1) * signs).tolist()
    return phases
