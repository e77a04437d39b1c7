import math
from collections.abc import Iterator
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_simulator import check
from workloads import malleable, rigid, rigid_workloads

from mallob_py.batch.costs import Redistribution, resize_cost_of
from mallob_py.batch.job import Job, Workload
from mallob_py.batch.policies.backfilling import Easy
from mallob_py.batch.policies.mebf import Mebf
from mallob_py.batch.policy import Action, Resize, Running, Start, View
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import Schedule, simulate
from mallob_py.batch.workload.changes import NodeRange, make_malleable, speed_model_of, with_model_error

VARIANTS = list(product(("handoff", "spare", "intensive"), ("basic", "expand", "shrink")))


class Reference:
    """MEBF by its module's docstring, with everything recomputed at each decision."""

    name = "reference"
    wants_all_arrivals = True

    def __init__(self, variant: str, gaps: str) -> None:
        self.ratio = {"handoff": 1.0, "spare": 0.5, "intensive": 0.0}[variant]
        self.kept = 0.5 if variant == "spare" else 0.0
        self.gaps = gaps

    def begin(self, nodes: int) -> None:
        self.static: dict[int, float] = {}

    def decide(self, view: View) -> Iterator[Action]:
        while True:
            while view.queue and self.size(view.queue[0], view.free):
                yield from self.start(view.queue[0], view)
            if not view.queue:
                yield from self.expand(view)
                return
            if view.free:
                before = len(view.queue)
                yield from self.backfill(view)
                if len(view.queue) < before or self.gaps == "basic":
                    return
                if self.gaps == "expand":
                    yield from self.expand(view)
                    return
            before = self.resized(view)
            yield from self.shrink(view)
            if self.resized(view) == before:
                return

    def size(self, job: Job, free: int) -> int:
        size = min(job.nodes, free)
        return size if size >= job.low else 0

    def start(self, job: Job, view: View) -> Iterator[Action]:
        size = self.size(job, view.free)
        self.static[job.id] = job.estimate_on(size)
        yield Start(job.id, size)

    def backfill(self, view: View) -> Iterator[Action]:
        for job in list(view.queue[1:]):
            size = self.size(job, view.free)
            if size and not self.delays_head(view, size, view.now_s + job.estimate_on(size)):
                yield from self.start(job, view)

    def delays_head(self, view: View, size: int, end_s: float) -> bool:
        """Tell whether a job of this size that ends at `end_s` would delay the head."""
        ends = [(max(view.now_s, running.estimated_end_s), running.size) for running in view.running.values()]
        need = view.queue[0].low
        enough = [
            at_s
            for at_s in [view.now_s, *(at_s for at_s, _ in ends)]
            if view.free + sum(freed for until_s, freed in ends if until_s <= at_s) >= need
        ]
        # Nodes that a job has ordered and not taken yet belong to no job, so the sum may miss them.
        shadow_s = min(enough) if enough else max(at_s for at_s, _ in ends)
        free = view.free + sum(freed for until_s, freed in ends if until_s <= shadow_s)
        return end_s > shadow_s and free - size < need

    def expand(self, view: View) -> Iterator[Action]:
        every = [one for one in view.running.values() if one.job.is_malleable]
        lent = [one.size - one.job.nodes for one in every if one.size > one.job.nodes]
        kept = math.ceil(self.kept * (view.free + sum(lent)))
        for running in sorted(self.malleable(view), key=lambda one: (one.job.speedup.loss, one.order)):
            gain = min(view.free - kept, running.job.high - running.size)
            is_worth_while = gain > 0 and gain > self.ratio * running.size
            if is_worth_while and self.feasible(running, running.size + gain, view):
                yield Resize(running.job.id, running.size + gain)

    def shrink(self, view: View) -> Iterator[Action]:
        # The nodes for a job that is to grow are not free any more.
        coming = [max(0, one.size - one.target) for one in view.running.values() if one.target is not None]
        need = view.queue[0].low - view.free - sum(coming)
        for running in sorted(self.malleable(view), key=lambda one: (-one.job.speedup.loss, one.order)):
            before, after = running.size, max(running.job.low, running.size - int(0.4 * running.size))
            can_give = after < before and running.resized_s is None
            if need > 0 and can_give and self.feasible(running, after, view):
                yield Resize(running.job.id, after)
                if running.resized_s is not None:  # otherwise the job ends before its next resize point
                    need -= before - after

    def resized(self, view: View) -> int:
        return sum(one.resized_s is not None for one in view.running.values())

    def malleable(self, view: View) -> list[Running]:
        return [one for one in view.running.values() if one.job.is_malleable and one.target is None]

    def feasible(self, running: Running, size: int, view: View) -> bool:
        static_s = self.static[running.job.id]
        left_s = running.estimated_end_s - view.now_s
        slower = running.job.estimate_on(size) / running.job.estimate_on(running.size)
        pause_s = view.costs.pause_s(running.job, running.size, size)
        total_s = view.now_s - running.start_s + left_s * slower + pause_s
        return left_s >= 0.5 * static_s and total_s <= 2.0 * static_s


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw workloads on 16 nodes with some rigid jobs, in whole seconds, so that many events are
    simultaneous.
    """
    one = st.tuples(st.integers(0, 60), st.integers(1, 16), st.integers(1, 40), st.integers(0, 20))
    jobs = draw(st.lists(one, min_size=1, max_size=25))
    model = speed_model_of(draw(st.sampled_from(["power:0:0.3", "amdahl:0:0.3", "log:0:0.3", "linear"])))
    plain = rigid(*[(at, size, run, run + more) for at, size, run, more in sorted(jobs)], nodes=16)
    share = draw(st.sampled_from([0.5, 1.0]))
    workload = make_malleable(plain, share, NodeRange(0.5, 5), model, draw(st.integers(0, 9)))
    workload = with_model_error(workload, draw(st.sampled_from([0.0, 0.1])))
    iterations = draw(st.sampled_from([0, 0, 4]))
    truths = [msgspec.structs.replace(truth, iterations=iterations) for truth in workload.truths]
    return msgspec.structs.replace(workload, truths=truths)


def life(schedule: Schedule) -> tuple[object, ...]:
    return schedule.starts_s, schedule.ends_s, schedule.pieces, schedule.allocations


@given(workloads(), st.sampled_from([0.0, 1.0]))
@pytest.mark.parametrize(("variant", "gaps"), VARIANTS)
def test_it_does_the_same_as_the_slow_reference(
    variant: str, gaps: str, workload: Workload, scale: float
) -> None:
    costs = Redistribution(scale)
    found = simulate(workload, Mebf(variant, gaps), costs=costs)
    check(found)
    assert life(found) == life(simulate(workload, Reference(variant, gaps), costs=costs))


@given(rigid_workloads())
@pytest.mark.parametrize(("variant", "gaps"), VARIANTS)
def test_without_malleable_jobs_it_is_easy(variant: str, gaps: str, workload: Workload) -> None:
    assert simulate(workload, Mebf(variant, gaps)).starts_s == simulate(workload, Easy()).starts_s


def sizes(schedule: Schedule, job: int) -> list[int]:
    return [len(piece.nodes) for piece in schedule.all_pieces() if piece.job == job]


def test_a_job_starts_on_what_there_is_down_to_its_least() -> None:
    schedule = simulate(malleable((0, 3, 3, 3, 10), (0, 1, 2, 2, 10), (0, 2, 2, 2, 10), nodes=4), Mebf())
    assert [len(nodes) for nodes in schedule.allocations] == [3, 1, 2]
    assert schedule.starts_s[2] > 0


def test_when_nothing_is_free_the_least_scalable_jobs_shrink_once_until_the_head_fits() -> None:
    plain = rigid((0, 5, 100), (0, 5, 100), (1, 2, 10), (2, 9, 10), nodes=10)
    workload = make_malleable(plain, 1.0, speedup=speed_model_of("power:0.2:0.3"))
    schedule = simulate(workload, Mebf())
    least_scalable = max((0, 1), key=lambda job: workload.jobs[job].speedup.loss)
    assert schedule.starts_s[2] == 1
    assert sizes(schedule, least_scalable) == [5, 3]
    # For the job that needs at least five nodes, the other job gives two nodes, too, which do not suffice.
    assert schedule.starts_s[3] > 2
    assert sizes(schedule, 1 - least_scalable) == [5, 3]


@pytest.mark.parametrize(("variant", "expected"), [("handoff", [4]), ("spare", [4]), ("intensive", [7])])
def test_variants_differ_in_how_much_more_is_worth_while(variant: str, expected: list[int]) -> None:
    schedule = simulate(malleable((0, 2, 4, 20, 100), nodes=7), Mebf(variant))
    assert sizes(schedule, 0) == expected


@pytest.mark.parametrize(("kept", "expected"), [(0.0, [12]), (0.5, [8]), (0.7, [4])])
def test_spare_keeps_a_part_of_what_the_jobs_did_not_ask_for(kept: float, expected: list[int]) -> None:
    schedule = simulate(malleable((0, 2, 4, 20, 100), nodes=12), Mebf("spare", kept=kept))
    assert sizes(schedule, 0) == expected
    assert sizes(simulate(malleable((0, 2, 4, 20, 100), nodes=12), Mebf("intensive", kept=kept)), 0) == [12]


def test_what_is_lent_counts_as_free_so_that_spare_does_not_lend_more_at_each_decision() -> None:
    jobs = ((0, 2, 4, 20, 100), (1, 1, 1, 1, 5), (2, 1, 1, 1, 5), (3, 1, 1, 1, 5))
    assert sizes(simulate(malleable(*jobs, nodes=12), Mebf("spare", spare=0.1, theta=0.0)), 0) == [8]


@pytest.mark.parametrize(
    ("variant", "most", "is_said"), [("handoff", 2, True), ("spare", 2, False), ("handoff", 5, False)]
)
def test_a_range_of_nodes_in_which_it_expands_no_job_is_warned_of(
    variant: str, most: float, is_said: bool
) -> None:
    workload = make_malleable(rigid((0, 4, 10), (0, 6, 10), nodes=40), 1.0, NodeRange(0.5, most))
    warning = Mebf(variant).warning(workload.jobs)
    assert warning == (
        "it expands jobs to more than 2 times their preferred nodes; no job can have more than 2 times"
        " (see --malleable-range)"
        if is_said
        else None
    )
    assert Mebf(variant).warning(rigid((0, 4, 10), nodes=8).jobs) is None


def test_gaps_are_left_or_expanded_into_or_made_larger() -> None:
    # Two nodes are free, the head needs four.
    workload = malleable((0, 2, 5, 9, 100), (0, 2, 2, 2, 40), (0, 4, 4, 4, 10), nodes=9)
    found = {gaps: simulate(workload, Mebf("intensive", gaps)) for gaps in ("basic", "expand", "shrink")}
    assert {gaps: sizes(schedule, 0)[0] for gaps, schedule in found.items()} == {
        "basic": 5,
        "expand": 7,
        "shrink": 3,
    }
    assert found["shrink"].starts_s[2] == 0
    assert found["basic"].starts_s[2] == 40


def test_nobody_is_resized_late_in_his_life_nor_for_too_high_a_cost() -> None:
    jobs = ((0, 2, 4, 8, 100), (60, 2, 2, 2, 10))
    assert sizes(simulate(malleable(*jobs, nodes=4), Mebf()), 0) == [4]
    assert sizes(simulate(malleable(*jobs, nodes=4), Mebf(theta=0.3)), 0)[:2] == [4, 3]
    early = malleable((0, 2, 4, 8, 100), (1, 1, 1, 1, 10), nodes=4)
    assert sizes(simulate(early, Mebf()), 0)[:2] == [4, 3]
    assert sizes(simulate(early, Mebf(), costs=Redistribution(1000.0)), 0) == [4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mebf:variant=all", "variant is 'all', not one of handoff, spare, intensive"),
        ("mebf:gaps=fill", "gaps is 'fill', not one of basic, expand, shrink"),
        ("mebf:share=2", "share and kept must be from 0 to 1"),
        ("mebf:theta=-1", "theta and spare 0 or more, gamma above 0"),
        ("mebf:theta=nan", "theta is .nan., not a number"),
    ],
)
def test_settings_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_of(text)


def test_costs_of_a_resize_are_those_published() -> None:
    job = malleable((0, 1, 5, 20, 10), nodes=20).jobs[0]
    dear = Redistribution(spawn_s=0.0, least=0.05, most=0.05)
    assert dear.pause_s(job, 5, 10) == pytest.approx(0.05 * 5 + 0.05 / 15)
    assert dear.pause_s(job, 5, 20) == dear.pause_s(job, 20, 5) > dear.pause_s(job, 5, 10)
    assert Redistribution(scale=0.5).pause_s(job, 5, 9) == Redistribution().pause_s(job, 5, 9) / 2
    assert 4 * 0.105 < Redistribution().pause_s(job, 5, 9) < 4 * 0.155
    assert Redistribution(seed=2).pause_s(job, 5, 9) != Redistribution().pause_s(job, 5, 9)


def test_costs_of_a_resize_have_a_text() -> None:
    assert resize_cost_of("mebf") == Redistribution()
    assert resize_cost_of("mebf:0.5:2") == Redistribution(0.5, 2.0)
    for text in ("mebf:", "mebf:-1", "mebf:1:2:3:1", "mebf:1:2:3:4:5:6", "mebf:nan"):
        with pytest.raises(ValueError, match="is not a cost such as mebf"):
            resize_cost_of(text)
