"""Nodes with several resources, shared by jobs: what the simulator places, shows and refuses."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from workloads import SMALL_CLUSTER, rigid, sharing, sharing_workloads

from mallob_py.batch.job import Workload
from mallob_py.batch.metrics import metrics_of
from mallob_py.batch.policies.pbs import PbsFifo, PbsWalltime
from mallob_py.batch.policy import Action, Policy, PolicyError, Start, View
from mallob_py.batch.simulator import Schedule, simulate


class _Scripted:
    """A policy that starts every job at once as scripted, and records the free room of the nodes."""

    name = "scripted"
    wants_all_arrivals = True

    def __init__(self, *places: int | tuple[int, ...]) -> None:
        self._places = places
        self.left: list[list[list[float]]] = []

    def begin(self, nodes: int) -> None:
        self.left.clear()

    def decide(self, view: View) -> Sequence[Action]:
        assert view.room is not None
        self.left.append(view.room.left.tolist())
        return [Start(job.id, self._places[job.id]) for job in view.queue]


def test_units_of_several_jobs_share_a_node_and_the_view_shows_what_is_left() -> None:
    policy = _Scripted((0, 0), (0,), (2,))
    schedule = simulate(sharing((0, 2, (1.0, 0.0), 10), (1, 1, (2.0, 0.0), 5), (2, 1, (1.0, 2.0), 9)), policy)
    assert schedule.allocations == [[0, 0], [0], [2]]
    full = [list(capacity) for capacity in SMALL_CLUSTER.capacities]
    assert policy.left[0] == full
    assert policy.left[1] == [[2.0, 0.0], *full[1:]]
    assert policy.left[2] == [[0.0, 0.0], *full[1:]]
    # At second 6, the second job ends; the last decision sees all room free again.
    assert policy.left[3] == [[2.0, 0.0], full[1], [3.0, 0.0], full[3]]
    assert policy.left[-1] == full


def test_a_number_of_units_is_placed_where_the_least_is_left() -> None:
    schedule = simulate(sharing((0, 1, (2.0, 0.0), 9), (1, 6, (2.0, 0.0), 9)), _Scripted((1,), 6))
    assert schedule.allocations[1] == [1, 0, 0, 2, 2, 3]


def test_a_job_without_a_demand_has_its_nodes_for_itself() -> None:
    with pytest.raises(PolicyError, match=r"job 2 is to get nodes without room for it: \[0\] \(at 1 s\)"):
        simulate(sharing((0, 1, (1.0, 0.0), 9), (1, 1, (), 9)), _Scripted((0,), (0,)))
    with pytest.raises(PolicyError, match=r"job 2 is to get nodes without room"):
        simulate(sharing((0, 1, (), 9), (1, 1, (1.0, 0.0), 9)), _Scripted((0,), (0,)))


@pytest.mark.parametrize("places", [(0, 0, 0), (0, 7, 1), (0, -1, 1)])
def test_nodes_without_room_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(PolicyError, match="scripted: job 1 is to get nodes without room for it"):
        simulate(sharing((0, 3, (2.0, 0.0), 9)), _Scripted(places))


def test_jobs_that_can_never_run_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="job 1 needs 3 units, the machine has room for 2"):
        simulate(sharing((0, 3, (1.0, 2.0), 9)), PbsFifo())
    with pytest.raises(ValueError, match="the demand of job 1 must be 2 amounts"):
        simulate(sharing((0, 3, (1.0, 2.0, 0.0), 9)), PbsFifo())
    with pytest.raises(ValueError, match="the cluster has 4 nodes, not 5"):
        simulate(sharing((0, 1, (1.0, 2.0), 9)), PbsFifo(), 5)


def test_pbs_says_which_jobs_it_needs() -> None:
    with pytest.raises(PolicyError, match="pbsfifo needs a workload whose jobs share nodes"):
        simulate(rigid((0, 1, 1), nodes=2), PbsFifo())


def test_a_job_overtakes_if_it_leaves_the_first_its_room() -> None:
    # Job 1 needs both nodes with GPUs; job 2 may run long beside it, job 3 may not.
    workload = sharing(
        (0, 1, (1.0, 2.0), 10), (1, 2, (3.0, 2.0), 10), (2, 2, (1.0, 0.0), 50), (3, 1, (1.0, 1.0), 50)
    )
    assert simulate(workload, PbsFifo()).starts_s == [0.0, 10.0, 2.0, 20.0]


def test_a_short_job_overtakes_where_a_long_one_may_not() -> None:
    workload = sharing((0, 4, (4.0, 0.0), 10), (1, 3, (4.0, 0.0), 5), (2, 4, (4.0, 0.0), 4))
    assert simulate(workload, PbsFifo()).starts_s == [0.0, 10.0, 15.0]
    assert simulate(workload, PbsWalltime()).starts_s == [0.0, 14.0, 10.0]


def test_only_so_many_waiting_jobs_are_looked_at() -> None:
    jobs = [(0, 3, (4.0, 0.0), 10), (1, 4, (4.0, 0.0), 9), (2, 4, (4.0, 0.0), 9), (3, 1, (4.0, 0.0), 5)]
    assert simulate(sharing(*jobs), PbsFifo(depth=2)).starts_s[3] == 28.0
    assert simulate(sharing(*jobs), PbsFifo(depth=3)).starts_s[3] == 3.0


def test_utilisation_counts_the_first_resource() -> None:
    schedule = simulate(sharing((0, 2, (2.0, 0.0), 10), (0, 1, (), 10)), PbsFifo())
    assert metrics_of(schedule).utilisation == pytest.approx((2 * 2.0 + 4.0) / 16.0)


def _check_capacity(workload: Workload, schedule: Schedule) -> None:
    """Check that, at every start, the running jobs do not need more than the cluster has."""
    capacity = np.array(SMALL_CLUSTER.capacities)
    for now in schedule.starts_s:
        left = capacity.copy()
        for job, start, end, nodes in zip(
            workload.jobs, schedule.starts_s, schedule.ends_s, schedule.allocations, strict=True
        ):
            if start <= now < end:
                for node in nodes:
                    left[node] -= job.demand or capacity[node]
        assert (left >= 0.0).all()


@given(workload=sharing_workloads())
@pytest.mark.parametrize(
    "policy", [PbsFifo(), PbsFifo(depth=1), PbsWalltime()], ids=["fifo", "depth 1", "walltime"]
)
def test_everybody_runs_within_the_capacities(policy: Policy, workload: Workload) -> None:
    schedule = simulate(workload, policy)
    _check_capacity(workload, schedule)
    for job, truth, start, end in zip(
        workload.jobs, workload.truths, schedule.starts_s, schedule.ends_s, strict=True
    ):
        assert start >= job.submit_s
        assert end == start + truth.run_s
