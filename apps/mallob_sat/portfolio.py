"""The portfolio: a sequence of strategies (solvers with settings), indexed by a worker's index in its job.

A job grows and shrinks all the time and always has workers 0..v-1, so any prefix must be a good portfolio:
the strongest all-round strategies come first, and each further one is chosen for formulas on which the
earlier ones are weak (P 5: diversified solvers). The sequence is built in, or given by the configuration (see
`portfolio_syntax`). A repeated strategy is varied by random initial phases and a random renaming of the
variables.

If a proof is wanted, only solvers that write proofs are used, and variables keep their names, which occur in
the proof. Which built-in portfolio is used may depend on the formula: full of XORs, or random.

Guarantees: `strategy` is a pure function of index and configuration, and no two indices get the same strategy
(with a proof: unless a solver without a seed is repeated).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mallob_py.kit import InputError
from mallob_sat.kissat_door import door_is_open
from mallob_sat.portfolio_syntax import PHASELESS, Member, Members, Phases, cycle_of, parse_portfolio

#: solvers that a job's configuration may name
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
    "cryptominisat",
)
#: solver that exchanges clauses at restarts, at no cost
KISSAT = "kissat404"
_CADICALS = frozenset(name for name in SOLVER_NAMES if name.startswith("cadical"))
_KNOWN_KEYS = (
    *("content-mode", "portfolio", "solvers", "seed", "sharing", "agreement", "checked"),
    *(
        "model",
        "proof",
        "proof-format",
        "core",
        "solutions",
        "projection",
        "solutions-file",
        "solutions-until",
        "solutions-within",
    ),
)
_CONTENT_MODES = ("text", "raw")
_FIELD = "configuration"


class Trade(Enum):
    """Whether a solver gives learned clauses, and takes foreign clauses."""

    NOTHING = 0
    #: The solver gives clauses to the other workers. A native solver takes clauses, too, but only later
    #: (`native.LEFT_ALONE_S`). A solver of PySAT takes none, so its search is never stopped. Kissat takes
    #: none, so it finds models as early as a kissat that searches alone.
    GIVES = 1
    BOTH_WAYS = 2


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to search. `phase_seed` None: the solver's own phases; `renaming_seed` None: no renaming."""

    solver: str
    options: tuple[tuple[str, int], ...] = ()
    phase_seed: int | None = None
    renaming_seed: int | None = None
    trade: Trade = Trade.NOTHING
    breaks_symmetries: bool = False
    #: whether kissat soon takes clauses, and leaves stable phases to the second worker
    leaves_stable_phases: bool = False

    @property
    def title(self) -> str:
        """Return the name in results and logs, such as `cadical195(phase=0,seed=1)`."""
        details = [f"{name}={value}" for name, value in self.options]
        if self.phase_seed is not None:
            details.append(f"phases~{self.phase_seed}")
        if self.renaming_seed is not None:
            details.append(f"renaming~{self.renaming_seed}")
        if self.breaks_symmetries:
            details.append("symmetries")
        return self.solver + (f"({','.join(details)})" if details else "")


#: solver -> its trade: a solver can give clauses if its proof can be read, and take clauses if stopping the
#: search costs little (stops cost maplecm up to 60 %)
TRADES = {
    "cadical195": Trade.BOTH_WAYS,
    "cadical153": Trade.BOTH_WAYS,
    "cadical300": Trade.BOTH_WAYS,
    "glucose3": Trade.BOTH_WAYS,
    "glucose4": Trade.BOTH_WAYS,
    "glucose42": Trade.BOTH_WAYS,
    "maplecm": Trade.GIVES,
    "kissat404": Trade.BOTH_WAYS,
}


#: The default portfolio. The first solver must be strong alone; the second is worth most on formulas with
#: many models; kissat and glucose 4.2 are fast where CaDiCaL is slow; then other releases and restart
#: policies follow.
DEFAULT_PORTFOLIO = "c c0 k g c- o m c+0 n h c~ e o0 r x u (c c0 g o k c- m c+)*"
#: Portfolio for jobs that only decide a formula, which kissat can: no other solver is as strong alone, or
#: gains as much from others of its kind. The second worker, a kissat with stable phases only, finds models
#: and short proofs earlier, while the first soon has no more stable phases; breaking symmetries helps long
#: proofs most. Kissats exchange clauses during their search. A kissat can use most clauses of another kissat,
#: because both eliminate the same variables, and even more if both have the same settings. Other solvers come
#: from the ninth worker on, for formulas on which kissat is slow.
PLAIN_PORTFOLIO = "k k+= k k k k k k (g k k+ k0 k c- k m k k- k o k c0 k e)*"
#: Portfolio in place of the plain one if native solvers are installed: CaDiCaL 3.0 in stable phases differs
#: most from kissat.
NATIVE_PORTFOLIO = "k k+= n+ k- k0 k c k (g k k+ k0 n+ k c- k- m k k0 n- k c0 k e)*"
#: Portfolio for a worker that is alone in its job: the first solver breaks symmetries itself.
LONE_PORTFOLIO = "k=! k+ k- (k c)*"
#: Portfolio for formulas that are mostly XORs, if CryptoMiniSat is installed: it decides some formulas in
#: seconds that no other solver decides in minutes.
XOR_PORTFOLIO = "y k c! (y k y c0 y g y c-)*"
#: Portfolio for random formulas: stable phases find models where other searches take minutes, and ergo proves
#: UNSAT, where feasible, two to three times as fast as other solvers. Kissat is first nevertheless, because
#: a lone kissat may find a model several times earlier than the other solvers.
RANDOM_PORTFOLIO = "k c+! e c (c0 c+ g k e c- m)*"
SMALL_RANDOM_PORTFOLIO = "k e c+! c (c0 c+ g k e c- m)*"
_DEFAULT = parse_portfolio(DEFAULT_PORTFOLIO)


@dataclass(frozen=True, slots=True)
class Portfolio:
    """The strategies of one job."""

    members: Members = _DEFAULT
    seed: int = 0
    shares: bool = True
    #: whether variables may be renamed
    renames: bool = True

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Portfolio:
        """Return the portfolio of a configuration. Raises InputError for wrong values and unknown keys."""
        for key in configuration:
            if key not in _KNOWN_KEYS and not _is_for_mallob(key):
                raise InputError(f"unknown key '{key}'; known are {', '.join(_KNOWN_KEYS)}", _FIELD)
        mode = content_mode(configuration)
        if mode not in _CONTENT_MODES:
            raise InputError(f"content-mode is {mode!r}; known are {', '.join(_CONTENT_MODES)}", _FIELD)
        shares = configuration.get("sharing", True)
        if type(shares) is not bool:
            raise InputError(f"sharing is {shares!r:.40}; it must be true or false", _FIELD)
        return cls(_members(configuration), _seed(configuration), shares)

    def restricted_to(self, solvers: Sequence[str], task: str) -> Portfolio:
        """Return this portfolio for a task that only these solvers support. Raises InputError."""
        if not self.is_default:
            for name in self.members.solvers:
                if name not in solvers:
                    raise InputError(f"{name} cannot {task}; {', '.join(solvers)} can", _FIELD)
        return replace(self, members=self.members.only(solvers))

    @property
    def is_default(self) -> bool:
        """Tell whether the job names no solvers."""
        return self.members == _DEFAULT

    def following(self, expression: str) -> Portfolio:
        """Return this portfolio with the members of a portfolio expression."""
        return replace(self, members=parse_portfolio(expression))

    def strategy(self, index: int) -> Strategy:
        """Return the strategy of the worker with this index (0 is the root)."""
        member, repeat = self.members.at(index)
        strategy = self._search_strategy(member, repeat, index)
        if not self.shares or not member.shares:
            return strategy
        trade = _trade_of(strategy.solver)
        leaves = index == 0 and member == Member(KISSAT) and _is_stable_kissat(self.members.at(1)[0])
        goes_its_way = self._is_first_to_trade(index) and not leaves
        if trade is Trade.BOTH_WAYS and (goes_its_way or ("stabilizeonly", 1) in strategy.options):
            trade = Trade.GIVES  # stops would ruin long stable phases; the first solver is often alone
        return replace(strategy, trade=trade, leaves_stable_phases=leaves)

    def has_partners(self, count: int) -> bool:
        """Tell whether at least two of the first `count` strategies exchange clauses."""
        if not self.shares:
            return False
        trading = (index for index in range(count) if self.strategy(index).trade is not Trade.NOTHING)
        return next(trading, None) is not None and next(trading, None) is not None

    def _is_first_to_trade(self, index: int) -> bool:
        before = (self.members.at(other)[0] for other in range(index))
        return not any(member.shares and _trade_of(member.solver) is not Trade.NOTHING for member in before)

    def _search_strategy(self, member: Member, repeat: int, index: int) -> Strategy:
        """Return the member's strategy, varied if an earlier member searches in the same way."""
        seed = self.seed * 1_000_003 + index
        phases = seed if _has_random_phases(member, seed) else None
        if repeat == 0 and self.seed == 0:
            plain = phases if member.phases is Phases.RANDOM else None
            return Strategy(member.solver, member.options, plain, breaks_symmetries=member.breaks_symmetries)
        options = member.options
        if member.solver in _CADICALS or member.solver == KISSAT:
            options += (("seed", seed % 2_000_000_000),)  # the option's greatest value
        elif not self.renames:
            phases = seed  # the only difference between repetitions
        # Kissats that share differ by the clauses they take. With the same names for variables, they
        # eliminate the same variables.
        alike = member.solver == KISSAT and self.shares and member.shares
        renaming = seed if self.renames and not alike else None
        return Strategy(member.solver, options, phases, renaming, breaks_symmetries=member.breaks_symmetries)


def _trade_of(solver: str) -> Trade:
    if solver == KISSAT and not door_is_open():
        return Trade.NOTHING
    return TRADES.get(solver, Trade.NOTHING)


def _is_stable_kissat(member: Member) -> bool:
    return member.solver == KISSAT and ("stable", 2) in member.options and member.shares


def _has_random_phases(member: Member, seed: int) -> bool:
    """Tell whether initial phases are random. MIXED: only for even seeds; own phases are often better."""
    if member.phases is Phases.MIXED:
        return seed % 2 == 0 and member.solver not in PHASELESS
    return member.phases is Phases.RANDOM


def _members(configuration: Mapping[str, Any]) -> Members:
    if "portfolio" in configuration:
        if "solvers" in configuration:
            raise InputError("give either portfolio or solvers, not both", _FIELD)
        return parse_portfolio(configuration["portfolio"])
    if "solvers" not in configuration:
        return _DEFAULT
    names = configuration["solvers"]
    if not isinstance(names, list | tuple) or not names:
        raise InputError("solvers must be a list of solver names", _FIELD)
    for name in names:
        if name not in SOLVER_NAMES:
            raise InputError(f"unknown solver {name!r}; known are {', '.join(SOLVER_NAMES)}", _FIELD)
    return cycle_of(names)


def _is_for_mallob(key: str) -> bool:
    """Tell whether a key is for Mallob's own solvers: such a key has no effect, and the reply says so."""
    return key == "options" or key.startswith("__")


def content_mode(configuration: Mapping[str, Any]) -> object:
    """Return the format of formula files, one of _CONTENT_MODES if it is valid."""
    mode = configuration.get("content-mode", "text")
    return mode.lower() if isinstance(mode, str) else mode  # Mallob wrote modes in capitals


def _seed(configuration: Mapping[str, Any]) -> int:
    seed = configuration.get("seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise InputError(f"seed is {seed!r:.40}; it must be an integer from 0 to {2**31 - 1}", _FIELD)
    return seed
