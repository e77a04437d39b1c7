"""Agreement: several solvers must find the answer independently: `"agreement": 2`.

All releases and settings of a solver count as one solver, because they share most of their code and so their
faults. A solver's answer goes to all workers (`Gossip`), with its model, so that it outlives the worker that
found it; solvers without an answer are tried next. Clauses are not shared, because a wrong clause would
mislead all solvers.

Guarantees: as many different solvers as wanted have found the answer; if two solvers contradict each other,
the job ends with an error that names both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from mallob_py.kit import Gossip, InputError, Payload, Result, TreeMessage, WorkerContext, race
from mallob_sat.declaration import SATISFIABLE, UNSATISFIABLE
from mallob_sat.formula import Formula
from mallob_sat.native import NativeSearch, search_for
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.search import Search, solve_trivial

#: name prefixes of solvers with several releases or builds; any other solver is a family of its own
_FAMILIES = ("cadical", "glucose", "maple", "minisat")
#: number of strategies after which a portfolio contains no new solver
_STRATEGIES = 256
_FIELD = "configuration"


def family_of(title: str) -> str:
    """Return the name that all releases and settings of a solver have in common."""
    solver = title.partition("(")[0]
    return next((family for family in _FAMILIES if solver.startswith(family)), solver)


@dataclass(frozen=True, slots=True)
class Agreeing:
    """A mode in which `wanted` different solvers must find the same answer."""

    portfolio: Portfolio
    wanted: int

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any], portfolio: Portfolio) -> Agreeing | None:
        """Return the mode; None: one solver is enough. Raises InputError."""
        wanted = configuration.get("agreement", 1)
        if type(wanted) is not int or wanted < 1:
            raise InputError(
                f"agreement is {wanted!r:.40}; it must be a number of solvers, such as 2", _FIELD
            )
        if wanted == 1:
            return None
        agreeing = cls(replace(portfolio, shares=False), wanted)
        families = [family_of(strategy.solver) for strategy in agreeing.order()]
        if len(families) < wanted:
            raise InputError(
                f"agreement is {wanted}, but the portfolio has only {', '.join(families)}; releases of the "
                "same solver count once",
                _FIELD,
            )
        return agreeing

    def order(self) -> list[Strategy]:
        """Return the first strategy of each different solver."""
        firsts: dict[str, Strategy] = {}
        for index in range(_STRATEGIES):
            strategy = self.portfolio.strategy(index)
            firsts.setdefault(family_of(strategy.solver), strategy)
        return list(firsts.values())

    def prepare(self, formula: Formula) -> Payload:
        return {}

    def run(self, context: WorkerContext, formula: Formula) -> Result:
        trivial = solve_trivial(formula)
        return _Agreement(self, context, formula).reach() if trivial is None else trivial


class _Agreement:
    def __init__(self, mode: Agreeing, context: WorkerContext, formula: Formula) -> None:
        self._mode = mode
        self._context = context
        self._formula = formula
        self._gossip = Gossip(context)
        #: attempt so far -> its strategy
        self._solvers: dict[Search | NativeSearch, Strategy] = {}

    def reach(self) -> Result:
        return race(self._context, self._attempt, self._turn, self._add)

    def _attempt(self, number: int) -> Search | NativeSearch:
        """Make an attempt by a solver without an answer; if all have answered, by the strategy `number`."""
        places = range(number, number + _STRATEGIES)
        strategy = next(
            (found for found in map(self._strategy, places) if not self._has_answered(found)),
            self._strategy(number),
        )
        attempt = search_for(self._formula, strategy)
        self._solvers[attempt] = strategy
        return attempt

    def _strategy(self, place: int) -> Strategy:
        different = self._mode.order()
        return different[place] if place < len(different) else self._mode.portfolio.strategy(place)

    def _has_answered(self, strategy: Strategy) -> bool:
        return family_of(strategy.solver) in self._gossip.table

    # --- use by `race` ------------------------------------------------------------------------

    def _turn(
        self, messages: list[TreeMessage], attempts: Collection[Search | NativeSearch]
    ) -> list[Search | NativeSearch]:
        """Take in other workers' answers; return the attempts whose solvers have answered."""
        if self._gossip.turn(messages) and (result := self._agreed()) is not None:
            self._context.finish(result)
        return [attempt for attempt in attempts if self._has_answered(self._solvers[attempt])]

    def _add(self, result: Result) -> Result | None:
        """Publish a solver's answer; return the job's result if no further answer is needed."""
        solver = str(result.fields["solver"])
        self._gossip.put(family_of(solver), _statement(result, solver))
        return self._agreed()

    def _agreed(self) -> Result | None:
        """Return the job's result if enough answers are known. Raises InputError at a contradiction."""
        said = [_result(statement) for _, statement in sorted(self._gossip.table.items())]
        solvers = {one.code: str(one.fields["solver"]) for one in said}
        if len(solvers) > 1:
            raise InputError(
                f"{solvers[SATISFIABLE]} says that the formula is satisfiable, {solvers[UNSATISFIABLE]} that "
                "it is not; one of them is wrong, so the job has no answer",
            )
        if len(said) < self._mode.wanted:
            return None
        names = [str(one.fields["solver"]) for one in said]
        agreement = {"wanted": self._mode.wanted, "solvers": names}
        return replace(said[0], fields={**said[0].fields, "agreement": agreement})


def _statement(result: Result, solver: str) -> bytes:
    """Encode a solver's answer in few bytes, because it is passed from worker to worker."""
    literals = np.asarray(result.solution, dtype=np.int32)
    if result.code == SATISFIABLE:
        return msgspec.msgpack.encode((solver, literals.size, np.packbits(literals > 0).tobytes()))
    return msgspec.msgpack.encode((solver, -1, literals.tobytes()))


def _result(statement: bytes) -> Result:
    """Decode what `_statement` encoded."""
    solver, variables, data = msgspec.msgpack.decode(statement, type=tuple[str, int, bytes])
    if variables < 0:
        return Result(UNSATISFIABLE, np.frombuffer(data, dtype=np.int32), {"solver": solver})
    signs = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=variables)
    names = np.arange(1, variables + 1, dtype=np.int32)
    return Result(SATISFIABLE, np.where(signs, names, -names).astype(np.int32), {"solver": solver})
