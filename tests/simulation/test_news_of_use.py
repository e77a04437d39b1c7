"""News of what workers have used on their way through random lives: they harm nobody, and most arrive."""

from __future__ import annotations

import pytest

from mallob_py.protocol.stimuli import AnyStimulus, WorkerUsed
from mallob_py.simulation import scenario
from mallob_py.simulation.cluster import Process
from mallob_py.simulation.plan import AnyDeed, draw_plan

_PEAK_BYTES = 1 << 20


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_news_of_use_leave_every_random_life_in_order(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stimuli_of = scenario._stimuli_of

    def with_news_of_use(deed: AnyDeed, worker: int, process: Process | None) -> tuple[AnyStimulus, ...]:
        return (WorkerUsed(worker, 0.5, _PEAK_BYTES), *stimuli_of(deed, worker, process))

    monkeypatch.setattr(scenario, "_stimuli_of", with_news_of_use)
    known = set()
    for seed in range(first, first + 20):
        life = scenario.Scenario(draw_plan(seed))
        life.run()
        assert set(life.cluster.ended) == set(life.cluster.submitted)
        known |= {ended.stats.peak_memory_bytes for ended in life.cluster.ended.values()}
    assert known == {0, _PEAK_BYTES}
