"""News of what workers have used on their way through random lives: they harm nobody, and most arrive."""

from __future__ import annotations

import pytest

from mallob_py.protocol.pe import PE
from mallob_py.simulation import scenario
from mallob_py.simulation.plan import AnyDeed, draw_plan

_PEAK_BYTES = 1 << 20


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_news_of_use_leave_every_random_life_in_order(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = scenario._tell

    def tell_of_use_too(pe: PE, deed: AnyDeed, worker: int, now: float) -> None:
        pe.worker_used(worker, 0.5, _PEAK_BYTES, now)
        tell(pe, deed, worker, now)

    monkeypatch.setattr(scenario, "_tell", tell_of_use_too)
    known = set()
    for seed in range(first, first + 20):
        life = scenario.Scenario(draw_plan(seed))
        life.run()
        assert set(life.cluster.ended) == set(life.cluster.submitted)
        known |= {ended.stats.peak_memory_bytes for ended in life.cluster.ended.values()}
    assert known == {0, _PEAK_BYTES}
