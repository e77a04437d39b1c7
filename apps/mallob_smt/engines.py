"""The engines, and the order and settings in which they are tried on a script.

The order depends on the logic that the script names, or else on features of its text. The base strategies
come first: a job answers `unknown` only when all of them have given up. Then the same engines follow with
other seeds, for further workers of the job.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mallob_py.kit import InputError
from mallob_smt.script import Facts

#: engine -> package to install
PACKAGES = {"z3": "z3-solver", "cvc5": "cvc5", "bitwuzla": "bitwuzla"}
_MODULES = {"z3": "z3", "cvc5": "cvc5", "bitwuzla": "bitwuzla"}
ENGINES = tuple(PACKAGES)
_FIELD = "configuration"
#: number of seeds per engine, including the base strategy's
_VARIANTS = 3
#: names of the logics of Bitwuzla: arrays, functions, bit-vectors, floating-point numbers
_BITWUZLA_LOGIC = re.compile(r"(QF_)?A?(UF)?(BV)?(FP)?")
_SEEDS = {
    "z3": ("smt.random_seed", "sat.random_seed"),
    "cvc5": ("seed", "sat-random-seed"),
    "bitwuzla": ("seed",),
}


@dataclass(frozen=True, slots=True)
class Strategy:
    """An engine and its options."""

    engine: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """Return the name in results, such as `cvc5(enum-inst=true)`."""
        if not self.options:
            return self.engine
        return f"{self.engine}({','.join(f'{name}={value}' for name, value in self.options)})"


@dataclass(frozen=True, slots=True)
class Portfolio:
    """The strategies of one job, the same for all of its workers."""

    #: strategies all of which must have given up before the answer is `unknown`
    base: tuple[Strategy, ...]
    #: strategies for further workers
    more: tuple[Strategy, ...]

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        return self.base + self.more


@dataclass(frozen=True, slots=True)
class Wishes:
    """A job's configuration, checked."""

    #: names of the engines; empty: all installed engines, in the order that suits the script
    engines: tuple[str, ...] = ()
    seed: int = 0
    #: number of engines that must agree
    agreement: int = 1

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Wishes:
        """Check a job's configuration and return its wishes. Raises InputError."""
        for key in configuration:
            if key not in ("engines", "seed", "agreement"):
                raise InputError(f"unknown key '{key}'; known are engines, seed, agreement", _FIELD)
        wishes = cls(_engines(configuration), _seed(configuration), _agreement(configuration))
        usable = wishes.engines or installed_engines()
        if not usable:
            raise InputError("no SMT solver is installed; pip install 'mallob-py[smt]'", "application")
        if wishes.agreement > len(usable):
            raise InputError(
                f"agreement is {wishes.agreement}, but only these engines can be used: {', '.join(usable)}"
                f"{_how_to_get_more(wishes)}",
                _FIELD,
            )
        return wishes

    def portfolio(self, facts: Facts) -> Portfolio:
        """Return the strategies for a script."""
        if self.engines:
            base = [Strategy(engine) for engine in self.engines]
        else:
            there = installed_engines()
            base = [strategy for strategy in _order(facts) if strategy.engine in there]
        if self.seed:
            base = [_seeded(strategy, self.seed) for strategy in base]
        engines = dict.fromkeys(strategy.engine for strategy in base)
        more = [
            _seeded(Strategy(engine), self.seed + variant)
            for variant in range(1, _VARIANTS)
            for engine in engines
        ]
        return Portfolio(tuple(base), tuple(more))


def installed_engines() -> tuple[str, ...]:
    """Return the engines whose packages are installed, without importing them."""
    return tuple(engine for engine in ENGINES if importlib.util.find_spec(_MODULES[engine]) is not None)


def _engines(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    names = configuration.get("engines", ())
    if names == () and "engines" not in configuration:
        return ()
    if not isinstance(names, list | tuple) or not names:
        raise InputError(f"engines is {names!r:.60}; it must be a list of {', '.join(ENGINES)}", _FIELD)
    there = installed_engines()
    for name in names:
        if name not in ENGINES:
            raise InputError(f"unknown engine {name!r:.40}; known are {', '.join(ENGINES)}", _FIELD)
        if name not in there:
            raise InputError(f"{name} is not installed; pip install {PACKAGES[name]}", _FIELD)
    if len(set(names)) < len(names):
        raise InputError("engines names an engine more than once", _FIELD)
    return tuple(names)


def _seed(configuration: Mapping[str, Any]) -> int:
    seed = configuration.get("seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**30:
        raise InputError(f"seed is {seed!r:.40}; it must be an integer from 0 to {2**30 - 1}", _FIELD)
    return seed


def _agreement(configuration: Mapping[str, Any]) -> int:
    agreement = configuration.get("agreement", 1)
    if type(agreement) is not int or agreement < 1:
        raise InputError(f"agreement is {agreement!r:.40}; it must be a number of engines, such as 2", _FIELD)
    return agreement


def _how_to_get_more(wishes: Wishes) -> str:
    missing = [PACKAGES[engine] for engine in ENGINES if engine not in installed_engines()]
    return f"; pip install {' '.join(missing)}" if missing and not wishes.engines else ""


def _seeded(strategy: Strategy, seed: int) -> Strategy:
    return Strategy(
        strategy.engine, (*strategy.options, *((name, str(seed)) for name in _SEEDS[strategy.engine]))
    )


def _order(facts: Facts) -> Sequence[Strategy]:
    """Return the base strategies in the order that measurements suggest.

    Bitwuzla comes first on bit-vectors, Z3 on arithmetic and quantifiers.
    """
    z3, cvc5, bitwuzla = map(Strategy, ("z3", "cvc5", "bitwuzla"))
    is_quantified = not facts.logic.startswith("QF_") and (bool(facts.logic) or facts.has_quantifiers)
    if facts.logic:
        fits_bitwuzla = _BITWUZLA_LOGIC.fullmatch(facts.logic) is not None
    else:
        fits_bitwuzla = facts.has_bits and not facts.has_numbers
    if is_quantified:
        # cvc5 gives up on many quantified scripts by default, but solves them with other options.
        others = (
            Strategy("cvc5", (("enum-inst", "true"),)),
            Strategy("cvc5", (("finite-model-find", "true"),)),
        )
        return (z3, cvc5, bitwuzla, *others) if fits_bitwuzla else (z3, cvc5, *others)
    if facts.has_strings:
        return (cvc5, z3)
    if not fits_bitwuzla:
        return (z3, cvc5)
    return (bitwuzla, z3, cvc5) if facts.has_bits else (z3, cvc5, bitwuzla)
