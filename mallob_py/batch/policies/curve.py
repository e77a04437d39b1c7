"""A policy that knows speedups: the next node goes to the job that gains most from it.

Starts and the times of resizes are those of `fair`. Each job that can be resized or starts first gets its
least number of nodes, or `floor` (a part) of its fair share if that is more; no job ever has less. Each
further node goes to the job with the largest gain, by its weight (`by` and `priorities` as in `fair`):

    gain=time    the gain in speed over the job's estimate: how much sooner the job ends, relatively
    gain=speed   the gain in speed over the speed of one node: the machine does most work

Speeds are concave curves: of each job as its source gives them (`curve=given`), or one for all jobs, such as
`curve=power:0.2`. A plan depends on which jobs can be resized at the time, by the floors: two plans of one
moment may differ, so a job is resized at most once a second.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from mallob_py.batch.job import AnySpeedup, Job
from mallob_py.batch.policies.fair import Fair
from mallob_py.batch.policy import Running, View, check_choice
from mallob_py.batch.speedup import LINEAR
from mallob_py.batch.workload.changes import speed_model_of

_GAINS = ("time", "speed")
_GIVEN = "given"
#: least time between two resizes of a job: floors depend on which jobs can be resized, so plans may differ
_MOMENT_S = 1.0


class Curve(Fair):
    """See the module's text."""

    def __init__(
        self,
        gain: str = "time",
        curve: str = _GIVEN,
        floor: float = 0.5,
        by: str = "job",
        priorities: str = "",
        order: str = "arrival",
        overtake: str = "easy",
        cooldown_s: float = 0.0,
        costs: bool = True,
    ) -> None:
        super().__init__(by, priorities, order, overtake, max(cooldown_s, _MOMENT_S), costs)
        check_choice("gain", gain, _GAINS)
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor is {floor:g}, not within 0 and 1")
        self.name = "curve"
        self._is_of_time = gain == "time"
        self._floor = floor
        #: the speedup assumed of all jobs; None: each job's own
        self._assumed: AnySpeedup | None = None
        if curve != _GIVEN:
            model = speed_model_of(curve)
            self._assumed = model.kind(model.least) if model.kind else LINEAR

    def volumes(
        self, view: View, able: Sequence[Running], starting: Sequence[Job], free: int
    ) -> dict[int, int]:
        """Return the volumes of jobs that can be resized or start; their sum is that under `fair`."""
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
            return -worth[name] * gain, nodes, name  # of equal gains, that on fewest nodes

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
        """Return what a gain in speed is relative to; the speed on the preferred number of nodes is 1."""
        return job.estimate_s if self._is_of_time else self._curve(job).speed(1, job.nodes)

    def _curve(self, job: Job) -> AnySpeedup:
        return self._assumed or job.speedup
