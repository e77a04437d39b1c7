"""The batches of the ElasticJobScheduler paper: 25 jobs of four parallel programs on 32 nodes.

Sizes, ranges, weights, arrivals and the required time (800 s, on any number of nodes) are the published ones.
Run times were published only as a figure. Here, jobs' work is chosen so that all programs run equally long on
the middle of their rigid sizes, speedup is linear, and a batch has 8 node-hours of work on average (the
paper's aim). A batch's run times do not depend on the share of malleable jobs.
"""

from __future__ import annotations

import math
import random

import msgspec

from mallob_py.batch.job import Job, Kind, Truth, Workload

NODES = 32
JOBS = 25
REQUIRED_S = 800.0
_ARRIVALS_S = 600.0
_AT_ONCE = 5
_WORK_NODE_S = 8 * 3600.0


class Program(msgspec.Struct, frozen=True):
    """A program: rigid size -> weight, and the smallest and greatest size of its malleable jobs."""

    name: str
    sizes: dict[int, float]
    least: int
    most: int

    @property
    def middle(self) -> float:
        """The geometric mean of the program's rigid sizes."""
        return math.exp(sum(math.log(size) for size in self.sizes) / len(self.sizes))


PROGRAMS = (
    Program("BC17", {2: 1.5, 4: 1.0}, 1, 4),
    Program("BC18", {2: 1.5, 4: 1.0, 8: 0.5}, 2, 16),
    Program("BC19", {8: 1.0, 16: 0.5}, 8, 16),
    Program("NQ17", {2: 1.5, 4: 1.0}, 1, 8),
    Program("NQ18", {8: 1.0, 16: 0.5}, 8, 16),
    Program("UTS18", {2: 1.5, 4: 0.5}, 1, 4),
    Program("UTS19", {2: 1.5, 4: 1.0, 8: 1.0}, 2, 16),
    Program("UTS20", {8: 1.0, 16: 0.5}, 8, 16),
    Program("Pi8e10", {2: 1.5, 4: 1.0}, 1, 4),
    Program("Pi6e11", {4: 1.5, 8: 1.0, 16: 0.5}, 4, 16),
    Program("Pi1.2e12", {8: 1.0, 16: 0.5}, 8, 16),
)


def glb_batch(seed: int, malleable: float = 0.0) -> Workload:
    """Return the batch of a seed; `malleable`: share (0 to 1) of malleable jobs. Raises ValueError."""
    if not 0.0 <= malleable <= 1.0:
        raise ValueError(f"the share of malleable jobs, {malleable:g}, is not between 0 and 1")
    generator = random.Random(f"glb batch {seed}")
    choices = [(program, size, weight) for program in PROGRAMS for size, weight in program.sizes.items()]
    weights = [weight for *_, weight in choices]
    chosen = generator.choices(choices, weights, k=JOBS)
    arrivals = sorted(generator.uniform(0.0, _ARRIVALS_S) for _ in range(JOBS - _AT_ONCE))
    arrivals = [0.0] * _AT_ONCE + arrivals
    # The first jobs of this order are malleable: jobs malleable at one share are so at every larger share.
    order = generator.sample(range(JOBS), JOBS)
    flexible = set(order[: round(malleable * JOBS)])
    mean_size = sum(program.middle * weight for program, _, weight in choices) / sum(weights)
    middle_s = _WORK_NODE_S / JOBS / mean_size
    jobs, truths = list[Job](), list[Truth]()
    for number, ((program, size, _), submit_s) in enumerate(zip(chosen, arrivals, strict=True)):
        kind = Kind.MALLEABLE if number in flexible else Kind.RIGID
        jobs.append(
            Job(number, submit_s, size, REQUIRED_S, kind, program.least, program.most, number=number + 1)
        )
        truths.append(Truth(middle_s * program.middle / size))
    return Workload(jobs, truths, NODES, f"batch {seed}, {malleable:.0%} malleable")
