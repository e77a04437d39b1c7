"""Workloads changed as experiments want them."""

from __future__ import annotations

import msgspec

from mallob_py.batch.job import Workload
from mallob_py.batch.speedup import Linear


def with_model_error(workload: Workload, error: float) -> Workload:
    """The workload with jobs that scale worse than is said: their true loss is larger by `error`.

    Linear jobs, which have no such number, stay.
    """
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
    """The workload with users who know how long their jobs run."""
    jobs = [
        msgspec.structs.replace(job, estimate_s=truth.run_s)
        for job, truth in zip(workload.jobs, workload.truths, strict=True)
    ]
    return msgspec.structs.replace(workload, jobs=jobs)


def with_arrivals_scaled(workload: Workload, factor: float) -> Workload:
    """The workload with all submissions after the first sooner (below 1) or later by this factor."""
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
