"""The judgement of all engines' statements: an answer, a contradiction, or nothing yet.

Statements come from all workers of the job, by `Gossip`. The answer is the complete transcript of one engine,
never a mixture. A transcript is an answer at once if it answers each request, and each check with sat or
unsat, and as many engines agree as the job requires. Otherwise the job waits for the other base strategies;
when all of them have given up, the best transcript is the answer, if there is any.

Guarantee: if one engine answers sat and another unsat to the same check, the result is a Contradiction, even
if there is a third answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mallob_smt.engines import Portfolio, Strategy

_DEFINITE = ("sat", "unsat")


class Statement(msgspec.Struct, frozen=True, array_like=True):
    """What one strategy has said so far. `ended`: nothing more follows."""

    #: serial number; `Gossip` keeps the statement with the largest one
    serial: int
    #: answers to the checks
    words: tuple[str, ...] = ()
    ended: bool = False
    #: reason of the engine's failure; empty: it has not failed
    failure: str = ""
    #: transcript of a complete statement
    transcript: str = ""
    flaws: int = 0
    reason_unknown: str = ""

    @property
    def is_complete(self) -> bool:
        return self.ended and not self.failure

    @property
    def is_definite(self) -> bool:
        return self.is_complete and all(word in _DEFINITE for word in self.words)


@dataclass(frozen=True, slots=True)
class Answer:
    """The job's answer, on which `engines` agree. `is_agreed`: whether these are as many as required."""

    strategy: Strategy
    statement: Statement
    engines: tuple[str, ...]
    is_agreed: bool


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two engines contradict each other."""

    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal, because no engine can process the script."""

    message: str


def judge(
    portfolio: Portfolio, statements: Mapping[int, Statement], agreement: int
) -> Answer | Contradiction | Refusal | None:
    """Judge `statements` (number of a strategy -> its statement). None: wait for more statements."""
    strategies = portfolio.strategies
    if (clash := _clash(strategies, statements)) is not None:
        return clash
    definite = [number for number, one in sorted(statements.items()) if one.is_definite]
    engines = tuple(dict.fromkeys(strategies[number].engine for number in definite))
    flawless = [number for number in definite if not statements[number].flaws]
    if flawless and len(engines) >= agreement:
        return Answer(strategies[flawless[0]], statements[flawless[0]], engines, True)
    useless = gone(portfolio, statements)
    silent = [number for number in range(len(portfolio.base)) if number not in useless]
    possible = {strategies[number].engine for number in silent}.union(engines)
    if silent and (not flawless or len(possible) >= agreement):
        return None
    complete = [number for number, one in sorted(statements.items()) if one.is_complete]
    if not complete:
        return Refusal(_refusals(strategies, statements))
    best = min(complete, key=lambda number: _quality(statements[number]))
    return Answer(strategies[best], statements[best], engines, len(engines) >= agreement)


def gone(portfolio: Portfolio, statements: Mapping[int, Statement]) -> set[int]:
    """Return the numbers of strategies that need not run: they have ended, or their engine has answered.

    Strategies with other seeds need not run either if their engine has failed.
    """
    strategies = portfolio.strategies
    answered = {strategies[number].engine for number, one in statements.items() if one.is_definite}
    refused = {strategies[number].engine for number, one in statements.items() if one.failure}
    return {
        number
        for number, strategy in enumerate(strategies)
        if (number in statements and statements[number].ended)
        or strategy.engine in answered
        or (strategy.engine in refused and number >= len(portfolio.base))
    }


def _clash(strategies: Sequence[Strategy], statements: Mapping[int, Statement]) -> Contradiction | None:
    said: dict[tuple[int, str], int] = {}
    for number, statement in sorted(statements.items()):
        for check, word in enumerate(statement.words, start=1):
            if word not in _DEFINITE:
                continue
            opposite = "unsat" if word == "sat" else "sat"
            if (other := said.get((check, opposite))) is not None:
                return Contradiction(
                    f"the engines contradict each other at check {check}: {strategies[other].title} says "
                    f"{opposite}, {strategies[number].title} says {word}; one of them is wrong, so the job "
                    "has no answer. Please report this to the authors of the wrong engine"
                )
            said.setdefault((check, word), number)
    return None


def _quality(statement: Statement) -> tuple[int, int]:
    """Return a key by which statements are compared; the statement with the smallest key is the best."""
    return sum(word not in _DEFINITE for word in statement.words), statement.flaws


def _refusals(strategies: Sequence[Strategy], statements: Mapping[int, Statement]) -> str:
    said = "; ".join(
        f"{strategies[number].title}: {one.failure}"
        for number, one in sorted(statements.items())
        if one.failure
    )
    return f"no engine could answer. {said}"
