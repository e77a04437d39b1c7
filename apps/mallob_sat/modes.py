"""The modes of a job, chosen by its configuration: the question about its formula, and the way to its answer.

`Deciding` is the default: it finds a model, or that there is none. `Proving` adds a proof of UNSAT;
`Agreeing` (in `agreement`) needs several solvers; `Checking` (in `checked`) has each step checked;
`CoreFinding` (in `cores`) names clauses that cannot hold together; `Enumerating` (in `enumeration`) finds
several models. All workers of a job run the same mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from mallob_py.kit import InputError, Payload, Result, WorkerContext, race
from mallob_sat.agreement import Agreeing
from mallob_sat.checked import Checking
from mallob_sat.cores import CoreFinding
from mallob_sat.cryptominisat import cryptominisat_is_installed
from mallob_sat.declaration import SATISFIABLE
from mallob_sat.enumeration import Enumerating
from mallob_sat.formula import Formula
from mallob_sat.native import natives_are_installed, search_for
from mallob_sat.portfolio import (
    LONE_PORTFOLIO,
    NATIVE_PORTFOLIO,
    PLAIN_PORTFOLIO,
    RANDOM_PORTFOLIO,
    SMALL_RANDOM_PORTFOLIO,
    XOR_PORTFOLIO,
    Portfolio,
)
from mallob_sat.proofs import ProofRequest, ProofSearch, solve_with_proof
from mallob_sat.search import solve_quickly, solve_trivial
from mallob_sat.sharing import Sharing
from mallob_sat.structure import is_random, xor_share

_FIELD = "configuration"
#: formats of models: literals, or bits (see `Packing`)
_FORMS = ("literals", "packed")
#: configuration keys each of which asks for a mode
_WISHES = ("proof", "core", "solutions", "checked")
#: smallest share of XORs with which CryptoMiniSat comes first
_XOR_SHARE_MIN = 0.6
#: greatest number of clauses of a random formula for which a proof of UNSAT is feasible
_PROVABLE_RANDOM_CLAUSES = 1500


def wishes_of(configuration: Mapping[str, Any]) -> list[str]:
    """Return the configuration keys that ask for more than a decision."""
    return [key for key in _WISHES if configuration.get(key) not in (None, False)]


class Mode(Protocol):
    """What a job does with its formula."""

    def prepare(self, formula: Formula) -> Payload:
        """Return, at the client, further payload for workers. Raises InputError if the mode is impossible."""
        ...

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        """Work on the formula; called in each worker."""
        ...


def mode_of(configuration: Mapping[str, Any]) -> Mode:
    """Return the mode of a configuration. Raises InputError if it is wrong or contradictory."""
    wishes = wishes_of(configuration)
    if len(wishes) > 1:
        raise InputError(f"{wishes[0]} and {wishes[1]} are not possible together", _FIELD)
    portfolio = Portfolio.from_configuration(configuration)
    proof = ProofRequest.from_configuration(configuration)
    core = CoreFinding.from_configuration(configuration, portfolio)
    enumerating = Enumerating.from_configuration(configuration)
    agreeing = Agreeing.from_configuration(configuration, portfolio)
    if agreeing is not None and wishes:
        raise InputError(f"{wishes[0]} and agreement are not possible together", _FIELD)
    checking = Checking.from_configuration(configuration, portfolio)
    proving = None if proof is None else Proving(proof.portfolio(portfolio), proof)
    if "cryptominisat" in portfolio.members.solvers and not cryptominisat_is_installed():
        raise InputError("cryptominisat is not installed; pip install pycryptosat", _FIELD)
    mode: Mode = proving or core or enumerating or agreeing or checking or Deciding(portfolio)
    return Packing(mode) if wants_packed(configuration) else mode


@dataclass(frozen=True, slots=True)
class Deciding:
    """The mode in which the solvers of all workers race, and share learned clauses."""

    portfolio: Portfolio

    def prepare(self, formula: Formula) -> Payload:
        return {}

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        if context.index == 0:
            quick = solve_quickly(formula, self.portfolio.strategy(0))
        else:  # other workers come after the root has tried
            quick = solve_trivial(formula)
        if quick is not None:
            return quick
        # Only now, because small jobs should not wait until other solvers are loaded.
        portfolio = self._portfolio_for(formula, context.is_alone and context.threads == 1)
        sharing = Sharing(context, portfolio.has_partners)
        result = race(
            context,
            lambda number: search_for(
                formula, portfolio.strategy(number), lambda: context.volume * context.threads
            ),
            sharing.turn,
            pause_s=sharing.pause_s,
        )
        return sharing.counted(result)

    def _portfolio_for(self, formula: Formula, is_alone: bool) -> Portfolio:
        """Return the portfolio that the job asks for, else the one that suits the formula best."""
        if not self.portfolio.is_default or formula.assumptions.size:  # kissat names no failed assumptions
            return self.portfolio
        if cryptominisat_is_installed() and xor_share(formula) >= _XOR_SHARE_MIN:
            return self.portfolio.following(XOR_PORTFOLIO)
        if is_random(formula):
            small = formula.n_clauses <= _PROVABLE_RANDOM_CLAUSES
            return self.portfolio.following(SMALL_RANDOM_PORTFOLIO if small else RANDOM_PORTFOLIO)
        if is_alone:
            return self.portfolio.following(LONE_PORTFOLIO)
        return self.portfolio.following(NATIVE_PORTFOLIO if natives_are_installed() else PLAIN_PORTFOLIO)


@dataclass(frozen=True, slots=True)
class Proving:
    """The mode in which solvers race without sharing, because a proof must not use foreign clauses."""

    portfolio: Portfolio
    proof: ProofRequest

    def prepare(self, formula: Formula) -> Payload:
        return self.proof.prepare(formula)

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        strategy, proof, payload = self.portfolio.strategy, self.proof, context.payload
        if formula.has_empty_clause:
            return solve_with_proof(formula, strategy(0), proof, payload)
        return race(
            context,
            lambda number: ProofSearch(formula, strategy(number), proof, payload),
            lambda messages, searches: None,
        )


def wants_packed(configuration: Mapping[str, Any]) -> bool:
    """Tell whether models must be packed. Raises InputError."""
    form = configuration.get("model", "literals")
    if form not in _FORMS:
        raise InputError(f"model is {form!r:.40}; known are {', '.join(_FORMS)}", _FIELD)
    return bool(form == "packed")


def packed(result: Result) -> Result:
    """Convert a result's model, if any, into bytes; see `Packing`."""
    if result.code != SATISFIABLE:
        return result
    model = np.asarray(result.solution, dtype=np.int32)
    bits = np.packbits(model > 0, bitorder="little").tobytes()
    return replace(result, solution=bits, fields=dict(result.fields) | {"variables": int(model.size)})


@dataclass(frozen=True, slots=True)
class Packing:
    """A mode that runs `mode` and packs its model into bits: variable v's value is bit v - 1, 1 for true.

    A model of a million variables then takes 125 kB instead of 7 MB as literals. Bits are counted from the
    lowest bit of each byte; bits beyond the last variable are 0.
    """

    mode: Mode

    def prepare(self, formula: Formula) -> Payload:
        return self.mode.prepare(formula)

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        return packed(self.mode.run(context, formula))
