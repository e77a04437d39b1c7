"""Comparisons of a weighted sum of two integers, as clauses over values instead of an adder.

`2 * x - y <= 3` for x and y from 0 to 14, with a literal per value or per bound, takes about thirty
clauses and propagates bounds (values, if both integers have a literal per value); an adder takes hundreds. A
weighted Boolean is an integer with two values. A Boolean as third term gives two comparisons, one per value.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from cpmpy.transformations.int2bool import IntVarEnc, IntVarEncDirect, IntVarEncOrder

#: literals of CPMpy, at least one of which must be true
Clause = list[Any]
#: greatest number of pairs of values: a larger sum is left to other encodings, since clauses become too long
_MOST_PAIRS = 20_000


@dataclass(frozen=True)
class _OneHot:
    """An integer with one literal per ascending value, exactly one of which is true."""

    values: list[int]
    literals: list[Any]

    def cases(self) -> Iterator[tuple[Clause, int | None, int | None]]:
        """Yield each case: the literals that restrict a clause to the case, and the case's range of values.

        The range is the smallest and greatest value, each None if the case does not bound it.
        """
        for value, literal in zip(self.values, self.literals, strict=True):
            yield [~literal], value, value

    def between(self, low: int | None, high: int | None) -> list[Clause]:
        """Return clauses that keep the integer between `low` and `high`; None: no such bound."""
        begin = 0 if low is None else bisect_left(self.values, low)
        end = len(self.values) if high is None else bisect_right(self.values, high)
        return [] if end - begin == len(self.values) else [self.literals[begin:end]]


@dataclass(frozen=True)
class _Steps:
    """An integer with ascending values; literal i says that the integer is at least value i + 1."""

    values: list[int]
    literals: list[Any]

    def cases(self) -> Iterator[tuple[Clause, int | None, int | None]]:
        """Yield each case, as in `_OneHot`."""
        yield [], self.values[0], self.values[-1]
        for i, literal in enumerate(self.literals):
            yield [~literal], self.values[i + 1], None
            yield [literal], None, self.values[i]

    def between(self, low: int | None, high: int | None) -> list[Clause]:
        """Return clauses that keep the integer in a range, as in `_OneHot`."""
        begin = 0 if low is None else bisect_left(self.values, low)
        end = len(self.values) if high is None else bisect_right(self.values, high)
        if begin >= end:
            return [[]]
        from_below = [[literal] for literal in self.literals[max(begin - 1, 0) : begin]]
        return from_below + [[~literal] for literal in self.literals[end - 1 : end]]


_Number = _OneHot | _Steps


class Integers:
    """Finds the integer that a literal encodes. `encoded`: integer's name -> encoding, filled by CPMpy."""

    def __init__(self, encoded: dict[str, Any]) -> None:
        self._encoded = encoded
        self._seen = 0
        self._of: dict[str, Any] = {}

    def clauses(self, weights: Sequence[int], literals: Sequence[Any], comparison: str, wanted: int) -> Any:
        """Return clauses for a weighted sum that is <=, >= or == `wanted`.

        None unless the sum has two integers, or two integers and a Boolean.
        """
        for encoding in islice(reversed(self._encoded.values()), len(self._encoded) - self._seen):
            self._of.update((literal.name, encoding) for literal in encoding.vars())
        self._seen = len(self._encoded)
        terms: dict[int | str, tuple[Any, dict[str, int]]] = {}
        for weight, literal in zip(weights, literals, strict=True):
            encoding = self._of.get(literal.name)
            key, whole = (literal.name, literal) if encoding is None else (id(encoding), encoding)
            _, weight_of = terms.setdefault(key, (whole, {}))
            weight_of[literal.name] = weight_of.get(literal.name, 0) + weight
            if len(terms) > 3:
                return None
        numbers = [number for term in terms.values() if (number := _number(*term)) is not None]
        if len(numbers) < len(terms) or len(numbers) < 2:
            return None
        *switches, one, other = sorted(
            numbers, key=lambda number: (len(number.values), isinstance(number, _OneHot))
        )
        cases: list[tuple[Clause, int]] = [([], 0)]
        for switch in switches:
            if isinstance(switch, _OneHot) or len(switch.values) > 2:
                return None
            cases = [(switch.literals, switch.values[0]), ([~switch.literals[0]], switch.values[1])]
        if len(one.values) * len(other.values) > _MOST_PAIRS:
            return None
        return [
            [*excepted, *clause]
            for excepted, value in cases
            for clause in _clauses(comparison, one, other, wanted - value)
        ]


def _number(whole: Any, weights: Mapping[str, int]) -> _Number | None:
    """Return a weighted sum of an encoding's literals as an integer; None: its values have no order."""
    if isinstance(whole, IntVarEncDirect):
        literals = sorted(whole.vars(), key=lambda literal: weights.get(literal.name, 0))
        return _OneHot([weights.get(literal.name, 0) for literal in literals], literals)
    if isinstance(whole, IntVarEnc) and not isinstance(whole, IntVarEncOrder):
        return None
    literals = list(whole.vars()) if isinstance(whole, IntVarEnc) else [whole]
    steps = [weights.get(literal.name, 0) for literal in literals]
    values = list(accumulate(steps, initial=0))
    if all(step >= 0 for step in steps):
        return _Steps(values, literals)
    if all(step <= 0 for step in steps):
        return _Steps(values[::-1], [~literal for literal in literals[::-1]])
    return None


def _clauses(comparison: str, one: _Number, other: _Number, wanted: int) -> Iterator[Clause]:
    both_ways = isinstance(one, _OneHot) or isinstance(other, _OneHot)
    for first, second in [(one, other), (other, one)][: 1 + both_ways]:
        for excepted, least, most in first.cases():
            low = None if most is None or comparison == "<=" else wanted - most
            high = None if least is None or comparison == ">=" else wanted - least
            for clause in second.between(low, high):
                yield [*excepted, *clause]
