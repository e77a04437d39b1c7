import math

import numpy as np
import pytest
from numpy.typing import NDArray

from mallob_py.batch.job import Kind, Workload
from mallob_py.batch.workload.generators import GENERATORS, cirne_like, kit_shape, pecs23
from mallob_py.batch.workload.lublin import ANY, BATCH, INTERACTIVE, day_cycle, lublin
from mallob_py.batch.workload.lublin import Kind as Constants

MANY = 20_000


def sizes(workload: Workload) -> NDArray[np.int64]:
    return np.array([job.nodes for job in workload.jobs])


def runs(workload: Workload) -> NDArray[np.float64]:
    return np.array([truth.run_s for truth in workload.truths])


def load(workload: Workload) -> float:
    """Return the load of the machine from the first submission to the last."""
    span_s = workload.jobs[-1].submit_s - workload.jobs[0].submit_s
    return float((sizes(workload) * runs(workload)).sum()) / (workload.nodes * span_s)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_tells_everything(name: str) -> None:
    one = GENERATORS[name]
    jobs = min(one.jobs, 300)
    workload = one.make(jobs, one.nodes, 7)
    assert workload == one.make(jobs, one.nodes, 7)
    assert workload.jobs != one.make(jobs, one.nodes, 8).jobs
    assert len(workload.jobs) == len(workload.truths) == jobs
    assert [job.id for job in workload.jobs] == list(range(jobs))
    submissions = [job.submit_s for job in workload.jobs]
    assert submissions == sorted(submissions)
    assert all(1 <= job.low <= job.nodes <= workload.nodes for job in workload.jobs)
    assert all(
        0 < truth.run_s <= job.estimate_s for job, truth in zip(workload.jobs, workload.truths, strict=True)
    )


@pytest.mark.parametrize("kind", [BATCH, INTERACTIVE, ANY])
def test_lublins_sizes_and_run_times_have_the_models_moments(kind: Constants) -> None:
    workload = lublin(MANY, 128, 1, (kind,))
    many, logarithms = sizes(workload), np.log(runs(workload) + 0.5)
    assert (many == 1).mean() == pytest.approx(kind.serial, abs=0.01 if kind.log2_low >= 1 else 0.05)
    parallel = many[many > 1]
    assert ((parallel & (parallel - 1)) == 0).mean() >= kind.power_of_two / (1 - kind.serial) - 0.02
    share = kind.low_share
    expected = (share * kind.log2_low + kind.log2_medium + (1 - share) * kind.log2_high) / 2
    assert np.log2(parallel).mean() == pytest.approx(expected, abs=0.15)
    slope, at_zero = kind.short_weight
    weights = np.clip(slope * many + at_zero, 0, 1)
    expected_runs = weights * math.prod(kind.short) + (1 - weights) * math.prod(kind.long)
    # Long run times are drawn again, which lowers the mean.
    assert expected_runs.mean() - 0.4 < logarithms.mean() < expected_runs.mean() + 0.1
    assert runs(workload).max() <= math.exp(12)


@pytest.mark.parametrize("kind", [BATCH, INTERACTIVE, ANY])
def test_lublins_arrivals_follow_the_day(kind: Constants) -> None:
    cycle = day_cycle(kind)
    assert cycle.mean() == pytest.approx(1.0)
    arrivals = np.array([job.submit_s for job in lublin(MANY, 128, 1, (kind,)).jobs])
    halves = np.bincount((arrivals % 86_400 // 1800).astype(int), minlength=48) / MANY * 48
    assert np.corrcoef(halves, cycle)[0, 1] > 0.97
    gaps_s = np.diff(arrivals)
    # The mean of the bounded log-gamma distribution, from an independent sample.
    sample = np.random.default_rng(5).gamma(kind.gap[0] * kind.all_hours, kind.gap[1], 400_000)
    assert gaps_s.mean() == pytest.approx(np.exp(sample[sample <= 13.0]).mean(), rel=0.1)


def test_lublins_day_is_that_of_a_gamma_distribution() -> None:
    # For an integral alpha, Erlang's formula gives the distribution.
    def below(x: float) -> float:
        return 1 - math.exp(-x / 4) * sum((x / 4) ** k / math.factorial(k) for k in range(8))

    cycle = day_cycle(Constants(0, 0, 0, 0, 0, 0, 0, (1, 1), (1, 1), (0, 0), (1, 1), 1, (8.0, 4.0)))
    total = below(58.5) - below(10.5)
    assert cycle[19] == pytest.approx((below(20.5) - below(19.5)) / total * 48, rel=1e-5)
    assert cycle[47] == pytest.approx((below(48.5) - below(47.5)) / total * 48, rel=1e-5)
    assert cycle[0] == pytest.approx((below(49.5) - below(48.5)) / total * 48, rel=1e-5)


def test_lublins_kinds_are_mixed_by_arrival() -> None:
    queues = [job.queue for job in lublin(MANY, 256, 1).jobs]
    assert 0.5 < queues.count("0") / MANY < 0.9
    with pytest.raises(ValueError, match="needs 32 nodes at least, not 16"):
        lublin(10, 16, 1)


def test_like_a_published_output_of_lublins_program() -> None:
    """The published output (lublin_256) has 10,000 jobs on 256 nodes: shares, means and medians must be
    close.
    """
    workload = lublin(MANY, 256, 1, (ANY,))
    many, long = sizes(workload), runs(workload)
    assert (many == 1).mean() == pytest.approx(0.249, abs=0.01)
    assert many.mean() == pytest.approx(22.1, rel=0.05)
    assert np.median(long) == pytest.approx(137, rel=0.15)
    assert long.mean() == pytest.approx(4863, rel=0.05)
    assert np.log(long).std() == pytest.approx(3.02, abs=0.05)


def test_cirne_like_has_the_moments_of_kth() -> None:
    workload = cirne_like(MANY, 100, 1)
    many, long = sizes(workload), runs(workload)
    parallel = many[many > 1]
    assert (many == 1).mean() == pytest.approx(0.326, abs=0.01)
    assert ((parallel & (parallel - 1)) == 0).mean() == pytest.approx(0.604, abs=0.015)
    assert np.log2(parallel).mean() == pytest.approx(2.71, abs=0.1)
    assert many.mean() == pytest.approx(7.7, rel=0.1)
    assert np.log(long).mean() == pytest.approx(6.42, abs=0.1)
    assert np.log(long).std() == pytest.approx(2.94, abs=0.1)
    assert long.mean() == pytest.approx(8573, rel=0.15)
    accuracy = long / np.array([job.estimate_s for job in workload.jobs])
    assert accuracy.mean() == pytest.approx(0.464, abs=0.05)
    assert load(workload) == pytest.approx(0.686, rel=0.1)
    hours = np.array([job.submit_s for job in workload.jobs]) % 86_400 // 3600
    assert ((hours >= 9) & (hours < 18)).mean() == pytest.approx(0.713, abs=0.03)


def test_pecs23_has_the_shape_of_the_published_workload() -> None:
    workload = pecs23(MANY, 128, 1)
    jobs, many, long = workload.jobs, sizes(workload), runs(workload)
    assert {job.kind for job in jobs} == {Kind.MALLEABLE}
    assert many.mean() == pytest.approx(42.6, rel=0.02)
    assert np.median(long) == pytest.approx(3341, rel=0.03)
    assert long.mean() == pytest.approx(3358, rel=0.03)
    assert load(workload) == pytest.approx(1.0, rel=0.03)
    assert np.median([truth.iterations for truth in workload.truths]) == pytest.approx(51, abs=2)
    at_least_80_percent = [job for job in jobs if job.speedup.speed(job.nodes, 1) / job.nodes >= 0.8]
    assert len(at_least_80_percent) == len(jobs)


def test_the_shape_for_kit_fills_its_machine_for_three_hours() -> None:
    workload = kit_shape(1000, 500, 1)
    assert load(workload) == pytest.approx(1.0, rel=0.1)
    assert 2.0 < workload.jobs[-1].submit_s / 3600 < 4.0


@pytest.mark.parametrize(("name", "nodes"), [("cirne", 3), ("pecs23", 64), ("glb", 64), ("kit", 50)])
def test_machines_of_the_wrong_size_are_refused(name: str, nodes: int) -> None:
    with pytest.raises(ValueError, match=r"nodes"):
        GENERATORS[name].make(25, nodes, 1)
