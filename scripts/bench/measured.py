"""One line of the service's benchmark table, and the target it is held against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from common import summary

from mallob_py.text_table import Cell


class Better(Enum):
    """Which way a target is to be passed."""

    LOWER = "<="
    HIGHER = ">="


@dataclass(frozen=True)
class Measured:
    """A series of measurements. `recorded`: the C++ system's median, taken elsewhere."""

    HEADER: ClassVar = ("measure", "unit", "n", "median", "p90", "p99", "max", "target", "C++ (elsewhere)")

    what: str
    unit: str
    count: int
    median: float
    p90: float
    p99: float
    max: float
    better: Better = Better.LOWER
    target: float | None = None
    recorded: str = ""

    @classmethod
    def of(
        cls,
        what: str,
        unit: str,
        values: Iterable[float],
        better: Better = Better.LOWER,
        target: float | None = None,
        recorded: str = "",
    ) -> Measured:
        s = summary(values)
        return cls(what, unit, s.count, s.median, s.p90, s.p99, s.max, better, target, recorded)

    def is_missed(self) -> bool:
        if self.target is None:
            return False
        return self.median > self.target if self.better is Better.LOWER else self.median < self.target

    def row(self) -> tuple[Cell, ...]:
        target = "" if self.target is None else f"{self.better.value} {self.target:g}"
        numbers = (
            (self.median, self.p90, self.p99, self.max) if self.count > 1 else (self.median, *[None] * 3)
        )
        return (self.what, self.unit, self.count, *numbers, target, self.recorded)
