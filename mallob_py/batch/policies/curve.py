"""A policy that knows speedups: the next node goes to the job that gains most from it.

Who starts, and when jobs are resized, is as in `fair`. Of the nodes that running malleable jobs and those
that start have together, each job first gets `floor` (a part) of its fair share, or its least number of
nodes if that is more; no job ever has less, so that none starves. Each further node goes to the job to which
it is worth most, by its weight (`by` and `priorities` as in `fair`) times:

    gain=time    the nodes' gain in speed over the work that is left: how much sooner the job ends, relative
    gain=speed   the gain in speed over one node: the machine as a whole gets most done

Speeds are concave curves of the number of nodes: `curve=given` what is said of each job; `fitted` the power
law that goes best through the speeds that were observed of a job on two sizes at least, else what is given;
or one for all jobs, such as `power:0.2`. Where a curve has a step up behind a flat part, its later gains
count less.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mallob_py.batch.job import AnySpeedup, Job
from mallob_py.batch.policies.fair import Fair
from mallob_py.batch.policy import Running, View
from mallob_py.batch.speedup import Power
from mallob_py.batch.workload.changes import speed_model_of

_GAINS = ("time", "speed")
_CURVES = ("given", "fitted")
#: of the estimate: an end that was expected before now is taken to be as near as this
_LEFT_MIN = 0.01


class Curve(Fair):
    """See the module's text."""

    def __init__(
        self,
        gain: str = "time",
        curve: str = "given",
        floor: float = 0.5,
        by: str = "job",
        priorities: str = "",
        order: str = "arrival",
        overtake: str = "easy",
        cooldown_s: float = 0.0,
        costs: bool = True,
    ) -> None:
        super().__init__(by, priorities, order, overtake, cooldown_s, costs)
        if gain not in _GAINS:
            raise ValueError(f"gain is {gain!r}, not one of {', '.join(_GAINS)}")
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor is {floor:g}, not within 0 and 1")
        self.name = "curve"
        self._is_of_time = gain == "time"
        self._is_fitted = curve == "fitted"
        self._floor = floor
        #: the curve that is taken for all jobs; None: each has its own
        self._assumed: AnySpeedup | None = None
        if curve not in _CURVES:
            model = speed_model_of(curve)
            self._assumed = Power(0.0) if model.kind is None else model.kind(model.least)

    def begin(self, nodes: int) -> None:
        super().begin(nodes)
        self._decided: tuple[float, int, list[int]] | None = None
        self._decision: dict[int, int] = {}

    def volumes(
        self, view: View, able: Sequence[Running], starting: Sequence[Job], free: int
    ) -> dict[int, int]:
        """By job, of those that can be resized or start."""
        jobs = [*(running.job for running in able), *starting]
        now = view.now_s, free + sum(running.size for running in able), [job.id for job in jobs]
        if now == self._decided:
            return self._decision  # what resizes have changed in no time is no reason for further ones
        fair = super().volumes(view, able, starting, free)
        volumes = {job.id: max(job.low, int(self._floor * fair[job.id])) for job in jobs}
        left = sum(fair.values()) - sum(volumes.values())
        candidates = [
            _Candidate(job, self._worth(job, view.running.get(job.id), weight, view.now_s), curve)
            for job, weight in zip(jobs, self._priorities_for(view, jobs) if jobs else (), strict=True)
            for curve in (self.curve_of(job, view.running.get(job.id)),)
        ]
        heap = [(-one.gain(volumes[one.job.id]), one.job.id, one) for one in candidates]
        heap = [entry for entry in heap if volumes[entry[1]] < entry[2].job.high]
        heapq.heapify(heap)
        while heap and left > 0:
            before, name, one = heapq.heappop(heap)
            volumes[name] += 1
            left -= 1
            if volumes[name] < one.job.high:
                heapq.heappush(heap, (max(before, -one.gain(volumes[name])), name, one))
        self._decided, self._decision = now, volumes
        return volumes

    def _worth(self, job: Job, running: Running | None, weight: float, now_s: float) -> float:
        """Return the worth of speed to a job, where its speed on the preferred number of nodes is 1."""
        if not self._is_of_time:
            return weight / self.curve_of(job, running).speed(1, job.nodes)
        if running is None:
            return weight / job.estimate_s
        left_s = (running.estimated_end_s - now_s) * job.speedup.speed(running.size, job.nodes)
        return weight / max(left_s, _LEFT_MIN * job.estimate_s)

    def curve_of(self, job: Job, running: Running | None) -> AnySpeedup:
        if self._assumed is not None:
            return self._assumed
        if self._is_fitted and running is not None and len(running.speeds) > 1:
            return fitted(running.speeds)
        return job.speedup


class _Candidate(NamedTuple):
    """A job that may have more nodes."""

    job: Job
    worth: float
    curve: AnySpeedup

    def gain(self, nodes: int) -> float:
        """Return what one node more than these is worth."""
        preferred = self.job.nodes
        return self.worth * (self.curve.speed(nodes + 1, preferred) - self.curve.speed(nodes, preferred))


def fitted(speeds: Mapping[int, float]) -> Power:
    """Return the power law through speeds by number of nodes, by least squares of their logarithms.

    `speeds` has two numbers of nodes at least.
    """
    points = [(math.log(nodes), math.log(speed)) for nodes, speed in speeds.items()]
    middle, height = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    rise = sum((x - middle) * (y - height) for x, y in points) / sum((x - middle) ** 2 for x, _ in points)
    return Power(min(1.0, max(0.0, 1.0 - rise)))
