"""Curves of speed fitted to the rates of running jobs, for the policy `curve`.

A job's curve is a power of its number of nodes, n^(1-rho); each job has its own unit of speed. The exponent
is the slope of a line through the points (log nodes, log rate), by least squares with a prior: a slope that
is assumed for all jobs. The squared deviations of the points' log nodes from their mean are summed up; the
assumed slope has the weight of points with the sum `STIFFNESS`. So a job with rates on only one number of
nodes keeps the assumed curve, and rates on similar numbers of nodes change it little. Of several rates on the
same number of nodes, the last one counts. This module has no side effects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mallob_py.batch.policy import Running
from mallob_py.batch.speedup import Power

#: the weight of the assumed slope; for comparison: two rates, on n and on 2n nodes, weigh 0.24
STIFFNESS = 0.25


def fitted(rates: Mapping[int, float], rho: float) -> Power:
    """Return a job's curve, fitted to its rates (nodes -> logarithm of the rate) and the assumed `rho`."""
    points = [(math.log(nodes), rate) for nodes, rate in rates.items()]
    middle = sum(x for x, _ in points) / len(points)
    spread = STIFFNESS + sum((x - middle) ** 2 for x, _ in points)
    slope = (STIFFNESS * (1.0 - rho) + sum((x - middle) * rate for x, rate in points)) / spread
    return Power(1.0 - min(1.0, max(0.0, slope)))


class Fits:
    """The curves of running jobs; `rho` is that of the curve assumed for jobs without rates."""

    def __init__(self, rho: float) -> None:
        self._assumed = Power(rho)
        #: job -> number of nodes -> logarithm of the last rate on this number
        self._rates: dict[int, dict[int, float]] = {}
        self._curves: dict[int, Power] = {}

    def look(self, jobs: Mapping[int, Running]) -> None:
        """Take in the measured rates of the running jobs `jobs`, and forget all other jobs."""
        for number in self._rates.keys() - jobs.keys():
            del self._rates[number], self._curves[number]
        for running in jobs.values():
            self._note(running)

    def _note(self, running: Running) -> None:
        if running.rate:  # a job that stands still says nothing about its curve
            number = running.job.id
            rates, rate = self._rates.setdefault(number, {}), math.log(running.rate)
            if rates.get(running.size) != rate:
                rates[running.size] = rate
                self._curves[number] = fitted(rates, self._assumed.rho)

    def curve(self, job: int) -> Power:
        return self._curves.get(job, self._assumed)

    def remark(self, running: Running) -> str:
        """Return a sentence on a running job's speedup curve; "": no rate of the job was measured."""
        self._note(running)
        if (rates := self._rates.get(running.job.id)) is None:
            return ""
        sizes, exponent = ", ".join(map(str, sorted(rates))), 1.0 - self.curve(running.job.id).rho
        return f"Its speed on n nodes counts as n^{exponent:.2f}, by its rates on {sizes}."
