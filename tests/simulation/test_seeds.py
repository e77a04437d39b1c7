"""Random runs of clusters, each from a seed; a failure names its seed and the command for a replay."""

import pytest

from mallob_py.protocol.config import Balancing, Matching
from mallob_py.protocol.random_walk import NO_LIMIT
from mallob_py.simulation.fuzz import play
from mallob_py.simulation.plan import draw_plan, with_rarities
from mallob_py.simulation.scenario import Scenario

_BATCH = 20
_SEEDS = 200
_LARGE = (49, 99, 149, 199, 249)


def _replayed(seed: int) -> str | None:
    """Simulate a seed's plan, whole and cut off; return the failure and a command to replay it, or None."""
    if (found := play(seed)) is None:
        return None
    return f"{found.failure.text}replay: python -m mallob_py.simulation.fuzz --seed {seed}"


@pytest.mark.parametrize("first", range(0, _SEEDS, _BATCH))
def test_a_random_life_rests_in_time_wherever_it_is_cut_off_and_is_fair_at_every_rest(first: int) -> None:
    failures = [text for seed in range(first, first + _BATCH) if (text := _replayed(seed)) is not None]
    assert not failures, "\n\n".join(failures)


def test_a_job_that_is_interrupted_while_it_has_been_given_up_ends() -> None:
    assert _replayed(27270117) is None


def test_a_job_that_is_given_up_while_its_root_leaves_comes_again() -> None:
    """A former fault: the job's end was reported a second time, after the epoch in which it ended."""
    assert _replayed(37000842) is None


def test_a_growth_whose_newcomer_dies_before_it_is_started_ends() -> None:
    assert _replayed(37000587) is None


def test_a_worker_may_die_while_its_rank_is_about_to_go_on() -> None:
    assert _replayed(37000788) is None


def test_a_job_that_is_given_up_may_be_over_when_its_last_pe_begins_alone() -> None:
    Scenario(with_rarities(draw_plan(64101002))).run()


@pytest.mark.parametrize("seed", [37001316, 38007874])
def test_a_request_that_outlives_its_parent_keeps_no_busy_cluster_from_resting(seed: int) -> None:
    assert _replayed(seed) is None


def test_who_wakes_up_beside_newcomers_that_know_it_no_more_goes_on_alone() -> None:
    """A former fault: only the rank's own generation had a later number, and no rank could tell the newcomers
    about that generation.
    """
    assert _replayed(90000112) is None


def test_a_job_that_is_set_back_right_after_a_change_asks_its_root_by_its_present_number() -> None:
    """A former fault: the root rested at a PE that had another number in the new generation."""
    assert _replayed(90100384) is None


def test_some_random_lives_are_large() -> None:
    assert {draw_plan(seed).size for seed in _LARGE} == {128, 256}


def test_the_first_random_lives_know_all_kinds_of_balancing_and_of_matching() -> None:
    configs = [draw_plan(seed).config for seed in range(2 * _BATCH)]
    assert {config.matcher for config in configs if config.random_hops == 0} == set(Matching)
    assert {config.matcher for config in configs if config.random_hops > 0} == set(Matching)
    assert any(config.random_hops == NO_LIMIT for config in configs)
    assert {config.balancing for config in configs} == set(Balancing)
    assert {config.asks_in_bulk for config in configs} == {False, True}


@pytest.mark.parametrize("seed", [3, 30, 94, 116, 149])
def test_the_same_seed_gives_the_same_life(seed: int) -> None:
    first, second = Scenario(draw_plan(seed)), Scenario(draw_plan(seed))
    first.run()
    second.run()
    assert first.cluster.messages_sent == second.cluster.messages_sent > 0
    assert first.cluster.now == second.cluster.now
    assert first.cluster.ended == second.cluster.ended
    assert list(first.cluster.logs) == list(second.cluster.logs)


def test_every_job_of_a_random_life_has_ended_once_with_an_outcome() -> None:
    """The seeds must also show all outcomes."""
    outcomes = set()
    for seed in range(300, 330):
        scenario = Scenario(draw_plan(seed))
        scenario.run()
        assert set(scenario.cluster.ended) == set(scenario.cluster.submitted)
        outcomes |= {ended.outcome for ended in scenario.cluster.ended.values()}
    assert len(outcomes) == 5, outcomes
