"""Random lives of clusters, each from a seed; a failure names its seed and how to replay it."""

from __future__ import annotations

import traceback

import pytest

from mallob_py.protocol.config import Balancing
from mallob_py.simulation.scenario import Scenario

_BATCH = 20
_SEEDS = 200
_LARGE = (49, 99, 149, 199)


def _replayed(seed: int) -> str | None:
    """Play one seed; the failure and how to see it again."""
    try:
        Scenario(seed).run()
    except Exception:
        return f"{traceback.format_exc(limit=-4)}replay: python -m mallob_py.simulation.fuzz --seed {seed}"
    return None


@pytest.mark.parametrize("first", range(0, _SEEDS, _BATCH))
def test_all_invariants_hold_at_every_rest_of_a_random_life(first: int) -> None:
    failures = [text for seed in range(first, first + _BATCH) if (text := _replayed(seed)) is not None]
    assert not failures, "\n\n".join(failures)


def test_some_random_lives_are_large() -> None:
    assert {Scenario(seed).cluster.size for seed in _LARGE} == {128, 256}


def test_random_lives_show_both_kinds_of_balancing() -> None:
    assert {Scenario(seed).cluster.config.balancing for seed in range(20)} == set(Balancing)


@pytest.mark.parametrize("seed", [3, 30, 94, 116, 149])
def test_the_same_seed_gives_the_same_life(seed: int) -> None:
    first, second = Scenario(seed), Scenario(seed)
    first.run()
    second.run()
    assert first.cluster.messages_sent == second.cluster.messages_sent > 0
    assert first.cluster.now == second.cluster.now
    assert first.cluster.ended == second.cluster.ended
    assert list(first.cluster.logs) == list(second.cluster.logs)


def test_every_job_of_a_random_life_has_ended_once_with_an_outcome() -> None:
    """And the seeds are wild enough to show all outcomes."""
    outcomes = set()
    for seed in range(300, 330):
        scenario = Scenario(seed)
        scenario.run()
        assert set(scenario.cluster.ended) == set(scenario.cluster.submitted)
        outcomes |= {ended.outcome for ended in scenario.cluster.ended.values()}
    assert len(outcomes) == 5, outcomes
