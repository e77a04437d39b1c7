"""Bag jobs in virtual time whose workers come, go, die and are stopped: each result is exact."""

import pytest
from seeds import seeds

from mallob_py.simulation import bags

SEEDS = len(seeds(60))


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_the_result_is_exact_whatever_becomes_of_workers(first: int) -> None:
    for seed in range(first, min(first + 20, SEEDS)):
        if (failure := bags.failure_of(bags.draw_plan(seed))) is not None:
            pytest.fail(f"{failure.text}replay: python -m mallob_py.simulation.fuzz --bags --seed {seed}")


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_a_search_finds_the_best_whatever_becomes_of_who_has_found_it(first: int) -> None:
    for seed in range(first, min(first + 20, SEEDS)):
        if (failure := bags.failure_of(bags.as_search(bags.draw_plan(seed)))) is not None:
            pytest.fail(f"seed {seed}: {failure.text}")


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_the_result_is_exact_where_little_may_be_sent_at_once(first: int) -> None:
    for seed in range(first, min(first + 20, SEEDS)):
        if (failure := bags.failure_of(bags.with_bounds(bags.draw_plan(seed)))) is not None:
            pytest.fail(f"seed {seed}: {failure.text}")


def test_what_one_worker_has_found_spares_the_others_tasks() -> None:
    alone = bags.BagCluster(plan(is_search=True, depth=20, volume=1)).run()
    together = bags.BagCluster(plan(is_search=True, depth=20, volume=16)).run()
    assert alone.result[0] == together.result[0]
    tasks = bags.BagCluster(plan(depth=20)).work.expected()[0]
    assert max(alone.busy_s, together.busy_s) < 0.5 * tasks * 1e-4


def plan(**changes: object) -> bags.BagPlan:
    values: dict = {
        "seed": 3, "depth": 17, "task_s": 1e-4, "delay_s": 1e-4, "come_back": 1.0, "checkpoint_s": 1.0,
        "settle_s": 0.5, "volume": 1, "events": (),
    }  # fmt: skip
    return bags.BagPlan(**values | changes)


def test_many_workers_share_the_work() -> None:
    alone, together = bags.BagCluster(plan()).run(), bags.BagCluster(plan(volume=30)).run()
    assert together.busy_s == pytest.approx(alone.busy_s)
    assert together.busy_s / together.volume_s > 0.7


def test_nothing_is_done_twice_if_workers_leave_in_order() -> None:
    events = tuple(bags.Event(0.05 * each, bags.EventKind.VOLUME, 1 + each * 7 % 9) for each in range(1, 40))
    outcome = bags.BagCluster(plan(volume=9, events=events)).run()
    assert outcome.wasted == 0


def test_a_root_that_dies_begins_anew_where_its_last_checkpoint_was() -> None:
    events = (bags.Event(0.2, bags.EventKind.CRASH, 0),)
    anew = bags.BagCluster(plan(volume=4, events=events, checkpoint_s=None)).run()
    goes_on = bags.BagCluster(plan(volume=4, events=events, checkpoint_s=0.05, settle_s=0.02)).run()
    assert goes_on.busy_s < anew.busy_s
