"""Which solver, set up how, a worker runs: a table indexed by the worker's place in its job.

A job grows and shrinks all the time and always holds the indices 0..v-1, so any prefix of the
table must be a good portfolio: the strongest all-round strategies first, each next one chosen
for what those before it miss (P 5: diversified solvers). Beyond the table it repeats, made
different by random initial phases and a random renaming of the variables.

Where a proof is wanted, only solvers that write one are taken, and variables keep their names,
since the proof speaks of them.

Guarantees: `strategy` is a pure function of index and configuration, and no two indices of
the default portfolio get the same strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mallob_py.app import InputError

#: The solvers that a job's configuration may name.
SOLVER_NAMES = (
    "cadical195",
    "cadical153",
    "cadical300",
    "kissat404",
    "lingeling",
    "ergo",
    "glucose3",
    "glucose4",
    "glucose42",
    "maplecm",
    "maplechrono",
    "maplesat",
    "mergesat3",
    "minisat22",
    "minisat-gh",
)
_CADICALS = frozenset(name for name in SOLVER_NAMES if name.startswith("cadical"))
_KNOWN_KEYS = ("solvers", "seed", "sharing", "content-mode", "proof", "proof-format")
_CONTENT_MODES = ("text", "raw")
_FIELD = "configuration"


class Trade(Enum):
    """Whether a solver passes on what it learns, and takes what others learn."""

    NOTHING = 0
    #: it is never stopped, hence cannot take anything
    GIVES = 1
    BOTH_WAYS = 2


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to search. None for a seed: the solver's own order or phases."""

    solver: str
    options: tuple[tuple[str, int], ...] = ()
    phase_seed: int | None = None
    renaming_seed: int | None = None
    trade: Trade = Trade.NOTHING

    @property
    def title(self) -> str:
        """How results and logs call it, such as `cadical195(phase=0,seed=1)`."""
        details = [f"{name}={value}" for name, value in self.options]
        if self.phase_seed is not None:
            details.append(f"phases~{self.phase_seed}")
        if self.renaming_seed is not None:
            details.append(f"renaming~{self.renaming_seed}")
        return self.solver + (f"({','.join(details)})" if details else "")


#: what the solvers can do: proofs to read from, and stops that cost little (slices cost maplecm up to 60 %)
TRADES = {
    "cadical195": Trade.BOTH_WAYS,
    "cadical153": Trade.BOTH_WAYS,
    "cadical300": Trade.BOTH_WAYS,
    "glucose3": Trade.BOTH_WAYS,
    "glucose4": Trade.BOTH_WAYS,
    "glucose42": Trade.BOTH_WAYS,
    "maplecm": Trade.GIVES,
}


@dataclass(frozen=True, slots=True)
class Portfolio:
    """The strategies of one job: named solvers in turn, or the default table if none are named."""

    solvers: tuple[str, ...] = ()
    seed: int = 0
    shares: bool = True
    #: where a proof or revisions are wanted: the solvers that can do that
    provers: tuple[str, ...] = ()

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Portfolio:
        """Raises InputError for anything that would otherwise be silently ignored."""
        for key in configuration:
            if key not in _KNOWN_KEYS:
                raise InputError(f"unknown key '{key}'; known are {', '.join(_KNOWN_KEYS)}", _FIELD)
        mode = configuration.get("content-mode", "text")
        if mode not in _CONTENT_MODES:
            raise InputError(f"content-mode is {mode!r}; known are {', '.join(_CONTENT_MODES)}", _FIELD)
        shares = configuration.get("sharing", True)
        if type(shares) is not bool:
            raise InputError(f"sharing is {shares!r:.40}; it must be true or false", _FIELD)
        return cls(_solvers(configuration), _seed(configuration), shares)

    def restricted_to(self, provers: tuple[str, ...], task: str = "write such a proof") -> Portfolio:
        """The same for a job that needs solvers which can do more. Raises InputError if it names others."""
        for name in self.solvers:
            if name not in provers:
                raise InputError(f"{name} cannot {task}; {', '.join(provers)} can", _FIELD)
        return replace(self, provers=provers, shares=False)

    def strategy(self, index: int) -> Strategy:
        """The strategy of the worker with this index (0 is the root)."""
        strategy = self._search_strategy(index)
        if not self.shares:
            return strategy
        trade = TRADES.get(strategy.solver, Trade.NOTHING)
        if trade is Trade.BOTH_WAYS and (index == 0 or ("stabilizeonly", 1) in strategy.options):
            trade = Trade.GIVES  # stops ruin long stable phases, and the first solver is often alone
        return replace(strategy, trade=trade)

    def _search_strategy(self, index: int) -> Strategy:
        if self.solvers:
            round_, place = divmod(index, len(self.solvers))
            base = Strategy(self.solvers[place])
            # a name given twice must not search twice in the same way
            earlier = self.solvers[:place].count(base.solver)
            repeat = round_ * self.solvers.count(base.solver) + earlier
        else:
            base, repeat = _default(index, self.provers)
        if repeat == 0 and self.seed == 0:
            return base
        seed = self.seed * 1_000_003 + index
        varied = _varied(base, seed)
        if not self.provers:
            return varied
        # without a renaming, only phases tell those apart that have no options
        phases = varied.phase_seed if base.solver in _CADICALS else seed
        return replace(varied, renaming_seed=None, phase_seed=phases)


#: Order: the first alone must be strong; the second pays most on formulas with many models; kissat
#: and glucose 4.2 win where CaDiCaL is slow; then other releases, other restart policies.
_TABLE = (
    Strategy("cadical195"),
    Strategy("cadical195", (("phase", 0), ("seed", 1))),
    Strategy("kissat404"),
    Strategy("glucose42"),
    Strategy("cadical195", (("stabilize", 0), ("seed", 2))),
    Strategy("cadical153"),
    Strategy("maplecm"),
    Strategy("cadical195", (("stabilizeonly", 1), ("phase", 0), ("seed", 3))),
    Strategy("cadical300"),
    Strategy("glucose4"),
    Strategy("cadical195", (("seed", 5),), phase_seed=5),
    Strategy("ergo"),
    Strategy("cadical153", (("phase", 0), ("seed", 4))),
    Strategy("maplechrono"),
    Strategy("mergesat3"),
    Strategy("minisat-gh"),
)
#: Repeated for ever after the table, each time with other seeds.
_CYCLE = (
    Strategy("cadical195"),
    Strategy("cadical195", (("phase", 0),)),
    Strategy("glucose42"),
    Strategy("cadical153"),
    Strategy("kissat404"),
    Strategy("cadical195", (("stabilize", 0),)),
    Strategy("maplecm"),
    Strategy("cadical195", (("stabilizeonly", 1),)),
)


def _default(index: int, provers: tuple[str, ...]) -> tuple[Strategy, int]:
    """A strategy and how many rounds of the cycle precede it (0 within the table)."""
    table, cycle = (
        tuple(row for row in rows if not provers or row.solver in provers) for rows in (_TABLE, _CYCLE)
    )
    if index < len(table):
        return table[index], 0
    round_, place = divmod(index - len(table), len(cycle))
    return cycle[place], round_ + 1


def _varied(base: Strategy, seed: int) -> Strategy:
    """The same strategy over renamed variables, with other phases and random choices.

    Odd seeds keep the solver's own phases, which are often better than random ones.
    """
    options = tuple(option for option in base.options if option[0] != "seed")
    if base.solver in _CADICALS:
        options += (("seed", seed % 2_000_000_000),)  # the option's range ends there
    phases = seed if seed % 2 == 0 and base.solver != "kissat404" else None
    return Strategy(base.solver, options, phase_seed=phases, renaming_seed=seed)


def _solvers(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    if "solvers" not in configuration:
        return ()
    names = configuration["solvers"]
    if not isinstance(names, list | tuple) or not names:
        raise InputError("solvers must be a list of solver names", _FIELD)
    for name in names:
        if name not in SOLVER_NAMES:
            raise InputError(f"unknown solver {name!r}; known are {', '.join(SOLVER_NAMES)}", _FIELD)
    return tuple(names)


def _seed(configuration: Mapping[str, Any]) -> int:
    seed = configuration.get("seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise InputError(f"seed is {seed!r:.40}; it must be an integer from 0 to {2**31 - 1}", _FIELD)
    return seed
