"""Workloads generated from a seed: by published models, or similar to unavailable traces.

`lublin` and `lublin-any` use the model of lublin.py; `glb` is a batch of glb_batch.py. The other generators:

cirne    Similar to the model of Cirne and Berman (2001), whose constants are not available: its kinds of
         distributions are fitted to the trace of KTH's SP2. No other property is matched.
pecs23   Similar to the PECS 2023 workloads (see elastisim.py). All jobs are malleable; sizes are powers of
         two, each as frequent as all smaller ones together; jobs run for an hour and follow Amdahl's law.
kit      Similar to the trace KIT-FH2-2016, of which no numbers are published: many small short jobs,
         log-normal run times. Its constants are chosen so that 1000 jobs keep 500 nodes busy for about three
         hours, as in the figures of the MEBF paper. No other property is matched.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.job import Job, Kind, Truth, Workload
from mallob_py.batch.speedup import Amdahl
from mallob_py.batch.workload import glb_batch
from mallob_py.batch.workload.elastisim import FLOPS_PER_S
from mallob_py.batch.workload.lublin import ANY, lublin

_Numbers = NDArray[np.float64]


class Generator(msgspec.Struct, frozen=True):
    """A generator `make(jobs, nodes, seed)`, with its default numbers of jobs and nodes."""

    make: Callable[[int, int, int], Workload]
    jobs: int
    nodes: int


# --- like Cirne's, fitted to KTH ----------------------------------------------------------------

#: the share of serial jobs at KTH, and the share of powers of two among the sizes of parallel jobs
_SERIAL = 0.326
_POWER_OF_TWO = 0.604
#: the beta distribution of log2 of a parallel job's size, scaled to between 1 and log2 of the machine's size
_LOG2_BETA = (0.72, 1.95)
#: (mean, standard deviation) of the logarithm of run times [s] of short and of long jobs; share of long jobs
_LN_SHORT, _LN_LONG, _LONG = (3.63, 1.41), (8.79, 1.44), 0.54
_RUN_MAX_S = 216_000.0
#: parameters of the beta distribution of run time/estimate
_ACCURACY_BETA = (0.356, 0.411)
_LOAD = 0.686
#: standard deviation/mean of the gaps between arrivals, on a clock that runs as fast as jobs arrive at that
#: hour
_GAP_VARIATION = 2.23
#: the share of a day's jobs in each hour [%]
_HOURS = (
    1.7, 1.6, 1.2, 0.6, 0.4, 0.3, 0.4, 1.3, 3.6, 6.2, 7.6, 7.4,
    7.1, 8.3, 8.4, 8.7, 9.0, 8.6, 4.2, 3.5, 3.1, 2.1, 2.7, 2.1,
)  # fmt: skip


def cirne_like(jobs: int, nodes: int, seed: int) -> Workload:
    """Generate a workload similar to the model of Cirne and Berman; see the module's docstring."""
    if nodes < 4:
        raise ValueError(f"cirne needs 4 nodes at least, not {nodes}")
    generator = np.random.default_rng(seed)
    sizes = np.where(
        generator.random(jobs) < _SERIAL, 1, _parallel_sizes(jobs, math.log2(nodes), generator)
    ).astype(np.int64)
    is_long = generator.random(jobs) < _LONG
    runs = np.full(jobs, math.inf)
    while (too_long := runs > _RUN_MAX_S).any():
        count = int(too_long.sum())
        logarithms = np.where(
            is_long[too_long], generator.normal(*_LN_LONG, count), generator.normal(*_LN_SHORT, count)
        )
        runs[too_long] = np.ceil(np.exp(logarithms))
    accuracies = np.maximum(generator.beta(*_ACCURACY_BETA, jobs), 1e-4)
    estimates = np.minimum(np.ceil(runs / accuracies), _RUN_MAX_S)
    gap_s = float((sizes * runs).mean()) / (nodes * _LOAD)
    sigma = math.sqrt(math.log(1.0 + _GAP_VARIATION**2))
    busy_s = np.cumsum(generator.lognormal(math.log(gap_s) - sigma**2 / 2, sigma, jobs))
    cycle = np.concatenate([[0.0], np.cumsum(_HOURS)]) / sum(_HOURS) * 86_400
    days, rest = np.divmod(busy_s, 86_400)
    arrivals = np.floor(days * 86_400 + np.interp(rest, cycle, np.arange(25) * 3600))
    return _rigid(f"Cirne-like, seed {seed}", nodes, arrivals, sizes, runs, np.maximum(runs, estimates))


def _parallel_sizes(count: int, log2_max: float, generator: np.random.Generator) -> _Numbers:
    def drawn(so_many: int) -> _Numbers:
        return 1.0 + (log2_max - 1.0) * generator.beta(*_LOG2_BETA, so_many)

    is_power = generator.random(count) < _POWER_OF_TWO
    sizes = 2.0 ** np.minimum(np.floor(drawn(count) + 0.5), math.floor(log2_max))
    others = np.zeros(count)
    while (missing := ~is_power & _is_power_of_two(others)).any():
        others[missing] = np.floor(2.0 ** drawn(int(missing.sum())) + 0.5)
    return np.where(is_power, sizes, others)


def _is_power_of_two(sizes: _Numbers) -> NDArray[np.bool_]:
    whole = sizes.astype(np.int64)
    return np.asarray((whole & (whole - 1)) == 0, dtype=np.bool_)


# --- the shape of PECS 2023 ---------------------------------------------------------------------

#: preferred size -> (smallest and greatest number of nodes, whose efficiencies are .95 and .5; parallel
#: share)
_PECS_SIZES = {
    64: (32, 128, 0.999),
    32: (8, 128, 0.995),
    16: (4, 64, 0.985),
    8: (2, 16, 0.965),
    4: (2, 16, 0.95),
    2: (2, 16, 0.95),
    1: (1, 128, 0.999),
}
_PECS_GAP_S = 2_592_000 / 2317
#: a job's work [flop]: mean per preferred node, constant part of the mean, standard deviation, minimum
_PECS_FLOP = (3.125e15, -2.5e15, 4e15, 5e12)
#: the time [s] of the parallel work of an iteration
_PECS_ITERATION_S = 60.0


def pecs23(jobs: int, nodes: int, seed: int) -> Workload:
    """Generate a workload similar to those of PECS 2023; see the module's docstring."""
    if nodes < 128:
        raise ValueError(f"pecs23 needs 128 nodes at least, not {nodes}")
    generator = np.random.default_rng(seed)
    sizes = list(_PECS_SIZES)
    weights = np.array([0.5**place for place in range(1, len(sizes))])
    chosen = generator.choice(sizes, jobs, p=[*weights, 1.0 - weights.sum()])
    per_node, fixed, deviation, least = _PECS_FLOP
    flops = np.maximum(least, generator.normal(per_node * chosen + fixed, deviation))
    arrivals = np.sort(np.floor(generator.uniform(0.0, jobs * _PECS_GAP_S, jobs)))
    described, truths = list[Job](), list[Truth]()
    for number, (at_s, size, flop) in enumerate(
        zip(arrivals.tolist(), chosen.tolist(), flops.tolist(), strict=True)
    ):
        low, high, parallel = _PECS_SIZES[size]
        seconds = flop / FLOPS_PER_S
        run_s = seconds * ((1.0 - parallel) + parallel / size)
        described.append(
            Job(number, at_s, size, run_s, Kind.MALLEABLE, low, high, Amdahl(1.0 - parallel), number + 1)
        )
        truths.append(Truth(run_s, iterations=max(1, int(seconds / size / _PECS_ITERATION_S))))
    return Workload(described, truths, nodes, f"PECS'23 shape, seed {seed}")


# --- for KIT-FH2 --------------------------------------------------------------------------------

_KIT_SERIAL = 0.35
#: the greatest log2 of a parallel job's size; log2 is uniform between 0 and this number
_KIT_LOG2_MAX = 6.3
_KIT_LN_RUN = (math.log(200.0), 1.2)
_KIT_LOAD = 1.0


def kit_shape(jobs: int, nodes: int, seed: int) -> Workload:
    """Generate a workload similar to KIT-FH2's; see the module's docstring.

    Estimates are exact, as in the MEBF paper.
    """
    largest = 2.0**_KIT_LOG2_MAX
    if nodes < largest:
        raise ValueError(f"kit needs {math.ceil(largest)} nodes at least, not {nodes}")
    generator = np.random.default_rng(seed)
    sizes = np.floor(2.0 ** generator.uniform(0.0, _KIT_LOG2_MAX, jobs) + 0.5)
    sizes = np.where(generator.random(jobs) < _KIT_SERIAL, 1, sizes).astype(np.int64)
    runs = np.ceil(generator.lognormal(*_KIT_LN_RUN, jobs))
    gap_s = float((sizes * runs).mean()) / (nodes * _KIT_LOAD)
    arrivals = np.floor(np.cumsum(generator.exponential(gap_s, jobs)))
    return _rigid(f"KIT shape, seed {seed}", nodes, arrivals, sizes, runs, runs)


# --- all generators -----------------------------------------------------------------------------


def _rigid(
    name: str, nodes: int, arrivals: _Numbers, sizes: NDArray[np.int64], runs: _Numbers, estimates: _Numbers
) -> Workload:
    columns = zip(arrivals.tolist(), sizes.tolist(), estimates.tolist(), strict=True)
    jobs = [
        Job(number, at_s, size, estimate_s, number=number + 1)
        for number, (at_s, size, estimate_s) in enumerate(columns)
    ]
    return Workload(jobs, [Truth(run_s) for run_s in runs.tolist()], nodes, name)


def _glb(jobs: int, nodes: int, seed: int) -> Workload:
    if (jobs, nodes) != (glb_batch.JOBS, glb_batch.NODES):
        raise ValueError(f"glb generates only batches of {glb_batch.JOBS} jobs on {glb_batch.NODES} nodes")
    return glb_batch.glb_batch(seed, 1.0)


#: name on the command line -> generator
GENERATORS = {
    "lublin": Generator(lublin, 10_000, 128),
    "lublin-any": Generator(lambda jobs, nodes, seed: lublin(jobs, nodes, seed, (ANY,)), 10_000, 128),
    "cirne": Generator(cirne_like, 10_000, 100),
    "pecs23": Generator(pecs23, 2317, 128),
    "glb": Generator(_glb, glb_batch.JOBS, glb_batch.NODES),
    "kit": Generator(kit_shape, 1000, 500),
}
