"""Bags whose workers are taken away: they hand over what they have, and nothing is done twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, Running, needs_mpiexec, serving

pytestmark = needs_mpiexec

APPS = {
    "PYTHONPATH": f"{ROOT}:{ROOT / 'apps'}:{Path(__file__).parent / 'programs'}",
    "MALLOB_PY_APPS": "NAPS=bag_apps:NapsApplication",
}
NAPS, NAP_S = 2000, 0.004
SUM = sum(range(NAPS))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), ranks=4, env=APPS) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output


def test_workers_that_are_taken_away_hand_over_what_they_have(service: Running) -> None:
    naps = service.submit("naps", application="NAPS", configuration={"naps": NAPS, "nap_s": NAP_S})
    job = service.await_event("accepted", name="naps")["job"]
    takers = itertools.count()

    def left() -> list[dict[str, Any]]:
        return [event for event in service.events("left") if event["job"] == job]

    while not left() and not naps.exists():
        service.ask(f"taker{next(takers)}", application="SLEEP", priority=3.0, wallclock_limit="200ms")
    result = service.reply(naps)["result"]
    assert (result["value"], result["tasks"]) == (SUM, NAPS)
    assert left()
