"""Bounds on a weighted sum of literals, as clauses: the weights of the true literals sum to at most B.

There are four encodings. In each the bound can change between questions to a solver:

- `Totalizer` (equal weights): counts in unary, by PySAT.
- `Generalized` (Joshi, Martins, Manquinho 2015): a totalizer whose outputs are the sums that occur. It is
  small if few sums occur; all sums above the largest useful bound share one output.
- `Watchdog` (Paxian, Reimer, Becker 2018): a totalizer for each bit of the weights, each of which carries to
  the next; any bound is reached by an added summand (tare), whose value is assumed.
- `Adder` (Warners 1998): binary adders. The encoding is linear in size and propagates weakly.

`at_most(B)` returns literals to assume. Under them, every solution with a sum of at most B remains possible,
and every solution with a larger sum is excluded. Variables of the encoding may stay free.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from pysat.card import ITotalizer

from mallob_maxsat.oracle import Oracle

#: greatest number of clauses of an encoding other than `Adder`; an encoding that would be larger gives way to
#: the next one
CLAUSES_MAX = 400_000
#: greatest number of clauses of PySAT's totalizer, which is built quickly
_TOTALIZER_CLAUSES_MAX = 2_000_000


class TooLargeError(Exception):
    """The encoding would have more clauses than permitted."""


class AtMost(ABC):
    """A bound on a sum. `terms`: literal -> weight, at least 1. Bounds above `limit` are not needed."""

    @abstractmethod
    def __init__(self, oracle: Oracle, terms: Mapping[int, int], limit: int, clauses_max: int) -> None:
        """Add the encoding to the oracle. Raises TooLargeError before adding any clause."""

    @abstractmethod
    def at_most(self, bound: int) -> list[int]:
        """Return the assumptions for a bound from 0 to `limit`."""


def encoding_of(
    oracle: Oracle, terms: Mapping[int, int], limit: int, order: tuple[type[AtMost], ...]
) -> AtMost:
    """Return the first encoding of `order` that is small enough and applicable; else an `Adder`."""
    for kind in order:
        try:
            return kind(oracle, terms, limit, CLAUSES_MAX)
        except TooLargeError:
            continue
    return Adder(oracle, terms, limit, CLAUSES_MAX)


class Totalizer(AtMost):
    """A totalizer, for equal weights."""

    def __init__(self, oracle: Oracle, terms: Mapping[int, int], limit: int, clauses_max: int) -> None:
        self._weight = next(iter(terms.values()), 1)
        n, most = len(terms), min(limit // self._weight, len(terms))
        if any(weight != self._weight for weight in terms.values()) or n * (most + 1) > max(
            clauses_max, _TOTALIZER_CLAUSES_MAX
        ):
            raise TooLargeError
        self._outputs: list[int] = []
        if n > 1:
            self._made = ITotalizer(lits=list(terms), ubound=most, top_id=oracle.top)
            oracle.new_variables(self._made.top_id)
            oracle.add_all(self._made.cnf.clauses)
            self._outputs = self._made.rhs
        else:
            self._outputs = list(terms)

    def at_most(self, bound: int) -> list[int]:
        count = bound // self._weight
        return [-self._outputs[count]] if count < len(self._outputs) else []


class Generalized(AtMost):
    """A tree of sums. A node has a literal for each possible sum: is the node's sum at least as large?"""

    def __init__(self, oracle: Oracle, terms: Mapping[int, int], limit: int, clauses_max: int) -> None:
        self._oracle = oracle
        cap = limit + 1
        plan = [
            {min(weight, cap): literal} for literal, weight in sorted(terms.items(), key=lambda one: one[1])
        ]
        self._measure(plan, cap, clauses_max)
        level = plan
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            joined = [self._join(left, right, cap) for left, right in pairs]
            level = joined + ([level[-1]] if len(level) % 2 else [])
        self._outputs = sorted(level[0].items()) if level else []
        for (_, smaller), (_, larger) in zip(self._outputs, self._outputs[1:], strict=False):
            oracle.add([-larger, smaller])

    @staticmethod
    def _measure(plan: list[dict[int, int]], cap: int, clauses_max: int) -> None:
        level = [set(node) for node in plan]
        clauses = 0
        while len(level) > 1:
            following = []
            for left, right in zip(level[::2], level[1::2], strict=False):
                clauses += (len(left) + 1) * (len(right) + 1)
                if clauses > clauses_max:
                    raise TooLargeError
                sums = {min(one + other, cap) for one in left for other in right}
                following.append(left | right | sums)
            level = following + ([level[-1]] if len(level) % 2 else [])

    def _join(self, left: dict[int, int], right: dict[int, int], cap: int) -> dict[int, int]:
        node: dict[int, int] = {}
        oracle = self._oracle
        for one, first in [(0, 0), *left.items()]:
            for other, second in [(0, 0), *right.items()]:
                if not (first or second):
                    continue
                total = min(one + other, cap)
                if total not in node:
                    node[total] = oracle.new_variable()
                oracle.add([*(-part for part in (first, second) if part), node[total]])
        return node

    def at_most(self, bound: int) -> list[int]:
        return next(([-literal] for total, literal in self._outputs if total > bound), [])


class Watchdog(AtMost):
    """The sum plus the tare, bounded by a multiple of the largest power of two among the weights."""

    def __init__(self, oracle: Oracle, terms: Mapping[int, int], limit: int, clauses_max: int) -> None:
        self._top_bit = max(terms.values(), default=1).bit_length() - 1
        self._tare: list[int] = []
        sizes, carried, clauses = [], 0, 0
        for bit in range(self._top_bit + 1):
            size = sum(weight >> bit & 1 for weight in terms.values()) + carried + (bit < self._top_bit)
            sizes.append(size)
            carried = size // 2
            clauses += size * size // 2 + size
        if clauses > clauses_max:
            raise TooLargeError
        outputs: list[int] = []
        for bit in range(self._top_bit + 1):
            inputs = [literal for literal, weight in terms.items() if weight >> bit & 1] + outputs[1::2]
            if bit < self._top_bit:
                self._tare.append(oracle.new_variable())
                inputs.append(self._tare[-1])
            outputs = _counted(oracle, inputs)
        self._outputs = outputs

    def at_most(self, bound: int) -> list[int]:
        unit = 1 << self._top_bit
        count = -(-(bound + 1) // unit)
        tare = count * unit - (bound + 1)
        assumed = [literal if tare >> bit & 1 else -literal for bit, literal in enumerate(self._tare)]
        if count - 1 < len(self._outputs):
            assumed.append(-self._outputs[count - 1])
        return assumed


def _counted(oracle: Oracle, inputs: list[int]) -> list[int]:
    """Return literals that are true if at least one, two, ... of the inputs are true."""
    if len(inputs) <= 1:
        return inputs
    totalizer = ITotalizer(lits=inputs, ubound=len(inputs), top_id=oracle.top)
    oracle.new_variables(totalizer.top_id)
    oracle.add_all(totalizer.cnf.clauses)
    outputs: list[int] = totalizer.rhs[: len(inputs)]
    return outputs


class Adder(AtMost):
    """The sum in binary; a bound is a comparison with the sum."""

    def __init__(self, oracle: Oracle, terms: Mapping[int, int], limit: int, clauses_max: int) -> None:
        self._oracle = oracle
        self._known: dict[int, int] = {}
        self._total = sum(terms.values())
        total_bits = self._total.bit_length()
        columns: list[list[int]] = [[] for _ in range(total_bits + 1)]
        for literal, weight in terms.items():
            for bit in range(weight.bit_length()):
                if weight >> bit & 1:
                    columns[bit].append(literal)
        self._sum: list[int | None] = []
        for bit, column in enumerate(columns):
            at = 0
            while len(column) - at > 1:
                inputs = column[at : at + 3]
                at += len(inputs)
                parity, carry = self._add(inputs)
                column.append(parity)
                columns[bit + 1].append(carry)
            self._sum.append(column[at] if at < len(column) else None)

    def _add(self, inputs: list[int]) -> tuple[int, int]:
        oracle = self._oracle
        parity, carry = oracle.new_variable(), oracle.new_variable()
        if len(inputs) == 2:
            a, b = inputs
            clauses = [[-a, -b, carry], [a, -carry], [b, -carry]]
            clauses += [[-a, -b, -parity], [a, b, -parity], [-a, b, parity], [a, -b, parity]]
        else:
            a, b, c = inputs
            clauses = [[-a, -b, carry], [-a, -c, carry], [-b, -c, carry]]
            clauses += [[a, b, -carry], [a, c, -carry], [b, c, -carry]]
            clauses += [[a, b, c, -parity], [a, -b, -c, -parity], [-a, b, -c, -parity], [-a, -b, c, -parity]]
            clauses += [[-a, -b, -c, parity], [-a, b, c, parity], [a, -b, c, parity], [a, b, -c, parity]]
        oracle.add_all(clauses)
        return parity, carry

    def at_most(self, bound: int) -> list[int]:
        if bound >= self._total:
            return []
        if bound not in self._known:
            holds = self._known[bound] = self._oracle.new_variable()
            below: list[int] = []
            for bit in reversed(range(len(self._sum))):
                literal = self._sum[bit]
                if bound >> bit & 1:
                    if literal is None:
                        break  # the sum is smaller for all values of its lower bits
                    below.append(-literal)
                elif literal is not None:
                    self._oracle.add([-holds, -literal, *below])
        return [self._known[bound]]
