"""Changes of workloads to study their effects: malleable jobs, other arrivals, better estimates.

Which jobs become malleable depends only on a seed, the number of rigid jobs, and the share: jobs that are
malleable at one share are also malleable at every larger share. Each job's speedup is the same at all shares,
so rows of a table differ in nothing but the share.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec

from mallob_py.batch.job import AnySpeedup, Kind, Workload
from mallob_py.batch.speedup import LINEAR, Amdahl, Downey, Linear, Logarithmic, Power

_KINDS: dict[str, Callable[[float], AnySpeedup]] = {
    "amdahl": Amdahl,
    "power": Power,
    "log": Logarithmic,
    "downey": Downey,
}


class NodeRange(msgspec.Struct, frozen=True):
    """The range of a job's nodes in multiples of its preferred number; rounding never leaves the range."""

    least: float = 0.5
    most: float = 2.0


class SpeedModel(msgspec.Struct, frozen=True):
    """A kind of speedup (None: linear) and the range from which each job's parameter is drawn uniformly."""

    kind: Callable[[float], AnySpeedup] | None = None
    least: float = 0.0
    most: float = 0.0

    def draw(self, generator: random.Random) -> AnySpeedup:
        parameter = generator.uniform(self.least, self.most)
        return LINEAR if self.kind is None else self.kind(parameter)


HALF_TO_DOUBLE = NodeRange()
LINEAR_SPEED = SpeedModel()


def make_malleable(
    workload: Workload,
    share: float,
    nodes: NodeRange = HALF_TO_DOUBLE,
    speedup: SpeedModel = LINEAR_SPEED,
    seed: int = 0,
) -> Workload:
    """Return the workload with this share (0 to 1) of its rigid jobs made malleable.

    No job's range goes below one node or beyond the machine. Raises ValueError for an invalid share, and if
    jobs share nodes, because these jobs must be rigid.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"the share of malleable jobs, {share:g}, is not between 0 and 1")
    if workload.cluster is not None and share:
        raise ValueError("jobs that share nodes cannot be made malleable")
    jobs = list(workload.jobs)
    rigid = [place for place, job in enumerate(jobs) if job.kind is Kind.RIGID]
    order = random.Random(f"malleable {seed}").sample(rigid, len(rigid))
    generator = random.Random(f"speedup {seed}")
    for place in order[: round(share * len(rigid))]:
        job = jobs[place]
        jobs[place] = msgspec.structs.replace(
            job,
            kind=Kind.MALLEABLE,
            nodes_min=max(1, math.ceil(job.nodes * nodes.least)),
            nodes_max=max(job.nodes, min(workload.nodes or job.nodes, math.floor(job.nodes * nodes.most))),
            speedup=speedup.draw(generator),
        )
    return msgspec.structs.replace(workload, jobs=jobs)


def with_model_error(workload: Workload, error: float) -> Workload:
    """Return the workload with each true speedup's loss increased by `error`; linear jobs stay linear."""
    if not error:
        return workload
    truths = [
        truth
        if isinstance(job.speedup, Linear)
        else msgspec.structs.replace(truth, speedup=type(job.speedup)(job.speedup.loss + error))
        for job, truth in zip(workload.jobs, workload.truths, strict=True)
    ]
    return msgspec.structs.replace(workload, truths=truths)


def with_exact_estimates(workload: Workload) -> Workload:
    """Return the workload with each job's estimate replaced by its run time."""
    jobs = [
        msgspec.structs.replace(job, estimate_s=truth.run_s)
        for job, truth in zip(workload.jobs, workload.truths, strict=True)
    ]
    return msgspec.structs.replace(workload, jobs=jobs)


def with_arrivals_scaled(workload: Workload, factor: float) -> Workload:
    """Return the workload with all gaps between submissions multiplied by `factor`. Raises ValueError."""
    if not factor > 0.0:
        raise ValueError(f"a factor of {factor:g} for arrivals is not above 0")
    if not workload.jobs:
        return workload
    first_s = workload.jobs[0].submit_s
    jobs = [
        msgspec.structs.replace(job, submit_s=first_s + factor * (job.submit_s - first_s))
        for job in workload.jobs
    ]
    return msgspec.structs.replace(workload, jobs=jobs)


# --- parsing of options ---------------------------------------------------------------------


def share_of(text: str) -> float:
    """Parse a share such as `50%` or `0.5`. Raises ValueError."""
    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100.0 if number.endswith("%") else 1.0)
    except ValueError:
        share = math.nan
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"{text!r} is not a share such as 50% or 0.5")
    return share


def node_range_of(text: str) -> NodeRange:
    """Parse a range such as `0.5:2`: multiples of the preferred number. Raises ValueError."""
    least, most = _two_numbers(text)
    if not 0.0 < least <= 1.0 <= most < math.inf:
        raise ValueError(f"{text!r} is not multiples of a job's nodes such as 0.5:2, the first not above 1")
    return NodeRange(least, most)


def speed_model_of(text: str) -> SpeedModel:
    """Parse `linear`, `amdahl:0.05`, `power:0.2`, `log:0.1` or `downey:0.5`; `power:0:0.3` draws from 0 to
    0.3.

    Raises ValueError for any other text.
    """
    name, colon, parameters = text.partition(":")
    if name == "linear" and not colon:
        return SpeedModel()
    least, most = _two_numbers(parameters)
    if name not in _KINDS or not 0.0 <= least <= most <= 1.0:
        raise ValueError(
            f"{text!r} is not linear, amdahl:S, power:RHO, log:RHO or downey:SIGMA"
            " with one or two numbers from 0 to 1"
        )
    return SpeedModel(_KINDS[name], least, most)


def _two_numbers(text: str) -> tuple[float, float]:
    """Parse `A:B`, or `A` for two equal numbers; return NaN twice for any other text."""
    first, colon, second = text.partition(":")
    try:
        return float(first), float(second if colon else first)
    except ValueError:
        return math.nan, math.nan
