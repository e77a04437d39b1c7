"""Plans of random runs can be stored, cut off and thinned out, and always play the same."""

from typing import get_args

import msgspec
import pytest
from seeds import seeds

from mallob_py.protocol.config import Config
from mallob_py.protocol.random_walk import NO_LIMIT
from mallob_py.simulation.delays import Delayed, DelayRanges, HashedDelays, RandomDelays, What
from mallob_py.simulation.lives import CLUSTERS
from mallob_py.simulation.plan import (
    NO_JOB,
    AnyDeed,
    Crash,
    Plan,
    RankDies,
    RankHangs,
    RankLeaves,
    Submit,
    draw_plan,
    with_changes,
    with_desks,
    with_rarities,
)
from mallob_py.simulation.scenario import Scenario, rest_bound_s


def _plan_of_some_length() -> Plan:
    """Return the first drawn plan that contains some acts and is quick to play."""
    plans = (draw_plan(seed) for seed in seeds(100))
    return next(plan for plan in plans if 10 < len(plan.deeds) < 40 and plan.size > 4)


def _life(plan: Plan) -> tuple[float, int, list[object]]:
    scenario = Scenario(plan)
    scenario.run()
    return scenario.cluster.now, scenario.cluster.messages_sent, list(scenario.cluster.logs)


@pytest.mark.parametrize("seed", seeds(20))
def test_a_plan_is_the_same_after_a_round_trip_through_json(seed: int) -> None:
    plan = draw_plan(seed)
    special = (Delayed(What.MESSAGE, 1, 2, 3), Delayed(What.FETCH, 1, 1, 0))
    for each in (plan, msgspec.structs.replace(plan, special=special)):
        assert CLUSTERS.from_json(CLUSTERS.to_json(each)) == each


@pytest.mark.parametrize("seed", [0, 7, 12])
def test_a_plan_from_a_file_plays_like_the_plan_it_was_written_from(seed: int) -> None:
    plan = draw_plan(seed)
    assert _life(CLUSTERS.from_json(CLUSTERS.to_json(plan))) == _life(plan)


def test_seeds_draw_every_kind_of_deed_and_every_setting() -> None:
    plans = [draw_plan(seed) for seed in seeds(200)]
    changed = [*map(with_changes, plans), *map(with_rarities, plans), *map(with_desks, plans)]
    kinds = {type(deed).__name__ for plan in changed for deed in plan.deeds}
    assert kinds == {one.__name__ for one in get_args(AnyDeed)}
    assert {plan.config.job_cache for plan in plans} == {0, 1, 4}
    assert len({plan.config.reuse for plan in plans}) == 3
    assert len({plan.delays.skew for plan in plans}) == 2
    assert len({plan.delays.message_s for plan in plans}) == 3


def test_deeds_are_in_the_order_of_their_times_and_their_numbers_differ() -> None:
    for seed in seeds(50):
        for change in (with_changes, with_rarities):
            deeds = change(draw_plan(seed)).deeds
            assert [deed.at_s for deed in deeds] == sorted(deed.at_s for deed in deeds)
            assert len({deed.number for deed in deeds}) == len(deeds)


def test_a_cut_off_plan_begins_like_the_whole_one() -> None:
    """Both plans send the same messages until the first missing act."""
    plan = _plan_of_some_length()
    cut = plan.cut_off(len(plan.deeds) // 2)
    until_s = plan.deeds[len(cut.deeds)].at_s
    whole, part = Scenario(plan), Scenario(cut)
    whole.cluster.run(until_s=until_s - 1e-9)
    part.cluster.run(until_s=until_s - 1e-9)
    assert whole.cluster.messages_sent == part.cluster.messages_sent > 0
    assert list(whole.cluster.logs) == list(part.cluster.logs)


def test_a_life_can_be_cut_off_after_every_single_deed() -> None:
    plan = _plan_of_some_length()
    for count in range(len(plan.deeds)):
        Scenario(plan.cut_off(count)).run()


def test_a_deed_without_its_job_does_nothing() -> None:
    plan = _plan_of_some_length()
    orphans = tuple(deed for deed in plan.deeds if not isinstance(deed, Submit))
    scenario = Scenario(msgspec.structs.replace(plan, deeds=orphans))
    scenario.run()
    assert not scenario.cluster.submitted


def test_a_deed_picks_the_same_worker_unless_that_one_is_missing() -> None:
    plan = draw_plan(1)
    workers = [(rank, rank % 3) for rank in range(40)]
    picks = set()
    for number in range(50):
        deed = Crash(number=number, at_s=0.0, job=1)
        pick = plan.pick(deed, workers)
        assert pick is not None
        picks.add(pick)
        others = [worker for worker in workers if worker != pick]
        assert plan.pick(deed, [*others[::2], pick]) == pick
        assert plan.pick(deed, others) in others
    assert len(picks) > 20
    assert plan.pick(deed, []) is None


def test_a_hashed_delay_follows_from_the_pair_of_ranks_and_the_number_alone() -> None:
    ranges = DelayRanges(message_s=(0.1, 0.2))
    crowded, lonely = HashedDelays(5, ranges), HashedDelays(5, ranges)
    delays = []
    for step in range(30):
        crowded.message_s(3, step % 4)
        crowded.fetch_s(2)
        delays.append(crowded.message_s(1, 2))
    assert delays == [lonely.message_s(1, 2) for _ in range(30)]
    assert len(set(delays)) == 30
    assert all(0.1 <= delay_s <= 0.2 for delay_s in delays)
    assert delays != [HashedDelays(6, ranges).message_s(1, 2)] * 30


def test_only_special_things_take_longer_than_the_shortest_time() -> None:
    ranges = DelayRanges(message_s=(0.1, 0.2))
    special = (Delayed(What.MESSAGE, 1, 2, 1),)
    delays = HashedDelays(5, ranges, special)
    usual = HashedDelays(5, ranges)
    usual.message_s(1, 2)
    assert [delays.message_s(1, 2) for _ in range(3)] == [0.1, usual.message_s(1, 2), 0.1]
    assert delays.all_so_far() == [Delayed(What.MESSAGE, 1, 2, number) for number in range(3)]


def test_random_delays_stay_in_their_ranges() -> None:
    delays = RandomDelays(3, message_s=(1.0, 2.0), process_start_s=(3.0, 3.0), fetch_s=(4.0, 5.0))
    assert all(1.0 <= delays.message_s(0, 1) <= 2.0 for _ in range(100))
    assert delays.process_start_s(0) == 3.0
    assert 4.0 <= delays.fetch_s(0) <= 5.0


def test_only_walks_without_limit_may_take_a_time_that_grows_with_the_number_of_pes() -> None:
    """All other matchers need a time that grows only with the logarithm of the number of PEs."""

    def bound_s(size: int, random_hops: int) -> float:
        plan = _plan_of_some_length()
        config = msgspec.structs.replace(plan.config, random_hops=random_hops)
        return rest_bound_s(msgspec.structs.replace(plan, size=size, config=config))

    assert bound_s(255, 5) - bound_s(127, 5) == pytest.approx(bound_s(127, 5) - bound_s(63, 5))
    assert bound_s(255, NO_LIMIT) - bound_s(127, NO_LIMIT) > 1.5 * (
        bound_s(127, NO_LIMIT) - bound_s(63, NO_LIMIT)
    )


def test_a_cluster_that_does_not_rest_in_time_after_its_last_deed_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = _plan_of_some_length().cut_off(1)
    monkeypatch.setattr("mallob_py.simulation.scenario.ROUNDS_PER_BIT", 1e-6)
    with pytest.raises(AssertionError, match="no rest within"):
        Scenario(plan).run()


def test_a_life_in_which_nothing_takes_any_time_rests_at_once() -> None:
    config = Config(reuse_patience_s=0.0, growth_delay_s=0.0, unannounced_max_s=0.0)
    config = msgspec.structs.replace(config, balancing_delay_s=0.0, matching_delay_s=0.0, turn_patience_s=0.0)
    at_once = DelayRanges(message_s=(0.0, 0.0), process_start_s=(0.0, 0.0), fetch_s=(0.0, 0.0))
    plan = Plan(
        seed=0,
        size=1,
        config=config,
        delays=at_once,
        span_s=0.1,
        deeds=(Submit(number=20, at_s=0.0, job=1, rank=0),),
    )
    assert rest_bound_s(plan) == 0.0
    scenario = Scenario(plan)
    scenario.run()
    assert scenario.slowest == 0.0


@pytest.mark.parametrize("after_s", [0.0, 0.5e-3, 1e-3, 2e-3])
def test_nobody_dies_of_whom_all_others_rely_on_to_stay(after_s: float) -> None:
    plan = Plan(
        seed=0,
        size=2,
        config=Config(),
        delays=DelayRanges(message_s=(1e-3, 1e-3)),
        span_s=0.1,
        deeds=(
            Submit(number=20, at_s=0.0, job=1, rank=1),
            RankLeaves(number=1, at_s=0.05, job=NO_JOB, rank=0),
            RankDies(number=2, at_s=0.05 + after_s, job=NO_JOB, rank=1),
        ),
        patience_s=0.1,
    )
    scenario = Scenario(plan)
    scenario.run()
    assert set(scenario.cluster.ended) == {1}


@pytest.mark.parametrize("after_s", [0.4e-3, 0.8e-3, 1.2e-3])
def test_nobody_dies_beside_one_whom_he_has_left_out(after_s: float) -> None:
    """The other rank ends as soon as it hears that it was left out, and then no rank would be left."""
    plan = Plan(
        seed=0,
        size=2,
        config=Config(),
        delays=DelayRanges(message_s=(1e-3, 1e-3)),
        span_s=0.1,
        deeds=(
            Submit(number=20, at_s=0.0, job=1, rank=1),
            RankHangs(number=1, at_s=0.05, job=NO_JOB, rank=1, for_s=0.3e-3),
            RankDies(number=2, at_s=0.05 + after_s, job=NO_JOB, rank=0),
        ),
        detect_s=1e-4,
        patience_s=0.03,
    )
    scenario = Scenario(plan)
    scenario.run()
    assert set(scenario.cluster.ended) == {1}
