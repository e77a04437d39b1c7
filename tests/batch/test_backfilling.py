"""EASY compared with a slow reference that recomputes everything at each decision; EASY's promise to the
head of the queue.
"""

import math

import pytest
from hypothesis import given
from workloads import rigid, rigid_workloads

from mallob_py.batch.job import Workload
from mallob_py.batch.policies.backfilling import Backfilling, Easy, Fcfs
from mallob_py.batch.policy import Action, Start, View
from mallob_py.batch.simulator import EventOrder, simulate


class SlowEasy:
    """EASY by its definition: jobs are considered one by one, and everything is recomputed for each job."""

    name = "slow"
    wants_all_arrivals = False

    def __init__(self, depth: float = math.inf, extra: bool = True) -> None:
        self._depth = depth
        self._extra = extra

    def begin(self, nodes: int) -> None:
        pass

    def decide(self, view: View) -> list[Action]:
        now, free, waiting = view.now_s, view.free, list(view.queue)
        ends = [(end_s, running.size) for end_s, _, running in view.ends]
        actions: list[Action] = []
        looked_at = 1
        while waiting and waiting[0].nodes <= free:
            job = waiting.pop(0)
            free -= job.nodes
            ends.append((now + job.estimate_s, job.nodes))
            actions.append(Start(job.id, job.nodes))
        for job in waiting[1:]:
            if looked_at >= self._depth:
                break
            looked_at += 1
            shadow_s = min(t for t, _ in ends if free + sum(n for e, n in ends if e <= t) >= waiting[0].nodes)
            extra = free + sum(n for e, n in ends if e <= shadow_s) - waiting[0].nodes
            in_time = now + job.estimate_s <= shadow_s
            if job.nodes <= free and (in_time or (self._extra and job.nodes <= extra)):
                free -= job.nodes
                ends.append((now + job.estimate_s, job.nodes))
                actions.append(Start(job.id, job.nodes))
        return actions


@given(rigid_workloads())
@pytest.mark.parametrize("order", EventOrder)
@pytest.mark.parametrize(("depth", "extra"), [(0, True), (0, False), (1, True), (4, True)])
def test_easy_is_what_its_definition_says(
    depth: int, extra: bool, order: EventOrder, workload: Workload
) -> None:
    quick = simulate(workload, Easy(depth, extra), order=order)
    slow = simulate(workload, SlowEasy(depth or math.inf, extra), order=order)
    assert quick.starts_s == slow.starts_s


def test_fcfs_lets_nobody_overtake() -> None:
    schedule = simulate(rigid((0, 2, 10), (1, 4, 5), (2, 1, 1), nodes=4), Fcfs())
    assert schedule.starts_s == [0, 10, 15]


def test_easy_lets_a_job_overtake_that_ends_before_the_head_can_start() -> None:
    workload = rigid((0, 2, 10), (1, 4, 5), (2, 1, 8), (2, 1, 9), nodes=4)
    assert simulate(workload, Easy()).starts_s == [0, 10, 2, 15]


def test_easy_lets_a_longer_job_use_what_the_head_leaves() -> None:
    workload = rigid((0, 2, 10), (1, 3, 5), (2, 1, 99), (2, 1, 99), nodes=4)
    assert simulate(workload, Easy()).starts_s == [0, 10, 2, 15]
    assert simulate(workload, Easy(extra=False)).starts_s == [0, 10, 10, 15]


def test_backfilling_starts_whatever_fits() -> None:
    workload = rigid((0, 2, 10), (1, 4, 5), (2, 1, 99), nodes=4)
    assert simulate(workload, Backfilling()).starts_s == [0, 101, 2]


def test_with_a_depth_others_come_into_it_when_those_before_them_have_started() -> None:
    # At second 2, one of the first four jobs starts. The submission at second 3 makes the policy consider
    # the fifth job.
    wide = [(0, 1, 4, 5), (0, 8, 1), (0, 8, 1)]
    workload = rigid(*wide, (1, 1, 1, 5), (2, 1, 2), (2, 1, 2), (3, 1, 1), nodes=8)
    quick, slow = simulate(workload, Easy(4)), simulate(workload, SlowEasy(4))
    assert quick.starts_s == slow.starts_s
