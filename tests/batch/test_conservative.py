"""Conservative backfilling compared with a slow reference, and its promises."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from workloads import rigid, rigid_workloads

from mallob_py.batch.job import Job, Truth, Workload
from mallob_py.batch.policies.conservative import Conservative
from mallob_py.batch.policy import Action, Start, View
from mallob_py.batch.simulator import EventOrder, simulate


class SlowConservative:
    """Conservative backfilling by its definition, second by second: times are integers below the horizon."""

    name = "slow"
    wants_all_arrivals = True
    HORIZON = 1200

    def begin(self, nodes: int) -> None:
        self._free = [nodes] * self.HORIZON
        self._places: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def decide(self, view: View) -> list[Action]:
        now = int(view.now_s)
        for gone in view.departed:
            self._take(now, self._ends.pop(gone.job.id), -gone.job.nodes)
        new = len(view.queue) - view.arrived
        for job in view.queue[:new] if view.departed else ():
            self._take(self._places[job.id], self._places[job.id] + int(job.estimate_s), -job.nodes)
            self._place(job, now)
        for job in view.queue[new:]:
            self._place(job, now)
        free, actions = view.free, list[Action]()
        for job in view.queue:
            if self._places[job.id] <= now and job.nodes <= free:
                free -= job.nodes
                actions.append(Start(job.id, job.nodes))
                self._ends[job.id] = self._places.pop(job.id) + int(job.estimate_s)
        return actions

    def _place(self, job: Job, now: int) -> None:
        place = next(
            t for t in range(now, self.HORIZON) if min(self._free[t : t + int(job.estimate_s)]) >= job.nodes
        )
        self._places[job.id] = place
        self._take(place, place + int(job.estimate_s), job.nodes)

    def _take(self, begin: int, end: int, nodes: int) -> None:
        for t in range(begin, end):
            self._free[t] -= nodes


@pytest.fixture(scope="module")
def not_compiled() -> Iterator[Any]:
    """Yield the class `Conservative` as on hosts without numba."""
    names = ["mallob_py.batch.policies.profile", "mallob_py.batch.policies.conservative"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numba", None)
        for name in names:
            patch.delitem(sys.modules, name)
        yield importlib.import_module(names[1]).Conservative


@given(rigid_workloads())
@pytest.mark.parametrize("order", EventOrder)
def test_conservative_is_what_its_definition_says(order: EventOrder, workload: Workload) -> None:
    quick = simulate(workload, Conservative(), order=order)
    assert quick.starts_s == simulate(workload, SlowConservative(), order=order).starts_s


@given(rigid_workloads())
def test_without_numba_every_start_is_the_same(not_compiled: Any, workload: Workload) -> None:
    assert not_compiled is not Conservative
    assert simulate(workload, not_compiled()).starts_s == simulate(workload, Conservative()).starts_s


def test_a_profile_and_a_queue_have_room_for_all() -> None:
    # More waiting jobs and more steps than the rows have room for at first.
    jobs = [(0, 4, 1000), *((1, 1 + one % 3, 1 + one % 7) for one in range(3000)), (2, 4, 1)]
    starts = simulate(rigid(*jobs, nodes=4), Conservative()).starts_s
    assert min(starts[1:]) == 1000
    assert len(set(starts)) > 1024
    assert starts[-1] == max(starts)


@given(rigid_workloads())
def test_nobody_starts_later_than_was_promised_at_the_arrival(workload: Workload) -> None:
    schedule = simulate(workload, Conservative())
    assert set(schedule.promises) == {job.id for job in workload.jobs}
    assert all(schedule.starts_s[job] <= promised for job, promised in schedule.promises.items())


def test_an_early_end_moves_up_those_who_came_first() -> None:
    workload = rigid((0, 4, 2, 10), (1, 3, 5), (2, 1, 3), (2, 2, 1), nodes=4)
    assert simulate(workload, Conservative()).starts_s == [0, 2, 2, 7]


def test_a_job_that_exceeds_its_estimate_delays_others_but_loses_nobody() -> None:
    jobs = [Job(0, 0.0, 3, 5.0, number=1), Job(1, 1.0, 4, 5.0, number=2), Job(2, 2.0, 1, 4.0, number=3)]
    workload = Workload(jobs, [Truth(200.0), Truth(5.0), Truth(4.0)], 4)
    schedule = simulate(workload, Conservative())
    assert schedule.starts_s[0] == 0
    assert schedule.starts_s[1] >= 200
    assert schedule.starts_s[2] <= 200
