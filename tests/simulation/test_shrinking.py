"""A failing life becomes a small one that fails in the same way, here with rules broken on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from mallob_py.protocol.local_workers import LocalWorkers
from mallob_py.simulation import fuzz
from mallob_py.simulation.failure import failure_of
from mallob_py.simulation.plan import from_json
from mallob_py.simulation.schedule import schedule_of
from mallob_py.simulation.shrink import minimal, shrink

_SHRINK_SECONDS = 30.0


def _failing_with(monkeypatch: pytest.MonkeyPatch, seed: int) -> fuzz.Found:
    """Adopt whatever is asked for: the rule of race 2 is gone."""
    monkeypatch.setattr(LocalWorkers, "is_obsolete", lambda _workers, _request: False)
    found = fuzz.play(seed)
    assert found is not None
    return found


def test_a_minimal_list_keeps_what_the_failure_needs() -> None:
    tried = []

    def fails(parts: object) -> bool:
        tried.append(parts)
        return {3, 17} <= set(parts)  # type: ignore[call-overload]

    assert minimal(range(100), fails) == [3, 17]
    assert len(tried) < 100


def test_a_minimal_list_is_empty_if_nothing_of_it_matters() -> None:
    assert minimal([1, 2, 3], lambda _: True) == []
    assert minimal([], lambda _: True) == []


def test_a_list_that_is_needed_as_a_whole_stays() -> None:
    assert minimal(range(7), lambda parts: len(parts) == 7) == list(range(7))


@pytest.mark.parametrize("seed", [4, 15])
def test_a_failing_life_shrinks_to_one_deed_and_the_few_messages_that_race(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    found = _failing_with(monkeypatch, seed)
    shrunk = shrink(found.plan, found.failure, _SHRINK_SECONDS)
    assert shrunk.failure.kind == found.failure.kind
    assert len(shrunk.plan.deeds) == 1
    assert shrunk.plan.size <= found.plan.size
    assert shrunk.plan.special is not None
    assert len(shrunk.plan.special) < 20


def test_a_shrunk_plan_from_its_file_fails_in_the_same_way_and_not_with_the_rule_in_force(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = _failing_with(monkeypatch, 15)
    told = fuzz.tell(found, tmp_path, _SHRINK_SECONDS)
    (path,) = tmp_path.iterdir()
    assert f"--replay {path}" in told
    assert "all takes the shortest time" in told
    plan = from_json(path.read_bytes())
    failure = failure_of(plan)
    assert failure is not None
    assert failure.kind == found.failure.kind
    assert fuzz.replay_file(path) == 1
    monkeypatch.undo()
    assert failure_of(plan) is None
    assert fuzz.replay_file(path) == 0


def test_a_schedule_tells_deeds_messages_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _failing_with(monkeypatch, 4)
    told = schedule_of(found.plan)
    for deed in found.plan.deeds:
        assert f"{deed.at_s:.6f}   job {deed.job}: {type(deed).__name__.lower()}" in told
    assert "Adopt(" in told
    assert f"failure at {found.failure.at_s:.6f}: {found.failure.kind}" in told


def test_the_kind_of_a_failure_does_not_depend_on_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {_failing_with(monkeypatch, seed).failure.kind for seed in (4, 15, 17)}
    assert len(kinds) == 1
    assert not any(letter.isdigit() for letter in kinds.pop())


def test_shrinking_ends_in_time_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _failing_with(monkeypatch, 15)
    shrunk = shrink(found.plan, found.failure, seconds_max=0.0)
    assert (shrunk.plan, shrunk.tried) == (found.plan, 0)
