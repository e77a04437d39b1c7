"""Models of speedup: a job's speed as a function of its number of nodes.

A model's speed on `n` nodes is relative to the speed on the job's preferred number of nodes, `pref`: with run
time T(pref), the run time on n nodes is T(pref) / speed(n, pref). A model's `loss` is its distance from
linear speedup (0: linear); it can be compared only between jobs of the same model.
"""

from __future__ import annotations

import math

import msgspec


class Linear(msgspec.Struct, frozen=True):
    """Linear speedup: T(n) = T(pref) pref/n."""

    def speed(self, nodes: int, preferred: int) -> float:
        return nodes / preferred

    @property
    def loss(self) -> float:
        return 0.0


class Power(msgspec.Struct, frozen=True):
    """T(n) = T(pref) (pref/n)^(1-rho): twice the nodes give less than twice the speed."""

    rho: float

    def speed(self, nodes: int, preferred: int) -> float:
        return math.pow(nodes / preferred, 1.0 - self.rho)

    @property
    def loss(self) -> float:
        return self.rho


class Amdahl(msgspec.Struct, frozen=True):
    """The share `serial` of the work is sequential: T(n) is proportional to serial + (1 - serial)/n."""

    serial: float

    def speed(self, nodes: int, preferred: int) -> float:
        return self._duration(preferred) / self._duration(nodes)

    def _duration(self, nodes: int) -> float:
        return self.serial + (1.0 - self.serial) / nodes

    @property
    def loss(self) -> float:
        return self.serial


class Logarithmic(msgspec.Struct, frozen=True):
    """T(n) is proportional to (1 + rho log2 n)/n: communication along trees."""

    rho: float

    def speed(self, nodes: int, preferred: int) -> float:
        return self._duration(preferred) / self._duration(nodes)

    def _duration(self, nodes: int) -> float:
        return (1.0 + self.rho * math.log2(nodes)) / nodes

    @property
    def loss(self) -> float:
        return self.rho


class Downey(msgspec.Struct, frozen=True):
    """Downey's model (1997) for low variance: nearly linear at first, then flat at the average parallelism A.

    `sigma` (0 to 1) is the variance of parallelism; A is `breadth` times the preferred number of nodes.
    """

    sigma: float
    breadth: float = 1.5

    def speed(self, nodes: int, preferred: int) -> float:
        parallelism = max(1.0, self.breadth * preferred)
        return self._speedup(nodes, parallelism) / self._speedup(preferred, parallelism)

    def _speedup(self, nodes: int, parallelism: float) -> float:
        if nodes >= 2.0 * parallelism - 1.0:
            return parallelism
        if nodes <= parallelism:
            return parallelism * nodes / (parallelism + self.sigma / 2.0 * (nodes - 1))
        return parallelism * nodes / (self.sigma * (parallelism - 0.5) + nodes * (1.0 - self.sigma / 2.0))

    @property
    def loss(self) -> float:
        return self.sigma


LINEAR = Linear()
