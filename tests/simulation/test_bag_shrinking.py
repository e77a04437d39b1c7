"""A failing random run of a bag job is reduced to a small run with the same failure; a rule is broken here on
purpose.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mallob_py.kit.bags.ledger import Ledger
from mallob_py.simulation import bags, fuzz
from mallob_py.simulation.bags import BagCluster
from mallob_py.simulation.lives import BAGS

_SEEDS = range(1400, 1900)
#: time limit for shrinking, a hundred times the usual time
_SHRINK_SECONDS = 100.0


@pytest.fixture(name="broken")
def fixture_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break a rule: the root counts repayments of loans that it does not know."""
    settled = Ledger._settled

    def count_all(ledger: Ledger, source: Any, message: Any, now: float) -> None:
        if message.final and message.number not in ledger.books.given and ledger.books.root is not None:
            ledger.books.take_in(ledger.books.root, message.state)
        settled(ledger, source, message, now)

    monkeypatch.setattr(Ledger, "_settled", count_all)


def _is_small(plan: bags.BagPlan) -> bool:
    """Tell whether a plan is played in hundredths of a second, because shrinking plays it some hundred
    times.
    """
    return plan.depth <= 10 and len(plan.events) <= 5 and plan.volume <= 4


@pytest.mark.usefixtures("broken")
def test_a_life_that_counts_twice_is_shrunk_told_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = (seed for seed in _SEEDS if _is_small(bags.draw_plan(seed)))
    found = next(found for seed in small if (found := fuzz.play(seed, BAGS)) is not None)
    shrunk = BAGS.shrink(found.plan, found.failure, _SHRINK_SECONDS)
    assert shrunk.failure.kind == found.failure.kind
    assert "WrongResult" in shrunk.failure.kind
    assert shrunk.is_minimal
    assert len(shrunk.plan.events) <= 3
    assert shrunk.plan.slow is not None
    assert len(shrunk.plan.slow) <= 5

    told = fuzz.tell(fuzz.Found(shrunk.plan, shrunk.failure), tmp_path, 0.0, BAGS)
    path = tmp_path / f"failure_{found.plan.seed}.json"
    assert f"--bags --replay {path}" in told
    assert BAGS.from_json(path.read_bytes()) == shrunk.plan
    assert fuzz.replay_file(path) == 1
    assert "Settle" in capsys.readouterr().out


def test_a_plan_without_a_part_plays_like_the_plan_with_it() -> None:
    plan = msgspec.structs.replace(bags.draw_plan(28), events=())
    longer = msgspec.structs.replace(plan, events=(bags.Event(1e9, bags.EventKind.CRASH, 0),))
    lives = [BagCluster(each) for each in (plan, longer)]
    outcomes = [life.run() for life in lives]
    assert outcomes[0] == outcomes[1]
    assert len(lives[0].deliveries) > 10
    assert list(lives[0].deliveries) == list(lives[1].deliveries)
