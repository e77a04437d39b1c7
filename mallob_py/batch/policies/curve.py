"""A policy that knows speedups: the next node goes to the job that gains most from it.

Jobs start and are resized when `fair` would start or resize them. Each job that starts or can be resized
first gets its floor: its smallest number of nodes or, if greater, the part `floor` of its fair share. Each
further node goes to the job with the largest gain times weight (`by` and `priorities` as in `fair`):

    gain=time    gain in speed divided by the job's estimate: at equal gains in speed, short jobs come first
    gain=speed   gain in speed divided by the job's speed on one node: the machine does most work

Speeds are concave curves: each job's own from its source (`curve=given`), one for all jobs, such as
`curve=power:0.2`, or fitted to the rates at which each job works (`curve=fitted`, see `fits`): until rates on
two numbers of nodes are known, power:`prior` is assumed. A rate is measured from `period_s` after a job's
last resize on, and over at least this time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

from mallob_py.batch.job import AnySpeedup, Job
from mallob_py.batch.policies.fair import Fair
from mallob_py.batch.policies.fits import Fits
from mallob_py.batch.policy import Action, Running, View, check_choice
from mallob_py.batch.speedup import LINEAR
from mallob_py.batch.workload.changes import speed_model_of

_GAINS = ("time", "speed")
_GIVEN, _FITTED = "given", "fitted"


class Curve(Fair):
    """The policy that knows speedups; see the module's docstring."""

    def __init__(
        self,
        gain: str = "time",
        curve: str = _GIVEN,
        floor: float = 0.5,
        prior: float = 0.2,
        period_s: float = 60.0,
        by: str = "job",
        priorities: str = "",
        order: str = "arrival",
        overtake: str = "easy",
        cooldown_s: float = 0.0,
        costs: bool = True,
    ) -> None:
        super().__init__(by, priorities, order, overtake, cooldown_s, costs)
        check_choice("gain", gain, _GAINS)
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor is {floor:g}, not between 0 and 1")
        if not 0.0 <= prior <= 1.0:
            raise ValueError(f"prior is {prior:g}, not between 0 and 1")
        if not 0.0 < period_s < math.inf:
            raise ValueError("period_s must be a finite number of seconds above 0")
        self.name = "curve"
        self._is_of_time = gain == "time"
        self._floor = floor
        #: the speedup assumed of all jobs; None: each job's own
        self._assumed: AnySpeedup | None = None
        self._fits = Fits(prior) if curve == _FITTED else None
        self.rate_period_s = 0.0 if self._fits is None else period_s
        if curve not in (_GIVEN, _FITTED):
            model = speed_model_of(curve)
            self._assumed = model.kind(model.least) if model.kind else LINEAR

    def decide(self, view: View) -> Iterator[Action]:
        if self._fits is not None:
            self._fits.look(view.running)
        return super().decide(view)

    def remark(self, running: Running) -> str:
        """Return a sentence on the fitted curve of a running job; empty if there is none."""
        return "" if self._fits is None else self._fits.remark(running)

    def volumes(
        self, view: View, able: Sequence[Running], starting: Sequence[Job], free: int
    ) -> dict[int, int]:
        """Return the volumes of jobs that can be resized or start; `fair` gives the same sum."""
        fair = super().volumes(view, able, starting, free)
        jobs = {job.id: job for job in (*(running.job for running in able), *starting)}
        volumes = {name: max(jobs[name].low, int(self._floor * share)) for name, share in fair.items()}
        left = sum(fair.values()) - sum(volumes.values())
        worth = {
            job.id: weight / self._base(job)
            for job, weight in zip(jobs.values(), self.priorities_for(view, [*jobs.values()]), strict=True)
        }

        def entry(name: int) -> tuple[float, int, int]:
            curve, nodes, preferred = self._curve(jobs[name]), volumes[name], jobs[name].nodes
            gain = curve.speed(nodes + 1, preferred) - curve.speed(nodes, preferred)
            return -worth[name] * gain, nodes, name  # at equal gains, the smallest job

        heap = [entry(name) for name, job in jobs.items() if volumes[name] < job.high]
        heapq.heapify(heap)
        for _ in range(left):
            name = heap[0][2]
            volumes[name] += 1
            if volumes[name] < jobs[name].high:
                heapq.heapreplace(heap, entry(name))
            else:
                heapq.heappop(heap)
        return volumes

    def _base(self, job: Job) -> float:
        """Return the number by which a job's gain in speed is divided.

        Gains have the unit of `AnySpeedup.speed`: the job's speed on its preferred nodes.
        """
        return job.estimate_s if self._is_of_time else self._curve(job).speed(1, job.nodes)

    def _curve(self, job: Job) -> AnySpeedup:
        if self._fits is not None:
            return self._fits.curve(job.id)
        return self._assumed or job.speedup
