"""Constraint programming plans all waiting jobs at once, on nodes that jobs share.

Source: Bridi et al., "A CP Scheduler for High-Performance Computers" (2016). Its scheduler minimises the sum
of waiting time/expected waiting time over the queue; running jobs stay where they are, only jobs planned for
now start, every event causes a new plan. Its model has an interval per job, unit and node, which is too large
to be solved within a second. So this policy plans in two stages:

1. OR-Tools' CP-SAT plans starts on the machine as a whole: one cumulative constraint for each resource. If
   only some nodes have a resource, each resource gets one more constraint, on these nodes alone; only jobs
   that need the scarce resource count in it. The hint to the solver is EASY's plan.
2. In the order of these starts, each job gets the earliest time at which its units really have room.

Users request far more time than their jobs take. If plans used the requested times, a job on two nodes would
wait for ever: the second node seems to stay busy for hours, so the free node goes to a small job, again and
again. So plans shorten requested times to the part that jobs of the same queue have used so far (`learn`).

The policy follows the cheapest of three plans: this one, EASY's, and one by weighted requested time. So by
the estimates, no decision is worse than EASY's for the same queue. OR-Tools is imported at the first plan;
install it by `pip install "mallob-py[cp]"`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_py.batch.cluster import Room, units_in
from mallob_py.batch.job import Job
from mallob_py.batch.policies.learnt import Experience
from mallob_py.batch.policies.pbs import End, backfill_starts, ends_of, room_of
from mallob_py.batch.policy import Action, PolicyError, Start, View
from mallob_py.batch.workload.eurora import expected_wait_s

#: a job's weight in the solver is this number divided by its expected wait [s], rounded to an integer
_WEIGHT = 864_000.0


class Planned(msgspec.Struct, frozen=True, gc=False):
    """The planned start [s] and nodes of a waiting job."""

    job: Job
    start_s: float
    nodes: Sequence[int]


class Cp:
    """The constraint programming policy; see the module's docstring.

    Only the `depth` waiting jobs with the smallest weighted requested time are planned; other jobs start if
    they do not delay the plan. The solver gets `limit_s` of CP-SAT's deterministic time (which counts steps;
    a unit takes one to some ten seconds). This limit doubles, up to `cap_s`, each time that the solver does
    not find an optimum. The solver has `workers` threads; with one, equal runs give equal schedules. With
    `learn=False`, plans use the users' estimates.
    """

    wants_all_arrivals = True
    shares_nodes = True

    def __init__(
        self,
        limit_s: float = 0.02,
        cap_s: float = 0.02,
        depth: int = 50,
        workers: int = 1,
        seed: int = 1,
        learn: bool = True,
    ) -> None:
        if min(limit_s, cap_s, depth, workers) <= 0:
            raise ValueError("limit_s, cap_s, depth and workers must be above 0")
        self.name = "cp"
        self._limits_s = (limit_s, max(limit_s, cap_s))
        self._limit_s = limit_s
        self._depth = depth
        self._workers = workers
        self._seed = seed
        self._learns = learn

    def begin(self, nodes: int) -> None:
        self._experience = Experience()
        self._limit_s = self._limits_s[0]

    def decide(self, view: View) -> Sequence[Action]:
        for gone in view.departed:
            self._experience.learn(gone.job, view.now_s - gone.start_s)
        if not view.queue:
            return ()
        room = room_of(view, self.name)
        # If no job fits, no plan can start one.
        if not any(_fits(room, kind) for kind in {(job.nodes, job.demand) for job in view.queue}):
            return ()
        waiting, ends = self._expected(view)
        ordered = sorted(waiting, key=_by_weight)
        queue, others = sorted(ordered[: self._depth], key=lambda job: job.id), ordered[self._depth :]
        plan = [*self.plan(view.now_s, queue, room, ends)]
        if others:
            plan += _beside(plan, others, view.now_s, room, ends)
        return [Start(one.job.id, tuple(one.nodes)) for one in plan if one.start_s == view.now_s]

    def _expected(self, view: View) -> tuple[Sequence[Job], list[End]]:
        """Return waiting jobs, with the run times to plan with, and running jobs' expected ends."""
        if not self._learns:
            return view.queue, ends_of(view)
        experience = self._experience
        waiting = [msgspec.structs.replace(job, estimate_s=experience.runs_for_s(job)) for job in view.queue]
        ends = [
            (experience.ends_s(running, view.now_s), running.nodes, running.job.demand)
            for _, _, running in view.ends
        ]
        return waiting, sorted(ends, key=lambda end: end[0])

    def plan(self, now_s: float, queue: Sequence[Job], room: Room, ends: Sequence[End]) -> Sequence[Planned]:
        """Return the cheapest plan for a queue, given the present room and running jobs' expected ends."""
        best = easy_plan(now_s, queue, room, ends)
        if all(one.start_s == now_s for one in best):
            return best
        starts_s = self._aggregated(now_s, queue, room, ends, {one.job.id: one.start_s for one in best})
        orders = [sorted(queue, key=_by_weight)]
        if starts_s is not None:
            orders.append(sorted(queue, key=lambda job: (starts_s[job.id], *_by_weight(job))))
        for order in orders:
            packed = packed_plan(now_s, order, room, ends)
            if cost(packed) < cost(best):
                best = packed
        return best

    def _aggregated(
        self, now_s: float, queue: Sequence[Job], room: Room, ends: Sequence[End], hint_s: dict[int, float]
    ) -> dict[int, float] | None:
        """Return the first stage's plan: job -> start [s]; None: the solver found none within its limit."""
        cp_model = _cp_model()
        model = cp_model.CpModel()
        horizon = math.ceil(max([*hint_s.values(), *(end[0] for end in ends)]) - now_s)
        horizon += sum(math.ceil(job.estimate_s) for job in queue)
        starts, intervals = {}, {}
        for job in queue:
            start = starts[job.id] = model.new_int_var(0, horizon, "")
            intervals[job.id] = model.new_fixed_size_interval_var(start, math.ceil(job.estimate_s), "")
            model.add_hint(start, math.ceil(hint_s[job.id] - now_s))
        capacity = room.capacity
        resources = range(capacity.shape[1])
        # For a resource that only some nodes have, the jobs that need it are limited by these nodes alone.
        rare = [one for one in resources if not capacity[:, one].all() and capacity[:, one].any()]
        for having in [None, *rare]:
            where = slice(None) if having is None else capacity[:, having] > 0.0
            busy = [
                (end_s - now_s, [node for node in nodes if having is None or capacity[node, having]], demand)
                for end_s, nodes, demand in ends
                if having is None or (demand and demand[having])
            ]
            jobs = [job for job in queue if having is None or (job.demand and job.demand[having])]
            for resource in resources:
                amounts = {job.id: _amount(job.nodes, job.demand, resource, capacity[where]) for job in jobs}
                if sum(amounts.values()) <= 0.0:
                    continue
                held: dict[int, int] = defaultdict(int)
                for left_s, nodes, demand in busy:
                    amount = math.floor(
                        demand[resource] * len(nodes) if demand else sum(capacity[nodes, resource])
                    )
                    # A job over its estimate is expected to end at any moment.
                    held[math.floor(left_s)] += amount
                fixed = [(left_s, amount) for left_s, amount in held.items() if left_s > 0 and amount]
                model.add_cumulative(
                    [intervals[one] for one in amounts if amounts[one]]
                    + [model.new_fixed_size_interval_var(0, left_s, "") for left_s, _ in fixed],
                    [amount for amount in amounts.values() if amount] + [amount for _, amount in fixed],
                    math.ceil(capacity[where, resource].sum()),
                )
        model.minimize(sum(_weight(job) * starts[job.id] for job in queue))
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = self._limit_s
        solver.parameters.num_workers = self._workers
        solver.parameters.random_seed = self._seed
        status = solver.solve(model)
        least_s, cap_s = self._limits_s
        self._limit_s = least_s if status == cp_model.OPTIMAL else min(cap_s, 2 * self._limit_s)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return {job: now_s + solver.value(start) for job, start in starts.items()}


def cost(plan: Iterable[Planned]) -> float:
    """Return the sum of waiting time/expected waiting time over a plan's jobs."""
    return sum((one.start_s - one.job.submit_s) / expected_wait_s(one.job.queue) for one in plan)


def easy_plan(now_s: float, queue: Sequence[Job], room: Room, ends: Sequence[End]) -> Sequence[Planned]:
    """Return the plan that EASY would carry out if no further job arrived and all estimates were true."""
    room, waiting, plan = room.copy(), list(queue), list[Planned]()
    due = sorted(ends, key=lambda end: end[0])
    while True:
        # All jobs that end at this time must free their room before a job starts.
        while due and due[0][0] <= now_s:
            _, nodes, demand = due.pop(0)
            room.give(nodes, demand)
        begun = backfill_starts(now_s, waiting, room, due)
        for job, nodes in begun:
            plan.append(Planned(job, now_s, nodes))
            due.append((now_s + job.estimate_s, nodes, job.demand))
        started = {job.id for job, _ in begun}
        waiting = [job for job in waiting if job.id not in started]
        if not waiting:
            return plan
        due.sort(key=lambda end: end[0])
        now_s = due[0][0]


def packed_plan(now_s: float, order: Sequence[Job], room: Room, ends: Sequence[End]) -> Sequence[Planned]:
    """Plan the jobs in this order: each at the earliest time with room for it beside the earlier jobs."""
    timeline = Timeline(now_s, room, ends)
    plan: list[Planned] = []
    for job in order:
        start_s, nodes = timeline.place(job)
        plan.append(Planned(job, start_s, nodes))
    return plan


def _beside(
    plan: Sequence[Planned], others: Sequence[Job], now_s: float, room: Room, ends: Sequence[End]
) -> list[Planned]:
    """Return those of the other jobs that can start now without delaying the plan."""
    timeline = Timeline(now_s, room, ends)
    for one in plan:
        timeline.take(one.job, one.start_s, one.nodes)
    placed = ((job, timeline.place_now(job)) for job in others)
    return [Planned(job, now_s, nodes) for job, nodes in placed if nodes is not None]


def _by_weight(job: Job) -> tuple[float, int]:
    """Return a sort key by Smith's rule: jobs with small size, estimate and expected wait come first."""
    return job.estimate_s * job.nodes * expected_wait_s(job.queue), job.id


def _amount(units: int, demand: Sequence[float], resource: int, capacity: NDArray[np.float64]) -> int:
    """Return how much of a resource `units` units need; without a demand, what as many of the smallest nodes
    have.
    """
    if demand:
        return math.floor(demand[resource] * units)
    return math.floor(float(np.sort(capacity[:, resource])[:units].sum()))


def _weight(job: Job) -> int:
    return max(1, round(_WEIGHT / expected_wait_s(job.queue)))


def _fits(room: Room, kind: tuple[int, tuple[float, ...]]) -> bool:
    units, demand = kind
    return bool(room.units(demand).sum() >= units)


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise PolicyError('cp needs OR-Tools, which is not installed: pip install "mallob-py[cp]"') from None
    return cp_model


class Timeline:
    """The shared nodes' room over time, by estimates and plans.

    A step function: from the time `_times_s[k]` to the next one, the amounts `_left[k]` (by node and
    resource) are free.
    """

    def __init__(self, now_s: float, room: Room, ends: Sequence[End]) -> None:
        self._capacity = room.capacity
        self._times_s = [now_s]
        steps = [room.left]
        then = room.copy()
        for end_s, nodes, demand in ends:
            then.give(nodes, demand)
            if end_s == self._times_s[-1]:
                steps[-1] = then.left.copy()
            else:
                self._times_s.append(end_s)
                steps.append(then.left.copy())
        self._left = np.array(steps)

    def place(self, job: Job) -> tuple[float, list[int]]:
        """Reserve the earliest room for a job's estimated run time; return the job's start [s] and nodes.

        The job must fit on the empty machine.
        """
        times_s = self._times_s
        units = units_in(self._left, job.demand, self._capacity)
        for first in np.flatnonzero(units.sum(axis=1) >= job.nodes).tolist():
            last = bisect_left(times_s, times_s[first] + job.estimate_s, first + 1)
            if units[first:last].min(axis=0).sum() >= job.nodes:
                break
        start_s, room = times_s[first], Room(self._capacity, self._left[first:last].min(axis=0))
        nodes = room.place(job.nodes, job.demand)
        assert nodes is not None
        self.take(job, start_s, nodes)
        return start_s, nodes

    def place_now(self, job: Job) -> list[int] | None:
        """Reserve room for a job's estimated run time from now on; return its nodes (None: no room)."""
        last = bisect_left(self._times_s, self._times_s[0] + job.estimate_s, 1)
        room = Room(self._capacity, self._left[:last].min(axis=0))
        nodes = room.place(job.nodes, job.demand)
        if nodes is not None:
            self.take(job, self._times_s[0], nodes)
        return nodes

    def take(self, job: Job, start_s: float, nodes: Sequence[int]) -> None:
        """Reserve room on these nodes for a job's estimated run time from `start_s` on."""
        self._cut(start_s)
        self._cut(start_s + job.estimate_s)
        first = bisect_left(self._times_s, start_s)
        last = bisect_left(self._times_s, start_s + job.estimate_s)
        for left in self._left[first:last]:
            Room(self._capacity, left).take(nodes, job.demand)

    def _cut(self, at_s: float) -> None:
        """Let a step begin at this time."""
        place = bisect_left(self._times_s, at_s)
        if place < len(self._times_s) and self._times_s[place] == at_s:
            return
        self._times_s.insert(place, at_s)
        self._left = np.insert(self._left, place, self._left[place - 1], axis=0)
