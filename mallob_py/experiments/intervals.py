"""Intervals of means over seeds or parts of a trace, and the comparison of two means.

An interval is Student's t interval at 95 %, for few values, which are assumed to be independent. Overlapping
parts of a trace are not independent: their interval is too narrow, and a table must say so. A single long
run is divided into consecutive parts (batch means). The parts are nearly independent if each lasts longer
than its effects on the next part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import TypeVar

import msgspec

Value = TypeVar("Value")

#: number of consecutive parts of a long run
PARTS = 10

#: 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; the last one holds for all further
#: degrees
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Interval(msgspec.Struct, frozen=True):
    """A mean, and half the length of its interval, which is infinite for a single value."""

    mean: float
    half: float

    def text(self, digits: int = 2) -> str:
        if math.isinf(self.half):
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.half:.{digits}f}"

    def excludes(self, value: float) -> bool:
        return abs(self.mean - value) > self.half


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of the values with its interval. Raises ValueError without values."""
    if not values:
        raise ValueError("there are no values")
    count = len(values)
    if count == 1:
        return Interval(values[0], math.inf)
    return Interval(mean(values), _T[min(count - 1, len(_T)) - 1] * stdev(values) / math.sqrt(count))


def around(whole: float, of_parts: Sequence[float]) -> Interval:
    """Return the value of a whole run, with the interval of its parts' values."""
    return Interval(whole, interval(of_parts).half if of_parts else math.inf)


def parts(values: Sequence[Value], count: int = PARTS) -> list[Sequence[Value]]:
    """Return consecutive parts of nearly equal length, at most as many as there are values."""
    count = min(count, len(values))
    return [values[len(values) * part // count : len(values) * (part + 1) // count] for part in range(count)]


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Return the ratio of two sums over the same parts.

    The ratio's interval results from leaving out one part at a time (jackknife). Raises ValueError without
    values, or if the denominator is 0, with all parts or when one part is left out.
    """
    whole = Interval(_over(sum(above), sum(below)), math.inf)
    if len(above) == 1:
        return whole
    without = [_over(sum(above) - one, sum(below) - other) for one, other in zip(above, below, strict=True)]
    return Interval(whole.mean, (len(without) - 1) * interval(without).half)


def _over(above: float, below: float) -> float:
    if not below:
        raise ValueError("there is nothing to divide by")
    return above / below


def winner(values: Mapping[str, Sequence[float]]) -> str | None:
    """Return the candidate of smallest mean if the interval of its difference to each other one excludes 0.

    Otherwise return None.

    All candidates' values must be of the same seeds or parts, in the same order.
    """
    best = min(values, key=lambda name: mean(values[name]))
    for name, others in values.items():
        differences = [other - own for other, own in zip(others, values[best], strict=True)]
        if name != best and not interval(differences).excludes(0.0):
            return None
    return best
