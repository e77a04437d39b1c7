"""The CP policy compared, on small cases, with a model that has an interval per job and node."""

import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from workloads import SMALL_CLUSTER, rigid, sharing, sharing_workloads

from mallob_py.batch.cluster import Room
from mallob_py.batch.job import Job, Workload
from mallob_py.batch.policies.constraint import Cp, cost, easy_plan, packed_plan
from mallob_py.batch.policy import PolicyError
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.eurora import expected_wait_s

cp_model = pytest.importorskip("ortools.sat.python.cp_model")
_CAPACITY = np.array(SMALL_CLUSTER.capacities)


def _least_cost(jobs: list[Job], now: int) -> float:
    """Return the least cost of all plans on the empty small cluster."""
    model = cp_model.CpModel()
    horizon = now + sum(int(job.estimate_s) for job in jobs)
    starts = []
    shares: list[list[tuple[object, object, Job]]] = [[] for _ in _CAPACITY]
    for job in jobs:
        start = model.new_int_var(now, horizon, "")
        starts.append(start)
        counts = []
        for node, capacity in enumerate(_CAPACITY):
            demand = job.demand or tuple(capacity)
            most = min(int(has // need) for has, need in zip(capacity, demand, strict=True) if need)
            count, here = model.new_int_var(0, min(most, job.nodes), ""), model.new_bool_var("")
            model.add(count >= 1).only_enforce_if(here)
            model.add(count == 0).only_enforce_if(~here)
            interval = model.new_optional_fixed_size_interval_var(start, int(job.estimate_s), here, "")
            shares[node].append((interval, count, job))
            counts.append(count)
        model.add(sum(counts) == job.nodes)
    for capacity, on_it in zip(_CAPACITY, shares, strict=True):
        for resource, amount in enumerate(capacity):
            needs = [int((job.demand or tuple(capacity))[resource]) * count for _, count, job in on_it]
            model.add_cumulative([interval for interval, _, _ in on_it], needs, int(amount))
    model.minimize(sum(starts))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return sum(
        (solver.value(start) - job.submit_s) / expected_wait_s(job.queue)
        for start, job in zip(starts, jobs, strict=True)
    )


@settings(max_examples=40)
@given(workload=sharing_workloads(jobs=5))
def test_a_plan_is_between_the_best_there_is_and_that_of_easy(workload: Workload) -> None:
    jobs, room = list(workload.jobs), Room(_CAPACITY)
    plan = Cp().plan(20.0, jobs, room, [])
    assert sorted(one.job.id for one in plan) == [job.id for job in jobs]
    assert cost(plan) <= cost(easy_plan(20.0, jobs, room, []))
    assert cost(plan) >= _least_cost(jobs, 20) - 1e-9
    for now in (one.start_s for one in plan):
        then = Room(_CAPACITY)
        for one in plan:
            if one.start_s <= now < one.start_s + one.job.estimate_s:
                assert then.has(one.nodes, one.job.demand)
                then.take(one.nodes, one.job.demand)


def test_a_plan_is_the_best_there_is_where_easy_is_not() -> None:
    # A long job for the whole machine came first; starting the short jobs before it costs less.
    jobs = list(
        sharing(
            (0, 4, (4.0, 0.0), 100), (0, 3, (4.0, 0.0), 10), (0, 3, (4.0, 0.0), 20), (0, 1, (1.0, 2.0), 50)
        ).jobs
    )
    room = Room(_CAPACITY)
    best = _least_cost(jobs, 0)
    assert cost(Cp().plan(0.0, jobs, room, [])) == pytest.approx(best)
    assert cost(easy_plan(0.0, jobs, room, [])) > best


def test_easy_s_plan_is_what_easy_does() -> None:
    # Estimates are true, all jobs come at once, and a running job holds two nodes.
    jobs = list(sharing((0, 3, (4.0, 0.0), 5), (0, 2, (2.0, 0.0), 7), (0, 8, (1.0, 0.0), 30)).jobs)
    room = Room(_CAPACITY)
    room.take([0, 1], (4.0, 0.0))
    plan = easy_plan(0.0, jobs, room, [(10.0, [0, 1], (4.0, 0.0))])
    assert {one.job.id: one.start_s for one in plan} == {0: 10.0, 1: 0.0, 2: 15.0}


def test_a_packed_plan_puts_jobs_into_gaps() -> None:
    jobs = list(sharing((0, 3, (4.0, 0.0), 5), (0, 4, (4.0, 0.0), 7), (0, 1, (4.0, 0.0), 5)).jobs)
    plan = packed_plan(0.0, jobs, Room(_CAPACITY), [])
    assert [one.start_s for one in plan] == [0.0, 5.0, 0.0]


@settings(max_examples=25)
@given(workload=sharing_workloads())
def test_everybody_runs_also_beyond_estimates_and_the_same_each_time(workload: Workload) -> None:
    late = Workload(
        [*workload.jobs],
        [type(truth)(truth.run_s + 20.0 * (place % 3 == 0)) for place, truth in enumerate(workload.truths)],
        workload.nodes,
        cluster=workload.cluster,
    )
    schedule = simulate(late, Cp())
    assert all(start >= job.submit_s for job, start in zip(late.jobs, schedule.starts_s, strict=True))
    assert simulate(late, Cp()).starts_s == schedule.starts_s


@pytest.mark.parametrize(("learn", "start_s"), [(True, 60.0), (False, 540.0)])
def test_who_has_learned_how_long_jobs_run_keeps_a_node_for_one_that_needs_two(
    learn: bool, start_s: float
) -> None:
    gpus, cores = (1.0, 2.0), (1.0, 0.0)
    teachers = [(0, 1, cores, 10, 1000)] * 8
    running = [(20, 1, gpus, 20, 1000), (20, 1, gpus, 40, 1000)]
    workload = sharing(*teachers, *running, (21, 2, gpus, 10, 10), (22, 1, gpus, 500, 1000))
    jobs = [
        msgspec.structs.replace(job, queue="reservation" if job.nodes == 2 else "longpar")
        for job in workload.jobs
    ]
    schedule = simulate(msgspec.structs.replace(workload, jobs=jobs), Cp(learn=learn))
    assert schedule.starts_s[-2] == start_s


def test_without_or_tools_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    workload = sharing((0, 1, (4.0, 0.0), 9), (0, 4, (4.0, 0.0), 9))
    with pytest.raises(PolicyError, match=r'cp needs OR-Tools, .*: pip install "mallob-py\[cp\]"'):
        simulate(workload, Cp())


def test_cp_says_which_jobs_it_needs() -> None:
    with pytest.raises(PolicyError, match="cp needs a workload whose jobs share nodes"):
        simulate(rigid((0, 1, 1), nodes=2), Cp())


def test_jobs_that_are_not_planned_for_start_if_they_are_not_in_the_way() -> None:
    # A running job holds two nodes; the planned job needs all nodes at second 10.
    workload = sharing(
        (0, 2, (4.0, 0.0), 10), (1, 4, (4.0, 0.0), 1), (1, 2, (4.0, 0.0), 9), (1, 2, (4.0, 0.0), 30)
    )
    assert simulate(workload, Cp(depth=1)).starts_s == [0.0, 10.0, 1.0, 11.0]


def test_settings_are_above_zero() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Cp(limit_s=0.0)
