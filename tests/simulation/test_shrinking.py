"""A failing random run is reduced to a small run with the same failure; rules are broken here on purpose."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.protocol.local_workers import LocalWorkers
from mallob_py.protocol.node import Node
from mallob_py.protocol.rank_messages import AnyWireMessage
from mallob_py.protocol.rank_stimuli import AnyRankStimulus, Said
from mallob_py.simulation import fuzz
from mallob_py.simulation.lives import CLUSTERS
from mallob_py.simulation.plan import draw_plan
from mallob_py.simulation.scenario import failure_of, schedule_of
from mallob_py.simulation.shrinking import Shrunk, minimal

#: time limit for shrinking, more than enough for runs of this size on a busy machine
_SHRINK_SECONDS = 2 * DEADLINE_S
_SEEDS = 2000
_SIZE_MAX = 31
_DEEDS_MAX = 40
#: words in the text of the failures that are shrunk here
_RACE = "which is over"


def break_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the rule of race 2: PEs adopt also outdated requests."""
    monkeypatch.setattr(LocalWorkers, "is_obsolete", lambda _workers, _request: False)


@pytest.fixture(name="all_found", scope="module")
def fixture_all_found() -> list[fuzz.Found]:
    """Return the first failures with the broken rule.

    The failing seeds differ after every change of plans or of the order of messages.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_the_rule(monkeypatch)
        plans = map(draw_plan, range(_SEEDS))
        short = (plan for plan in plans if plan.size <= _SIZE_MAX and len(plan.deeds) <= _DEEDS_MAX)
        failures = (found for plan in short if (found := fuzz.play(plan.seed)) is not None)
        raced = (found for found in failures if _RACE in found.failure.kind and not found.plan.changes)
        return list(islice(raced, 3))


@pytest.fixture(name="all_shrunk", scope="module")
def fixture_all_shrunk(all_found: list[fuzz.Found]) -> list[Shrunk]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_the_rule(monkeypatch)
        return [CLUSTERS.shrink(found.plan, found.failure, _SHRINK_SECONDS) for found in all_found]


@pytest.fixture(name="found")
def fixture_found(monkeypatch: pytest.MonkeyPatch, all_found: list[fuzz.Found]) -> list[fuzz.Found]:
    """Return the first failures, and break the rule in the test, too."""
    break_the_rule(monkeypatch)
    return all_found


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


@pytest.mark.parametrize("which", range(3))
def test_a_failing_life_shrinks_to_a_few_deeds_and_the_few_messages_that_race(
    found: list[fuzz.Found], all_shrunk: list[Shrunk], which: int
) -> None:
    shrunk = all_shrunk[which]
    assert shrunk.failure.kind == found[which].failure.kind
    assert len(shrunk.plan.deeds) <= 5
    assert shrunk.plan.size <= found[which].plan.size
    assert shrunk.plan.special is not None
    assert len(shrunk.plan.special) < 20


def test_a_shrunk_plan_from_its_file_fails_in_the_same_way_and_not_with_the_rule_in_force(
    monkeypatch: pytest.MonkeyPatch, found: list[fuzz.Found], tmp_path: Path
) -> None:
    told = fuzz.tell(found[0], tmp_path, seconds_max=600.0)
    (path,) = tmp_path.iterdir()
    assert f"--replay {path}" in told
    assert "each delay is the shortest" in told
    plan = CLUSTERS.from_json(path.read_bytes())
    failure = failure_of(plan)
    assert failure is not None
    assert failure.kind == found[0].failure.kind
    assert fuzz.replay_file(path) == 1
    monkeypatch.undo()
    assert failure_of(plan) is None
    assert fuzz.replay_file(path) == 0


@pytest.mark.parametrize("content", ["", "{}", '{"seed": "x"}'])
def test_a_file_without_a_plan_is_refused_in_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    assert fuzz.replay_file(path) == 2
    path.write_text(content)
    assert fuzz.replay_file(path) == 2
    missing, bad = capsys.readouterr().err.splitlines()
    assert "No such file" in missing
    assert bad.startswith(f"{path} holds no plan")


def test_a_schedule_tells_all_deeds_and_the_end(found: list[fuzz.Found]) -> None:
    plan, failure = found[0].plan, found[0].failure
    told = schedule_of(plan)
    for deed in plan.deeds:
        assert f"{deed.at_s:.6f}   job {deed.job}: {type(deed).__name__.lower()}" in told
    assert f"failure at {failure.at_s:.6f}: {failure.kind}" in told


@pytest.mark.parametrize("which", range(3))
def test_a_schedule_tells_when_messages_arrive_as_the_cluster_delivers_them(
    found: list[fuzz.Found], all_shrunk: list[Shrunk], which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule is right even if only some messages are slow, and some wait for an earlier message."""
    for plan in (found[which].plan, all_shrunk[which].plan):
        arrived: list[tuple[float, int, int, AnyWireMessage]] = []
        with monkeypatch.context() as noting:
            noting.setattr(Node, "handle", _noting(arrived, Node.handle))
            assert failure_of(plan) is not None
        told = schedule_of(plan).split("deliveries:\n")[1].splitlines()[:-1]
        assert len(told) == min(40, len(arrived))
        lines = {
            f"-> {at_s:.6f}   {source} to {dest}: {message}"[:100] for at_s, source, dest, message in arrived
        }
        for line in told:
            assert line[line.index("->") :].removesuffix("...")[:100] in lines


def _noting(
    arrived: list[tuple[float, int, int, AnyWireMessage]],
    handle: Callable[[Node, AnyRankStimulus, float], None],
) -> Callable[[Node, AnyRankStimulus, float], None]:
    def noted(node: Node, stimulus: AnyRankStimulus, now: float) -> None:
        if isinstance(stimulus, Said):
            arrived.append((now, stimulus.source, stimulus.dest, stimulus.message))
        handle(node, stimulus, now)

    return noted


def test_the_kind_of_a_failure_does_not_depend_on_its_numbers(found: list[fuzz.Found]) -> None:
    assert len({each.plan.seed for each in found}) == 3
    (kind,) = {each.failure.kind for each in found}
    assert not any(letter.isdigit() for letter in kind)


def test_shrinking_ends_in_time_with_what_it_has(found: list[fuzz.Found]) -> None:
    shrunk = CLUSTERS.shrink(found[0].plan, found[0].failure, seconds_max=0.0)
    assert (shrunk.plan, shrunk.tried) == (found[0].plan, 0)
