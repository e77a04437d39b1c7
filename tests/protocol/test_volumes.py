"""Fair volumes compared with an exact reference in `fractions`, and C1 to C3 of P 2.3."""

import subprocess
import sys
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mallob_py.protocol import volumes as volumes_module
from mallob_py.protocol.equal_volumes import equal_volumes
from mallob_py.protocol.messages import JobEvent
from mallob_py.protocol.volumes import fair_volumes

WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs with distinct ids, and the PEs they share."""

    priorities: list[float]
    demands: list[int]
    ids: list[int]
    m: int

    def volumes(self) -> list[int]:
        volumes = fair_volumes(self.priorities, self.demands, self.m, job_ids=self.ids)
        return [int(v) for v in volumes]

    def order(self) -> list[int]:
        """Return the jobs' positions, sorted by descending priority, descending demand, ascending hash."""
        return sorted(
            range(len(self.ids)),
            key=lambda j: (-self.priorities[j], -self.demands[j], splitmix64(self.ids[j])),
        )

    def shares(self, alpha: Fraction) -> list[Fraction]:
        """Return v_j(alpha) for each job j, unrounded."""
        return [
            max(Fraction(1), min(Fraction(d), alpha * Fraction(p)))
            for p, d in zip(self.priorities, self.demands, strict=True)
        ]

    def root(self) -> Fraction:
        """Return alpha_0 by exact evaluation of xi at all events (needs n < m < sum of demands)."""
        exact = [Fraction(p) for p in self.priorities]
        events = {1 / p for p in exact} | {d / p for p, d in zip(exact, self.demands, strict=True)}
        ascending = sorted(events)
        at = bisect_left(ascending, Fraction(self.m), key=self.used)
        after, before = ascending[at], ascending[at - 1] if at else Fraction(0)
        used_before = self.used(before)
        return before + (self.m - used_before) * (after - before) / (self.used(after) - used_before)

    def used(self, alpha: Fraction) -> Fraction:
        return sum(self.shares(alpha), Fraction(0))


def splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def reference(jobs: Jobs) -> list[int]:
    n, order = len(jobs.ids), jobs.order()
    if n >= jobs.m:
        return [int(j in order[: jobs.m]) for j in range(n)]
    if sum(jobs.demands) <= jobs.m:
        return list(jobs.demands)
    shares = jobs.shares(jobs.root())
    volumes = [int(share) for share in shares]
    open_jobs = [j for j in order if shares[j] < jobs.demands[j]]
    for j in open_jobs[: jobs.m - sum(volumes)]:
        volumes[j] += 1
    return volumes


priority = st.one_of(
    st.sampled_from([0.01, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 4.0]),
    st.sampled_from([1e-9, 1e9, 1.0, 1.0 + 2.0**-52, 1.0 - 2.0**-53]),
    st.floats(1e-9, 1e9),
)
demand = st.one_of(st.integers(1, 8), st.integers(1, 1000), st.sampled_from([2**20, 2**40, 2**40 - 1]))


@st.composite
def any_jobs(draw: st.DrawFn, *, crowded: bool = False) -> Jobs:
    n = draw(st.integers(2 if crowded else 1, 24))
    priorities = draw(st.lists(priority, min_size=n, max_size=n))
    demands = draw(st.lists(demand, min_size=n, max_size=n))
    ids = draw(st.lists(st.integers(0, 2**62), min_size=n, max_size=n, unique=True))
    if crowded:
        return Jobs(priorities, demands, ids, draw(st.integers(1, n - 1)))
    total = sum(demands)
    m = draw(st.one_of(st.integers(1, 3 * n), st.integers(n, n + total), st.sampled_from([total, total + 1])))
    return Jobs(priorities, demands, ids, m)


def scarce_jobs() -> st.SearchStrategy[Jobs]:
    """Draw jobs with fewer jobs than PEs and more demand than PEs, so that volumes are rounded."""
    return any_jobs().filter(lambda jobs: len(jobs.ids) < jobs.m < sum(jobs.demands))


# --- examples --------------------------------------------------------------------------------


def test_the_example_of_the_paper() -> None:
    assert fair_volumes([1, 2, 3, 4], [7, 7, 7, 2], 7).tolist() == [1, 1, 3, 2]


def test_no_jobs_have_no_volumes() -> None:
    volumes = fair_volumes([], [], 5)
    assert volumes.dtype == np.int64
    assert volumes.size == 0


def test_one_job_gets_all_that_it_demands_or_all_there_is() -> None:
    assert fair_volumes([4.0], [2**40], 319_189_753_067).tolist() == [319_189_753_067]
    assert fair_volumes([4.0], [3], 5).tolist() == [3]


def test_enough_pes_meet_all_demands() -> None:
    assert fair_volumes([1, 100], [5, 3], 8).tolist() == [5, 3]
    assert fair_volumes([1, 100], [5, 3], 1000).tolist() == [5, 3]


def test_as_many_jobs_as_pes_get_one_each() -> None:
    assert fair_volumes([1, 9, 3], [7, 7, 7], 3).tolist() == [1, 1, 1]


def test_more_jobs_than_pes_run_by_priority() -> None:
    assert fair_volumes([1, 9, 3], [7, 7, 7], 2).tolist() == [0, 1, 1]


def test_more_jobs_than_pes_run_by_standing_if_given() -> None:
    assert fair_volumes([1, 9, 3], [7, 7, 7], 1, standing=[5.5, 2.0, 1.0]).tolist() == [1, 0, 0]


def test_a_tie_in_standing_falls_to_priority_then_demand() -> None:
    assert fair_volumes([1, 9, 3], [7, 7, 7], 1, standing=[5, 5, 5]).tolist() == [0, 1, 0]
    assert fair_volumes([3, 3, 3], [7, 8, 7], 1, standing=[5, 5, 5]).tolist() == [0, 1, 0]


def test_the_unit_left_over_goes_to_the_larger_demand_among_equals() -> None:
    assert fair_volumes([1, 1, 1], [10, 11, 10], 7).tolist() == [2, 3, 2]


def test_the_unit_left_over_goes_to_the_smaller_hash_among_twins() -> None:
    ids = [17, 4, 99]
    volumes = fair_volumes([1, 1, 1], [10, 10, 10], 7, job_ids=ids).tolist()
    assert volumes.index(3) == min(range(3), key=lambda j: splitmix64(ids[j]))


def test_a_share_that_is_exactly_an_integer_is_not_rounded_below_it() -> None:
    # 0.1 as a float is a bit more than a tenth: alpha_0 = m / (n * 0.1), share exactly m / n.
    for n in (3, 7, 10, 49, 1000):
        assert fair_volumes([0.1] * n, [2**40] * n, 6 * n).tolist() == [6] * n


def test_an_event_exactly_at_the_root_counts_as_met() -> None:
    half = 50
    priorities = [float(k) for k in range(1, half + 1)] + [1.0] * half
    demands = [2 * k for k in range(1, half + 1)] + [2**40] * half
    m = sum(demands[:half]) + 2 * half
    assert fair_volumes(priorities, demands, m).tolist() == demands[:half] + [2] * half


def test_on_a_plateau_of_roots_all_give_the_same_volumes() -> None:
    # Job 1 is full from alpha = 3 on, job 2 leaves its single PE not before alpha = 1000.
    assert fair_volumes([1.0, 0.001], [3, 9], 4).tolist() == [3, 1]


def test_a_root_at_which_the_others_keep_their_only_pe() -> None:
    assert fair_volumes([0.01, 0.1], [1, 3], 3).tolist() == [1, 2]


def test_priorities_eighteen_decades_apart() -> None:
    assert fair_volumes([1e-9, 1e9, 1.0], [2**40] * 3, 2**40).tolist() == [1, 2**40 - 1100, 1099]


@pytest.mark.parametrize(
    ("priorities", "demands", "m"),
    [
        ([0.0], [1], 1),
        ([-1.0], [1], 1),
        ([float("nan"), 1.0], [1, 1], 1),
        ([float("inf")], [1], 1),
        ([1.0], [0], 1),
        ([1.0], [1], 0),
        ([1.0, 2.0], [1], 3),
        ([[1.0]], [[1]], 3),
    ],
)
def test_impossible_input_is_refused(priorities: Any, demands: Any, m: int) -> None:
    with pytest.raises(ValueError, match=r"must be|outside"):
        fair_volumes(priorities, demands, m)


def test_twins_with_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="distinct"):
        fair_volumes([1, 1], [9, 9], 3, job_ids=[5, 5])


# --- properties ------------------------------------------------------------------------------


@settings(max_examples=400)
@given(any_jobs())
@example(Jobs([4.0], [2**40], [0], 319_189_753_067))
@example(Jobs([1.0, 1.0, 1e-9, 1.0, 1e9], [64, 2**37, 2**18, 2**24, 2**16], [0, 1, 2, 3, 4], 137_464_520_766))
def test_volumes_equal_the_exact_reference(jobs: Jobs) -> None:
    assert jobs.volumes() == reference(jobs)


@settings(max_examples=200)
@given(any_jobs().filter(lambda jobs: len(jobs.ids) <= jobs.m))
def test_c1_all_pes_are_used_or_all_demands_met_and_c2_within_bounds(jobs: Jobs) -> None:
    volumes = jobs.volumes()
    assert volumes == jobs.demands or sum(volumes) == jobs.m
    assert all(1 <= v <= d for v, d in zip(volumes, jobs.demands, strict=True))


@settings(max_examples=200)
@given(scarce_jobs())
def test_c3_one_alpha_rules_all_and_units_left_over_go_by_order(jobs: Jobs) -> None:
    alpha, volumes = jobs.root(), jobs.volumes()
    extras = [v - int(share) for v, share in zip(volumes, jobs.shares(alpha), strict=True)]
    assert set(extras) <= {0, 1}
    uncapped = [j for j in jobs.order() if alpha * Fraction(jobs.priorities[j]) < jobs.demands[j]]
    in_order = [extras[j] for j in uncapped]
    assert in_order == sorted(in_order, reverse=True)
    assert sum(in_order) == sum(extras)


@settings(max_examples=200)
@given(any_jobs(), st.randoms(use_true_random=False))
def test_permuted_jobs_get_the_permuted_volumes(jobs: Jobs, random: Any) -> None:
    order = list(range(len(jobs.ids)))
    random.shuffle(order)
    permuted = Jobs(
        [jobs.priorities[j] for j in order],
        [jobs.demands[j] for j in order],
        [jobs.ids[j] for j in order],
        jobs.m,
    )
    volumes = jobs.volumes()
    assert permuted.volumes() == [volumes[j] for j in order]


@settings(max_examples=100)
@given(any_jobs())
def test_with_one_more_pe_no_rounded_share_shrinks(jobs: Jobs) -> None:
    # Rounding may lower a single volume by one worker, but must not lower any share or sum.
    more = Jobs(jobs.priorities, jobs.demands, jobs.ids, jobs.m + 1)
    before, after = jobs.volumes(), more.volumes()
    assert all(b - a <= 1 for b, a in zip(before, after, strict=True))
    assert 0 <= sum(after) - sum(before) <= 1


@settings(max_examples=100)
@given(any_jobs(crowded=True), st.data())
def test_when_jobs_outnumber_pes_the_best_standing_run(jobs: Jobs, data: st.DataObject) -> None:
    n = len(jobs.ids)
    standing = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    volumes = fair_volumes(
        jobs.priorities, jobs.demands, jobs.m, job_ids=jobs.ids, standing=[float(s) for s in standing]
    ).tolist()
    best = sorted(jobs.order(), key=lambda j: -standing[j])[: jobs.m]
    assert volumes == [int(j in best) for j in range(n)]


# --- search for the root of the sum, and many jobs at once -------------------------------------


@settings(max_examples=100)
@given(scarce_jobs(), st.floats(-12, 12))
def test_the_exact_way_finds_the_root_from_any_guess(jobs: Jobs, decades: float) -> None:
    most = jobs.m - len(jobs.ids) + 1
    jobs = Jobs(jobs.priorities, [min(demand, most) for demand in jobs.demands], jobs.ids, jobs.m)
    assume(sum(jobs.demands) > jobs.m)
    p, d = np.array(jobs.priorities), np.array(jobs.demands, dtype=np.float64)
    root = volumes_module.exact_root(p, d, jobs.m, float(jobs.root()) * 10.0**decades)
    assert jobs.used(root) == jobs.m


def bulk(kind: str, n: int, m: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(n)
    demands = rng.integers(1, max(2, 4 * m // n), n)
    if kind == "uniform":
        return rng.random(n) + 1e-3, demands
    if kind == "decades":
        return 10.0 ** rng.uniform(-9, 9, n), demands
    if kind == "classes":
        return rng.choice([0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0], n), np.full(n, m)
    if kind == "equal":
        return np.ones(n), demands
    if kind == "clustered":
        whole = rng.integers(1, 50, n)
        return whole.astype(np.float64), 2 * whole
    return rng.pareto(1.0, n) + 0.1, (2.0 ** rng.uniform(0, 23, n)).astype(np.int64)


@pytest.mark.parametrize("kind", ["uniform", "decades", "classes", "equal", "clustered", "pareto"])
@pytest.mark.parametrize("n", [64, 257])
def test_bulk_equals_the_exact_reference(kind: str, n: int) -> None:
    for m in (n + 1, 2 * n, 4 * n, 2**23):
        priorities, demands = bulk(kind, n, m)
        jobs = Jobs(priorities.tolist(), demands.tolist(), list(range(n)), m)
        assert jobs.volumes() == reference(jobs)


@pytest.mark.parametrize("kind", ["uniform", "decades", "classes", "equal", "clustered", "pareto"])
def test_certified_floats_agree_with_exact_integers_for_many_jobs(kind: str) -> None:
    n, m = 20_000, 2**17
    priorities, demands = bulk(kind, n, m)
    demands = demands + 5
    d = np.minimum(demands, m - n + 1).astype(np.float64)
    quick = volumes_module.rounded_down(priorities, d, m)
    exact = volumes_module.exactly_rounded_down(
        priorities, d, m, volumes_module.approximate_root(priorities, d, m)
    )
    assert np.array_equal(quick, exact)
    assert fair_volumes(priorities, demands, m).sum() == m


@settings(max_examples=100)
@given(st.lists(st.floats(1e-100, 1e100), min_size=1, max_size=30))
def test_the_exact_sum_has_no_rounding(values: list[float]) -> None:
    assert volumes_module.exact_sum(np.array(values)) == sum(map(Fraction, values), Fraction(0))


@settings(deadline=None)
@given(st.data(), st.integers(2, 3000), st.sampled_from((1.0, 0.1, 1e-90, 1e90)))
def test_volumes_of_equal_priorities_are_the_same_without_numpy(
    data: st.DataObject, m: int, priority: float
) -> None:
    largest = data.draw(st.sampled_from((1, 2, 8, m, 1 << 40)))
    demands = data.draw(st.lists(st.integers(1, largest), min_size=1, max_size=min(m - 1, 24)))
    ids = data.draw(
        st.lists(st.integers(0, 1 << 62), min_size=len(demands), max_size=len(demands), unique=True)
    )
    jobs = Jobs([priority] * len(ids), demands, ids, m)
    events = [JobEvent(job, 1, demand, priority, 0.0) for job, demand in zip(ids, demands, strict=True)]

    assert list(equal_volumes(events, m).items()) == list(zip(ids, jobs.volumes(), strict=True))


def test_a_few_jobs_of_equal_priority_need_no_numpy() -> None:
    program = (
        "import sys; from mallob_py.protocol.balancing import volumes_of;"
        "from mallob_py.protocol.messages import JobEvent;"
        "jobs = {job: JobEvent(job, 1, 4, 2.0, 0.0) for job in (1, 2, 3)};"
        "print(volumes_of(jobs, 9), 'numpy' in sys.modules)"
    )

    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert told.stdout == "{1: 3, 2: 3, 3: 3} False\n"
