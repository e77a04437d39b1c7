"""The workload model of Lublin and Feitelson (1999): sizes, run times and arrivals of rigid jobs.

Constants and procedure are those of its public program, `m_lublin99.c`. A size is 1, a power of two, or any
number; its logarithm has a two-stage uniform distribution. The logarithm of a run time has a mixture of two
gamma distributions, whose weights depend on the size. The logarithm of a gap between arrivals has a gamma
distribution, on a clock that runs as fast as jobs arrive at that time of the day. Batch and interactive jobs
have constants of their own and arrive independently. The constants were fitted to 128 nodes; for other
machines, the logarithms of sizes are shifted, as the program's text advises.

The model has no estimates, so a job's estimate is its run time. `Job.queue` is 1 for batch jobs and 0 for
interactive jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.job import Job, Truth, Workload

NODES_MIN = 32
_FITTED_TO = math.log2(128)
_DAY_S = 86_400
_BUCKETS = 48
_BUCKET_S = _DAY_S // _BUCKETS
#: the number of half-hours from midnight to the begin of a cycle
_DAY_START = 11
#: the largest logarithms of run times and gaps [s] (two and five days); larger ones are drawn again
_LN_RUN_MAX = 12.0
_LN_GAP_MAX = 13.0


class Kind(msgspec.Struct, frozen=True):
    """The constants of one kind of jobs; those of `log2` are for 128 nodes."""

    queue: int
    serial: float
    power_of_two: float
    log2_low: float
    log2_medium: float
    log2_high: float
    low_share: float
    #: (alpha, beta) of short and of long run times; (slope, value at size 0) of the weight of short run times
    short: tuple[float, float]
    long: tuple[float, float]
    short_weight: tuple[float, float]
    #: (alpha, beta) of gaps in rush hours, and the factor of alpha for all hours of a day
    gap: tuple[float, float]
    all_hours: float
    #: (alpha, beta) of the day's cycle, in half-hours
    cycle: tuple[float, float]


BATCH = Kind(
    1, 0.2927, 0.6686, 1.2, 5.0, 7.0, 0.875,
    (6.57, 0.823), (639.1, 0.0156), (-0.003, 0.6986), (6.0415, 0.8531), 1.0519, (6.1271, 5.2740),
)  # fmt: skip
INTERACTIVE = Kind(
    0, 0.1541, 0.625, 1.0, 3.0, 5.5, 0.705,
    (3.8351, 0.6605), (7.073, 0.6856), (-0.0118, 0.9156), (6.5510, 0.6621), 0.9797, (8.9186, 3.6680),
)  # fmt: skip
#: the constants fitted to all jobs together
ANY = Kind(
    0, 0.244, 0.576, 0.8, 4.5, 7.0, 0.86,
    (4.2, 0.94), (312.0, 0.03), (-0.0054, 0.78), (10.2303, 0.4871), 1.0225, (8.1737, 3.9631),
)  # fmt: skip


def lublin(jobs: int, nodes: int, seed: int, kinds: Sequence[Kind] = (BATCH, INTERACTIVE)) -> Workload:
    """Generate the first `jobs` jobs after a midnight. Raises ValueError if the machine is too small."""
    if nodes < NODES_MIN:
        raise ValueError(f"Lublin's model needs {NODES_MIN} nodes at least, not {nodes}")
    generator = np.random.default_rng(seed)
    drawn = [_jobs_of(kind, jobs, nodes, generator) for kind in kinds]
    arrivals = np.concatenate([one[0] for one in drawn])
    first = np.argsort(arrivals, kind="stable")[:jobs]
    sizes = np.concatenate([one[1] for one in drawn])[first].tolist()
    runs = np.concatenate([one[2] for one in drawn])[first].tolist()
    queues = np.repeat([kind.queue for kind in kinds], jobs)[first].tolist()
    described = [
        Job(number, float(at_s), size, run_s, number=number + 1, queue=str(queue))
        for number, (at_s, size, run_s, queue) in enumerate(
            zip(arrivals[first].tolist(), sizes, runs, queues, strict=True)
        )
    ]
    return Workload(described, [Truth(run_s) for run_s in runs], nodes, f"Lublin'99, seed {seed}")


_Numbers = NDArray[np.float64]


def _jobs_of(
    kind: Kind, count: int, nodes: int, generator: np.random.Generator
) -> tuple[_Numbers, NDArray[np.int64], _Numbers]:
    """Return arrivals [s], sizes and run times [s] of `count` jobs of one kind."""
    sizes = _sizes(kind, count, nodes, generator)
    return _arrivals(kind, count, generator), sizes, _runs(kind, sizes, generator)


def _sizes(kind: Kind, count: int, nodes: int, generator: np.random.Generator) -> NDArray[np.int64]:
    moved = math.log2(nodes) - _FITTED_TO
    medium, high = kind.log2_medium + moved, kind.log2_high + moved
    choice = generator.random(count)
    is_low = generator.random(count) <= kind.low_share
    log2 = np.where(
        is_low, generator.uniform(kind.log2_low, medium, count), generator.uniform(medium, high, count)
    )
    log2 = np.where(choice <= kind.serial + kind.power_of_two, np.floor(log2 + 0.5), log2)
    sizes = np.where(choice <= kind.serial, 1.0, np.floor(2.0**log2 + 0.5))
    return np.minimum(sizes, nodes).astype(np.int64)


def _runs(kind: Kind, sizes: NDArray[np.int64], generator: np.random.Generator) -> _Numbers:
    slope, at_zero = kind.short_weight
    short_weights = np.clip(slope * sizes + at_zero, 0.0, 1.0)
    logarithms = np.full(len(sizes), math.inf)
    while (missing := logarithms > _LN_RUN_MAX).any():
        count = int(missing.sum())
        is_short = generator.random(count) <= short_weights[missing]
        short, long = generator.gamma(*kind.short, count), generator.gamma(*kind.long, count)
        logarithms[missing] = np.where(is_short, short, long)
    return np.asarray(np.floor(np.exp(logarithms)), dtype=np.float64)


def _arrivals(kind: Kind, count: int, generator: np.random.Generator) -> _Numbers:
    """Return arrivals in whole seconds after midnight."""
    alpha, beta = kind.gap
    logarithms = generator.gamma(alpha * kind.all_hours, beta, count)
    while (too_long := logarithms > _LN_GAP_MAX).any():
        logarithms[too_long] = generator.gamma(alpha * kind.all_hours, beta, int(too_long.sum()))
    # `points` are times of a clock by which each half-hour is as long as its weight.
    points = np.cumsum(np.exp(logarithms)) / _BUCKET_S
    until = np.concatenate([[0.0], np.cumsum(day_cycle(kind))])
    days, rest = np.divmod(points, until[-1])
    times_s = days * _DAY_S + np.interp(rest, until, np.arange(_BUCKETS + 1) * _BUCKET_S)
    return np.asarray(np.floor(times_s), dtype=np.float64)


def day_cycle(kind: Kind) -> _Numbers:
    """Return the weight of each half-hour of a day: its number of arrivals divided by the mean number."""
    alpha, beta = kind.cycle
    step = 0.001
    halves = np.arange(step, _DAY_START + _BUCKETS, step)
    density = np.exp(
        (alpha - 1.0) * np.log(halves) - halves / beta - alpha * math.log(beta) - math.lgamma(alpha)
    )
    until = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * step)])
    middles = np.arange(_DAY_START, _DAY_START + _BUCKETS)
    weights = np.zeros(_BUCKETS)
    weights[(middles - 1) % _BUCKETS] = np.interp(middles + 0.5, halves, until) - np.interp(
        middles - 0.5, halves, until
    )
    return np.asarray(weights / weights.mean(), dtype=np.float64)
