import msgspec
import pytest
from workloads import malleable, rigid

from mallob_py.batch.job import Workload
from mallob_py.batch.metrics import apart_of, metrics_of
from mallob_py.batch.policies.backfilling import Backfilling, Fcfs
from mallob_py.batch.policy import Action, Resize, Start, View, Wake
from mallob_py.batch.simulator import simulate


def test_the_means_are_those_of_a_schedule_made_by_hand() -> None:
    metrics = metrics_of(simulate(rigid((0, 4, 10), (2, 4, 5), (2, 2, 20), nodes=4), Fcfs()))
    assert metrics.makespan_s == 35
    assert (metrics.wait_s, metrics.wait_max_s) == (pytest.approx((0 + 8 + 13) / 3), 13)
    assert metrics.turnaround_s == pytest.approx((10 + 13 + 33) / 3)
    assert metrics.slowdown == pytest.approx((1 + 13 / 5 + 33 / 20) / 3)
    assert metrics.bounded_slowdown == pytest.approx((1 + 13 / 10 + 33 / 20) / 3)
    # No job was resized, so both run times are equal.
    assert metrics.stretched_slowdown == pytest.approx(metrics.slowdown)
    assert metrics.stretched_bounded_slowdown == pytest.approx(metrics.bounded_slowdown)
    assert metrics.utilisation == pytest.approx((40 + 20 + 40) / (4 * 35))


class OnOneNode:
    """A policy that runs the first job of the queue on one node."""

    name = "one"
    wants_all_arrivals = False

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> list[Action]:
        return [Start(view.queue[0].id, 1)] if view.queue and view.free else []


def test_a_policy_that_slows_a_job_down_does_not_gain_slowdown_by_it() -> None:
    # Each job would take 40 s on two nodes; it takes 80 s on one, and the second waits for the first.
    jobs = ((0, 1, 2, 2, 40), (0, 1, 2, 2, 40))
    metrics = metrics_of(simulate(malleable(*jobs, nodes=1), OnOneNode()))
    assert metrics.slowdown == metrics.bounded_slowdown == pytest.approx((80 + 160) / 2 / 40)
    assert metrics.stretched_slowdown == pytest.approx((1 + 2) / 2)
    assert metrics.stretched_bounded_slowdown == pytest.approx((1 + 2) / 2)


def test_bounded_slowdowns_take_either_run_time_as_ten_seconds_at_least() -> None:
    # A job of 4 s on two nodes takes 8 s on one.
    metrics = metrics_of(simulate(malleable((0, 1, 2, 2, 4), (0, 1, 2, 2, 4), nodes=1), OnOneNode()))
    assert metrics.slowdown == pytest.approx((8 + 16) / 2 / 4)
    assert metrics.bounded_slowdown == metrics.stretched_bounded_slowdown == pytest.approx((1 + 1.6) / 2)


def test_utilisation_counts_each_piece_of_a_resized_job_with_its_own_nodes() -> None:
    class Grow:
        name = "grow"
        wants_all_arrivals = False

        def begin(self, nodes: int) -> None:
            pass

        def decide(self, view: View) -> list[Action]:
            return [Start(0, 2), Wake(6.0)] if view.queue else [Resize(0, 4)] if view.now_s == 6 else []

    metrics = metrics_of(simulate(malleable((0, 1, 2, 4, 10), nodes=4), Grow()))
    assert (metrics.makespan_s, metrics.resizes) == (8, 1)
    assert metrics.utilisation == pytest.approx((6 * 2 + 2 * 4) / (8 * 4))


def test_without_jobs_there_are_no_means() -> None:
    with pytest.raises(ValueError, match="no jobs"):
        metrics_of(simulate(Workload((), (), 4), Backfilling()))


class GrowsThenShrinks:
    """A policy that gives a job one node, two nodes after 10 s, and one node again after 20 s."""

    name = "grows"
    wants_all_arrivals = False

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> list[Action]:
        if view.queue:
            return [*(Start(job.id, job.low) for job in view.queue), Wake(10.0)]
        if view.now_s in (10.0, 20.0):
            return [Resize(0, 2 if view.now_s == 10.0 else 1), *([Wake(20.0)] if view.now_s == 10.0 else [])]
        return []


def test_malleable_jobs_stand_apart_from_others_with_the_orders_that_they_were_given() -> None:
    one, other = malleable((0, 1, 1, 2, 50), nodes=3), rigid((0, 1, 15), nodes=3)
    jobs = [one.jobs[0], msgspec.structs.replace(other.jobs[0], id=1)]
    apart = apart_of(simulate(Workload(jobs, [*one.truths, *other.truths], 3), GrowsThenShrinks()))
    # 10 s on one node, 10 s on two, and the last 20 s of work on one.
    assert (apart.malleable_s, apart.others_s) == (40.0, 15.0)
    assert (apart.shrinks, apart.grows) == (1.0, 1.0)
    rigid_only = apart_of(simulate(other, Fcfs()))
    assert (rigid_only.malleable_s, rigid_only.shrinks) == (None, 0.0)
