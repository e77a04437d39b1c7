"""Curves fitted to measured rates, alone, in the simulator and under the policy `curve`."""

import math
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workloads import any_workloads, malleable

from mallob_py.batch.job import AnySpeedup, Job, Kind, Truth, Workload
from mallob_py.batch.policies.curve import Curve
from mallob_py.batch.policies.fits import STIFFNESS, Fits, fitted
from mallob_py.batch.policy import Action, Resize, Running, Start, View, Wake
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import Schedule, simulate
from mallob_py.batch.speedup import Power
from mallob_py.batch.workload.changes import speed_model_of

SIZES = st.sets(st.integers(1, 512), min_size=1, max_size=6)
PART = st.floats(0.0, 1.0)


def rates_of(rho: float, sizes: Iterable[int], unit: float = 1.0) -> dict[int, float]:
    """Return, by number of nodes, the logarithm of the exact rate of a job whose unit of work is `unit`."""
    return {nodes: math.log(unit * nodes ** (1.0 - rho)) for nodes in sizes}


def running(rate: float | None, size: int, number: int = 3) -> Running:
    one = Running(Job(number, 0.0, 4, 100.0, Kind.MALLEABLE, 1, 8), 0.0, list(range(size)), 100.0, 1)
    one.rate = rate
    return one


@given(PART, st.integers(1, 512), st.floats(1e-6, 1e6))
def test_rates_on_one_number_of_nodes_leave_the_curve_as_assumed(rho: float, nodes: int, rate: float) -> None:
    assert fitted({nodes: math.log(rate)}, rho).rho == pytest.approx(rho)


@given(PART, PART, SIZES, st.floats(1e-6, 1e6))
def test_a_curve_lies_between_the_assumed_and_the_true_one_in_whatever_unit(
    assumed: float, true: float, sizes: set[int], unit: float
) -> None:
    rho = fitted(rates_of(true, sizes, unit), assumed).rho
    assert min(assumed, true) - 1e-6 <= rho <= max(assumed, true) + 1e-6


@pytest.mark.parametrize(("sizes", "far"), [((1, 2), 0.51), ((1, 2, 4), 0.21), ((1, 2, 4, 8, 16), 0.05)])
def test_the_wider_the_sizes_the_less_the_assumed_curve_counts(sizes: tuple[int, ...], far: float) -> None:
    # The exponents of the assumed and the true curve differ by 1.
    assert fitted(rates_of(1.0, sizes), 0.0).rho == pytest.approx(1.0 - far, abs=0.01)


@pytest.mark.parametrize(("power", "rho"), [(5.0, 0.0), (-5.0, 1.0)])
def test_no_curve_is_steeper_than_linear_or_falls(power: float, rho: float) -> None:
    assert fitted({nodes: power * math.log(nodes) for nodes in (1, 8, 64)}, 0.5) == Power(rho)


def test_the_last_rate_on_a_number_of_nodes_counts_until_the_job_ends() -> None:
    fits = Fits(0.2)
    assert fits.remark(running(None, 2)) == ""
    for rate, size in ((5.0, 1), (1.0, 4), (None, 2), (0.0, 2), (1.0, 1)):
        fits.look({3: running(rate, size)})
    flat = fitted({1: 0.0, 4: 0.0}, 0.2)
    assert fits.curve(3) == flat
    assert fits.curve(4) == Power(0.2)
    assert fits.remark(running(None, 2)) == (
        f"Its speed on n nodes counts as n^{1.0 - flat.rho:.2f}, by its rates on 1, 4."
    )
    assert fits.remark(running(9.0, 2)).endswith("by its rates on 1, 2, 4."), "also without a decision"
    fits.look({})
    assert fits.curve(3) == Power(0.2)


# --- fitting in the simulator ----------------------------------------------------------------


class Watching:
    """A policy that resizes job 0 at given times, and records the rate that it sees at further times."""

    name = "watching"
    wants_all_arrivals = True
    rate_period_s = 10.0

    def __init__(self, sizes: dict[float, int], looks: Iterable[float]) -> None:
        self.sizes, self.looks = sizes, sorted({*looks, *sizes})
        self.seen: list[tuple[float, float | None]] = []

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> Iterator[Action]:
        if view.queue:
            yield Start(0, 4)
        elif view.running:
            self.seen.append((view.now_s, view.running[0].rate))
            if view.now_s in self.sizes:
                yield Resize(0, self.sizes[view.now_s])
        yield from (Wake(at_s) for at_s in self.looks[:1] if at_s > view.now_s)
        self.looks = [at_s for at_s in self.looks if at_s > view.now_s]
        yield from (Wake(at_s) for at_s in self.looks[:1])


def one_job(speedup: AnySpeedup) -> Workload:
    workload = malleable((0, 1, 4, 16, 1000), nodes=16, speedup=speedup)
    return Workload(workload.jobs, workload.truths, 16)


def test_a_rate_is_shown_two_periods_after_the_last_resize_and_is_the_true_speed() -> None:
    policy = Watching({50.0: 8}, [5.0, 19.0, 20.0, 49.0, 69.0, 70.0, 90.0])
    simulate(one_job(Power(0.5)), policy, rate_noise=0.0)
    shown = dict(policy.seen)
    assert [shown[at_s] for at_s in (5.0, 19.0, 69.0)] == [None] * 3
    assert [shown[at_s] for at_s in (20.0, 49.0, 70.0, 90.0)] == pytest.approx([1.0, 1.0, 2**0.5, 2**0.5])


def test_the_noise_of_rates_comes_from_the_job_and_the_time_alone() -> None:
    seen = []
    for looks in ([20.0, 49.0, 90.0], [21.0, 49.0, 70.0, 80.0, 90.0]):
        policy = Watching({50.0: 8}, looks)
        simulate(one_job(Power(0.5)), policy)
        seen.append(dict(policy.seen))
    for at_s, exact in ((49.0, 1.0), (90.0, 2**0.5)):
        first, second = (one[at_s] for one in seen)
        assert first == second
        assert first is not None
        assert 0.0 < abs(math.log(first / exact)) < 0.5


def test_a_policy_without_a_period_sees_no_rates() -> None:
    policy = Watching({}, [90.0])
    policy.rate_period_s = 0.0
    simulate(one_job(Power(0.5)), policy)
    assert dict(policy.seen)[90.0] is None


# --- fitting under the policy ----------------------------------------------------------------


def sizes_at(schedule: Schedule, at_s: float) -> list[int]:
    """Return the sizes of the jobs 0 and 1 at this time."""
    return [
        next(len(one.nodes) for one in schedule.all_pieces() if one.job == job and one.end_s > at_s)
        for job in (0, 1)
    ]


def two_jobs_and_short_ones(true: tuple[AnySpeedup, AnySpeedup]) -> Workload:
    """Return two long jobs whose claimed speedups are linear, and short jobs for which both shrink."""
    short = [(100 + 100 * number, 4, 4, 4, 40) for number in range(6)]
    workload = malleable((0, 1, 4, 12, 2000), (0, 1, 4, 12, 2000), *short, nodes=12)
    truths = [Truth(2000.0, speedup) for speedup in true]
    return Workload(workload.jobs, [*truths, *workload.truths[2:]], 12)


@pytest.mark.parametrize("first_scales", [True, False])
def test_the_job_whose_rates_scale_gets_more_nodes_than_the_job_whose_rates_do_not(
    first_scales: bool,
) -> None:
    true = (Power(0.0), Power(1.0)) if first_scales else (Power(1.0), Power(0.0))
    workload = two_jobs_and_short_ones(true)
    fitted_sizes = sizes_at(simulate(workload, policy_of("curve:floor=0,curve=fitted,period_s=5")), 700.0)
    scales, does_not = fitted_sizes if first_scales else fitted_sizes[::-1]
    assert scales > 2 * does_not
    # If one curve is assumed of both jobs, neither gets more nodes.
    assert sizes_at(simulate(workload, policy_of("curve:floor=0,curve=power:0.2")), 700.0) == [6, 6]


@given(any_workloads(nodes=16))
def test_a_run_is_the_same_again_also_by_the_same_policy(workload: Workload) -> None:
    policy = Curve(curve="fitted", period_s=1.0)
    first = simulate(workload, policy)
    assert simulate(workload, policy).ends_s == first.ends_s
    assert simulate(workload, Curve(curve="fitted", period_s=1.0)).ends_s == first.ends_s


@given(any_workloads(nodes=16))
def test_before_any_rate_is_known_the_prior_is_assumed_of_all_jobs(workload: Workload) -> None:
    fits = simulate(workload, policy_of("curve:curve=fitted,prior=0.3,period_s=1e6"))
    assert fits.ends_s == simulate(workload, policy_of("curve:curve=power:0.3")).ends_s


def test_under_learnt_estimates_rates_are_seen_too() -> None:
    workload = two_jobs_and_short_ones((Power(0.0), Power(1.0)))
    policy = policy_of("curve:floor=0,curve=fitted,period_s=5,learn=queue")
    assert policy.rate_period_s == 5.0  # type: ignore[attr-defined]
    plain = simulate(workload, policy_of("curve:floor=0,curve=power:0.2,period_s=5,learn=queue"))
    assert simulate(workload, policy).ends_s[:2] != plain.ends_s[:2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [("prior=2", "prior is 2"), ("period_s=0", "period_s must be"), ("period_s=inf", "period_s must be")],
)
def test_settings_of_fits_that_are_none_are_refused(settings: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_of(f"curve:curve=fitted,{settings}")


def test_fitted_is_no_model_of_a_workload() -> None:
    with pytest.raises(ValueError, match="'fitted' is not linear"):
        speed_model_of("fitted")
    assert STIFFNESS > 0.0
