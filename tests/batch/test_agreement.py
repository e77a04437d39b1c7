from collections.abc import Sequence
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_simulator import check
from workloads import malleable, rigid, rigid_workloads

from mallob_py.batch.job import Workload
from mallob_py.batch.policies.agreement import Agreement, RigidEasy
from mallob_py.batch.policies.backfilling import Easy
from mallob_py.batch.policy import Action, View
from mallob_py.batch.simulator import EventOrder, simulate

VARIANTS = list(product(("min", "pref", "keep", "average"), ("agreed", "steal", "pool")))


@st.composite
def malleable_workloads(draw: st.DrawFn) -> Workload:
    """Draw malleable workloads on 8 nodes, in whole seconds, so that many events are simultaneous."""
    jobs = []
    for _ in range(draw(st.integers(1, 15))):
        low, pref, high = sorted(draw(st.tuples(*[st.integers(1, 8)] * 3)))
        jobs.append((draw(st.integers(0, 200)), low, pref, high, draw(st.integers(1, 300))))
    return malleable(*sorted(jobs), nodes=8, iterations=draw(st.integers(1, 6)))


@given(malleable_workloads(), st.sampled_from(EventOrder))
@pytest.mark.parametrize(("size", "nodes"), VARIANTS)
@pytest.mark.parametrize("quirks", ["", "pecs23"])
def test_every_variant_lets_all_jobs_end_and_shares_no_node(
    size: str, nodes: str, quirks: str, workload: Workload, order: EventOrder
) -> None:
    check(simulate(workload, Agreement(size, nodes, quirks), order=order))


@pytest.mark.parametrize("quirks", ["", "pecs23"])
def test_no_tick_follows_a_decision_that_changes_nothing(quirks: str) -> None:
    class Counted(Agreement):
        decisions = 0

        def decide(self, view: View) -> Sequence[Action]:
            self.decisions += 1
            return super().decide(view)

    policy = Counted(quirks=quirks)
    simulate(malleable((0, 6, 6, 6, 30_000), (10, 4, 4, 4, 30_000), (100_000, 1, 2, 8, 60), nodes=8), policy)
    assert policy.decisions < 20


@given(malleable_workloads())
def test_who_keeps_jobs_takes_none_below_its_preferred_number(workload: Workload) -> None:
    schedule = simulate(workload, Agreement("keep"))
    for former, latter in pairwise(sorted(schedule.all_pieces(), key=lambda one: (one.job, one.start_s))):
        if former.job == latter.job:
            assert len(latter.nodes) >= min(len(former.nodes), workload.jobs[latter.job].nodes)


def test_a_job_that_waits_gets_nodes_below_others_preferred_number_only_where_they_are_not_kept() -> None:
    workload = malleable((0, 1, 4, 4, 100), (13, 2, 2, 2, 10), nodes=4, iterations=10)
    starts_s = {
        size: simulate(workload, Agreement(size), order=EventOrder.ELASTISIM).starts_s[1]
        for size in ("pref", "keep")
    }
    assert starts_s == {"pref": 40, "keep": 100}


@given(rigid_workloads())
def test_without_malleable_jobs_it_is_easy(workload: Workload) -> None:
    expected = simulate(workload, Easy()).starts_s
    assert simulate(workload, Agreement()).starts_s == expected
    assert simulate(workload, RigidEasy()).starts_s == expected


def test_a_running_job_gives_nodes_to_one_that_waits_at_its_next_resize_point() -> None:
    workload = malleable((0, 1, 4, 4, 100), (3, 2, 2, 2, 10), nodes=4, iterations=10)
    schedule = simulate(workload, Agreement(), order=EventOrder.ELASTISIM)
    # Job 0 begins on one node and grows at its first resize point (40 s), while job 1 waits.
    assert list(schedule.starts_s) == [0, 3]
    workload = malleable((0, 1, 4, 4, 100), (13, 2, 2, 4, 10), nodes=4, iterations=10)
    schedule = simulate(workload, Agreement("pref"), order=EventOrder.ELASTISIM)
    assert [(piece.job, piece.end_s, len(piece.nodes)) for piece in schedule.pieces][:1] == [(0, 20, 4)]
    # The policy sees the freed nodes at the next tick.
    assert list(schedule.starts_s) == [0, 40]


@pytest.mark.parametrize("size", ["min", "pref", "keep", "average"])
def test_who_overtakes_for_long_uses_up_the_nodes_that_the_first_does_not_need(size: str) -> None:
    # At 100 s, job 1 can start, and 2 further nodes are free: enough for one of the jobs 2 and 3.
    workload = rigid((0, 4, 100), (1, 6, 10), (1, 2, 1000), (1, 2, 1000), nodes=8)
    assert simulate(workload, Agreement(size)).starts_s == [0, 100, 1, 110]


def test_with_the_quirk_nobody_overtakes_and_one_job_starts_at_a_time() -> None:
    workload = rigid((0, 2, 200), (0, 3, 10), (0, 1, 10), (0, 1, 10), nodes=4)
    assert simulate(workload, RigidEasy("pecs23")).starts_s == [0, 200, 210, 220]
    assert simulate(workload, RigidEasy()).starts_s == [0, 200, 0, 0]


def test_a_pool_lets_any_free_nodes_fulfil_an_agreement() -> None:
    # Job 2 is to get nodes of job 0, whose iteration ends at 100 s; job 1 ends earlier.
    jobs = ((0, 2, 6, 6, 300), (0, 2, 2, 2, 50), (10, 4, 4, 4, 10))
    workload = malleable(*jobs, nodes=8, iterations=3)
    by_nodes = {
        nodes: simulate(workload, Agreement("pref", nodes), order=EventOrder.ELASTISIM).starts_s[2]
        for nodes in ("agreed", "steal", "pool")
    }
    assert by_nodes["pool"] <= by_nodes["steal"] <= by_nodes["agreed"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": "max"}, "size is 'max', not one of min, pref, keep, average"),
        ({"nodes": "any"}, "nodes is 'any', not one of agreed, steal, pool"),
        ({"quirks": "2023"}, "quirks is '2023', not pecs23"),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Agreement(**settings)
