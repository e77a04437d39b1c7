"""Properties of every registered policy, with some settings, on random workloads.

A policy that needs nodes with several resources gets such nodes; all other policies get jobs of all kinds,
with resize costs and resize points, in all orders of events.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workloads import any_workloads, rigid, rigid_workloads, sharing_workloads

from mallob_py.batch.cluster import Room
from mallob_py.batch.costs import FreeResizes, PerNode, PerResize, ResizeCost
from mallob_py.batch.job import Job, Kind, Truth, Workload
from mallob_py.batch.policy import Action, Policy, PolicyError, Running, View
from mallob_py.batch.registry import policy_names, policy_of
from mallob_py.batch.simulator import EventOrder, Imbalance, Piece, Schedule, simulate

_SETTINGS = {
    "easy": ["depth=2", "extra=no"],
    "agreement": [
        *(f"size={size},nodes={nodes}" for size in ("pref", "average") for nodes in ("steal", "pool")),
        "size=keep",
        "quirks=pecs23",
    ],
    "rigid-easy": ["quirks=pecs23"],
    "elastic": ["start=code", "shrink=code,grow=code", "cooldown_s=5,ready_s=6", "cooldown_s=3,period_s=0.2"],
    "sd": [
        "check=no,learn=yes", "dynamic=yes", "check=no,max_slowdown=100",
        "check=no,counts_shared=no", "check=no,factor=0.3",
    ],
    "pbsfifo": ["depth=1"],
    "cp": ["depth=2"],
    "fair": [
        "by=nodes,overtake=any", "by=user,order=priority", "overtake=none,costs=no", "cooldown_s=3",
    ],
    "curve": ["gain=speed,floor=0", "curve=power:0.2,overtake=any,cooldown_s=3"],
}  # fmt: skip
_ALL = [
    text
    for name in policy_names()
    for text in (name, *(f"{name}:{more}" for more in _SETTINGS.get(name, ())))
]
#: policies that, with rigid jobs, are EASY: the first waiting job has a reservation
_ARE_EASY = {"easy", "rigid-easy", "agreement", "elastic", "elastic-easy", "sd"}
_KEEP_NO_PROMISE = ("quirks", "learn")
_EASY = [
    text
    for text in _ALL
    if text.partition(":")[0] in _ARE_EASY and not any(word in text for word in _KEEP_NO_PROMISE)
]
_EASY += ["fair", "fair:cooldown_s=3", "curve"]


def _shares_nodes(text: str) -> bool:
    try:
        simulate(rigid((0, 1, 1), nodes=1), policy_of(text))
    except PolicyError as error:
        if "needs a workload whose jobs share nodes" not in str(error):
            raise
        return True
    return False


_ON_SHARED_NODES = [text for text in _ALL if _shares_nodes(text)]
_ON_WHOLE_NODES = [text for text in _ALL if text not in _ON_SHARED_NODES]
_costs = st.sampled_from([FreeResizes(), PerResize(6.0, 4.0), PerNode(0.5, 0.25)])
_orders = st.sampled_from(EventOrder)


class Watched:
    """A wrapper of a policy that checks each view and records each action."""

    def __init__(self, text: str) -> None:
        self._policy = policy_of(text)
        self.name = text
        self.wants_all_arrivals = self._policy.wants_all_arrivals
        self.wants_resize_points = getattr(self._policy, "wants_resize_points", False)
        self.shares_cores = getattr(self._policy, "shares_cores", False)
        self.done: list[tuple[float, Action]] = []
        self.view = View(0)
        #: whether the policy, not the simulator, is reading the view
        self.is_asked = False
        #: job that was ever the first to wait -> the earliest of its shadow times
        self.shadows_s: dict[int, float] = {}

    def begin(self, nodes: int) -> None:
        self._policy.begin(nodes)  # called again after a wish was granted

    def decide(self, view: View) -> Iterator[Action]:
        self.view = view
        _check_view(view)
        with self._asking():
            actions = iter(self._policy.decide(view))
        while True:
            with self._asking():
                action = next(actions, None)
            if action is None:
                break
            self.done.append((view.now_s, action))
            yield action
        _check_view(view)
        if view.queue:
            head = view.queue[0]
            self.shadows_s[head.id] = min(self.shadows_s.get(head.id, math.inf), _shadow_s(head, view))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self.is_asked = True
        yield
        self.is_asked = False


class Pauses:
    """A wrapper of resize costs that records when jobs stood still."""

    def __init__(self, costs: ResizeCost, policy: Watched, imbalance: Imbalance = Imbalance.IDEAL) -> None:
        self._costs = costs
        self._policy = policy
        self.imbalance = imbalance
        #: job -> spans in which it stood still; a pause within a pause prolongs it
        self.spans_s: dict[int, list[tuple[float, float]]] = {}

    def pause_s(self, job: Job, before: int, after: int) -> float:
        lasts_s = self._costs.pause_s(job, before, after)
        if not self._policy.is_asked:
            spans_s = self.spans_s.setdefault(job.id, [])
            start_s = max(self._policy.view.now_s, spans_s[-1][1] if spans_s else -math.inf)
            spans_s.append((start_s, start_s + lasts_s))
        return lasts_s


def _check_view(view: View) -> None:
    held = {node for running in view.running.values() for node in running.nodes}
    assert view.free == len(view.free_nodes) == len(set(view.free_nodes))
    assert held.isdisjoint(view.free_nodes)
    assert list(view.ends) == sorted(view.ends, key=lambda end: end[:2])
    assert {running.job.id for _, _, running in view.ends} == set(view.running)
    assert [job.id for job in view.queue] == sorted({job.id for job in view.queue} - set(view.running))


def _shadow_s(head: Job, view: View) -> float:
    """Return the earliest time at which, by the estimates, enough nodes will be free for the head."""
    free, room = view.free, None if view.room is None else view.room.copy()
    for end_s, _, running in view.ends:
        if room is None:
            free += running.freed
        else:
            room.give(running.nodes, running.job.demand)
        if (free if room is None else room.units(head.demand).sum()) >= head.nodes:
            return max(end_s, view.now_s)
    return math.inf


def _check(schedule: Schedule, pauses: Pauses) -> None:
    """Check that each job ends after exactly its work, on a permitted number of nodes, and that no node is
    shared.
    """
    workload = schedule.workload
    pieces: list[list[Piece]] = [[] for _ in workload.jobs]
    for piece in schedule.all_pieces():
        assert piece.start_s < piece.end_s
        pieces[piece.job].append(piece)
    for job, truth, life in zip(workload.jobs, workload.truths, pieces, strict=True):
        assert job.submit_s <= schedule.starts_s[job.id] == life[0].start_s
        assert schedule.ends_s[job.id] == life[-1].end_s
        assert all(former.end_s == latter.start_s for former, latter in itertools.pairwise(life))
        assert all(job.low <= len(piece.nodes) <= job.high for piece in life)
        if not job.demand:
            assert all(len(set(piece.nodes)) == len(piece.nodes) for piece in life)
        if job.kind in (Kind.RIGID, Kind.MOLDABLE):
            assert len(life) == 1
        assert _work_s(job, truth, life, schedule, pauses) == pytest.approx(truth.run_s)
    if workload.cluster is None:
        _check_nodes(schedule)
    else:
        _check_capacities(schedule)


def _work_s(job: Job, truth: Truth, life: list[Piece], schedule: Schedule, pauses: Pauses) -> float:
    """Return how much work [s on its preferred number of nodes] a job has done."""
    speedup = truth.speedup or job.speedup
    done_s = 0.0
    for piece in life:
        size = len(piece.nodes)
        active_s = piece.end_s - piece.start_s
        for start_s, end_s in pauses.spans_s.get(job.id, ()):
            active_s -= max(0.0, min(end_s, piece.end_s) - max(start_s, piece.start_s))
        done_s += active_s * (1.0 if size == job.nodes else speedup.speed(size, job.nodes))
    # A job that shares nodes is never resized meanwhile.
    rate = speedup.speed(len(life[0].nodes), job.nodes)
    as_guest = [span for span in schedule.shared if span.guest == job.id]
    for span in schedule.shared:
        lasted_s = span.end_s - span.start_s
        if span.mate == job.id:
            done_s -= lasted_s * rate * span.factor
        elif span.guest == job.id and pauses.imbalance is Imbalance.IDEAL:
            done_s -= lasted_s * rate * (1.0 - span.factor) * span.nodes / len(life[0].nodes)
    if as_guest and pauses.imbalance is Imbalance.WORST:
        lasted_s = max(span.end_s for span in as_guest) - as_guest[0].start_s
        done_s -= lasted_s * rate * (1.0 - as_guest[0].factor)
    return done_s


def _check_nodes(schedule: Schedule) -> None:
    """Check that each node has one job at a time, except for a guest and its mate."""
    on_node: dict[int, list[Piece]] = {}
    for piece in schedule.all_pieces():
        for node in piece.nodes:
            assert 0 <= node < schedule.nodes
            on_node.setdefault(node, []).append(piece)
    for here in on_node.values():
        here.sort(key=lambda piece: piece.start_s)
        for place, one in enumerate(here):
            for other in here[place + 1 :]:
                if other.start_s >= one.end_s:
                    break
                until_s = min(one.end_s, other.end_s)
                assert any(
                    {span.guest, span.mate} == {one.job, other.job}
                    and (span.start_s, span.end_s) == (other.start_s, until_s)
                    for span in schedule.shared
                )


def _check_capacities(schedule: Schedule) -> None:
    assert schedule.workload.cluster is not None
    room = Room(np.array(schedule.workload.cluster.capacities))
    moments = [(start_s, 1, job) for job, start_s in enumerate(schedule.starts_s)]
    moments += [(end_s, 0, job) for job, end_s in enumerate(schedule.ends_s)]
    for _, begins, job in sorted(moments):
        nodes, demand = schedule.allocations[job], schedule.workload.jobs[job].demand
        if begins:
            assert len(nodes) == schedule.workload.jobs[job].nodes
            assert room.has(nodes, demand)
            room.take(nodes, demand)
        else:
            room.give(nodes, demand)


def _same(one: Schedule, other: Schedule) -> bool:
    return msgspec.structs.asdict(one) == msgspec.structs.asdict(other)


@pytest.mark.parametrize("text", _ON_WHOLE_NODES)
@settings(max_examples=20)
@given(workload=any_workloads(), order=_orders, costs=_costs, imbalance=st.sampled_from(Imbalance))
def test_everybody_does_its_work_within_the_machine_and_the_same_each_time(
    text: str, workload: Workload, order: EventOrder, costs: ResizeCost, imbalance: Imbalance
) -> None:
    policy = Watched(text)
    pauses = Pauses(costs, policy, imbalance)
    schedule = simulate(workload, policy, costs=pauses, order=order, imbalance=imbalance)
    _check(schedule, pauses)
    # A policy must remember nothing from an earlier run.
    again = simulate(workload, policy, costs=costs, order=order, imbalance=imbalance)
    assert _same(schedule, again)


@pytest.mark.parametrize("text", _ON_SHARED_NODES)
@settings(max_examples=15)
@given(workload=sharing_workloads(), order=_orders)
def test_on_shared_nodes_everybody_runs_within_the_capacities_and_the_same_each_time(
    text: str, workload: Workload, order: EventOrder
) -> None:
    policy = Watched(text)
    schedule = simulate(workload, policy, order=order)
    _check(schedule, Pauses(FreeResizes(), policy))
    assert _same(schedule, simulate(workload, policy, order=order))


@pytest.mark.parametrize("text", _EASY)
@settings(max_examples=20)
@given(workload=rigid_workloads(), order=_orders)
def test_the_first_that_waits_starts_no_later_than_its_reservation_said(
    text: str, workload: Workload, order: EventOrder
) -> None:
    policy = Watched(text)
    schedule = simulate(workload, policy, order=order)
    assert all(schedule.starts_s[job] <= shadow_s for job, shadow_s in policy.shadows_s.items())


@settings(max_examples=20)
@given(workload=sharing_workloads(), order=_orders)
def test_the_first_that_waits_for_shared_nodes_starts_no_later_than_its_reservation_said(
    workload: Workload, order: EventOrder
) -> None:
    policy = Watched("pbsfifo")
    schedule = simulate(workload, policy, order=order)
    assert all(schedule.starts_s[job] <= shadow_s for job, shadow_s in policy.shadows_s.items())


@pytest.mark.parametrize("text", _ON_WHOLE_NODES)
@settings(max_examples=10)
@given(workload=rigid_workloads(), order=_orders)
def test_promises_are_kept_where_nobody_exceeds_its_estimate(
    text: str, workload: Workload, order: EventOrder
) -> None:
    schedule = simulate(workload, policy_of(text), order=order)
    assert all(schedule.starts_s[job] <= promised_s for job, promised_s in schedule.promises.items())
    if text == "conservative":
        assert set(schedule.promises) == {job.id for job in workload.jobs}


@pytest.mark.parametrize("text", _ON_WHOLE_NODES)
@settings(max_examples=10)
@given(workload=any_workloads(), order=_orders, longer_s=st.integers(1, 20), data=st.data())
def test_how_long_a_job_runs_changes_nothing_before_it_ends(
    text: str, workload: Workload, order: EventOrder, longer_s: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.sampled_from(workload.jobs)).id
    truths = [*workload.truths]
    # The job loses its resize points and wishes, because their times depend on the run time.
    truths[chosen] = Truth(truths[chosen].run_s, truths[chosen].speedup)
    _same_until_an_end(text, msgspec.structs.replace(workload, truths=truths), chosen, longer_s, order)


@pytest.mark.parametrize("text", _ON_SHARED_NODES)
@settings(max_examples=10)
@given(workload=sharing_workloads(), order=_orders, longer_s=st.integers(1, 20), data=st.data())
def test_how_long_a_job_runs_on_shared_nodes_changes_nothing_before_it_ends(
    text: str, workload: Workload, order: EventOrder, longer_s: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.sampled_from(workload.jobs)).id
    _same_until_an_end(text, workload, chosen, longer_s, order)


def _same_until_an_end(text: str, workload: Workload, chosen: int, longer_s: int, order: EventOrder) -> None:
    before, after = Watched(text), Watched(text)
    end_s = simulate(workload, before, order=order).ends_s[chosen]
    truths = [*workload.truths]
    truths[chosen] = msgspec.structs.replace(truths[chosen], run_s=truths[chosen].run_s + longer_s)
    simulate(msgspec.structs.replace(workload, truths=truths), after, order=order)
    done, again = ([(now_s, it) for now_s, it in policy.done if now_s < end_s] for policy in (before, after))
    assert again == done


@given(workload=any_workloads())
def test_from_a_view_no_truth_can_be_reached(workload: Workload) -> None:
    class Looks:
        name = "looks"
        wants_all_arrivals = True

        def begin(self, nodes: int) -> None:
            pass

        def decide(self, view: View) -> list[Action]:
            _look_around(view, set())
            return inner.decide(view)

    inner = policy_of("backfilling")
    looks: Policy = Looks()
    simulate(workload, looks)  # type: ignore[arg-type]


def _look_around(thing: Any, seen: set[int]) -> None:
    """Check that no object reachable from `thing` contains a job's `Truth`, which policies must not see."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    assert not isinstance(thing, Truth | Workload | Schedule)
    if isinstance(thing, dict):
        for item in thing.values():
            _look_around(item, seen)
    elif isinstance(thing, list | tuple):
        for item in thing:
            _look_around(item, seen)
    elif isinstance(thing, View | Running):
        for name in type(thing).__slots__:
            _look_around(getattr(thing, name), seen)
    elif isinstance(thing, msgspec.Struct):
        for name in thing.__struct_fields__:
            _look_around(getattr(thing, name), seen)
    else:
        assert thing is None or isinstance(thing, int | float | str | Kind)
