"""Sinks of outcomes: the results of a map."""

from __future__ import annotations

import concurrent.futures
from typing import Any

from waiting import DEADLINE_S

from mallob_py.api.calls.sinks import MapResults
from mallob_py.api.shown import NO_BAR


def test_the_future_of_a_cancelled_map_ends_a_wait() -> None:
    cancelled: list[str] = []
    results: MapResults[Any] = MapResults(
        2,
        is_ordered=True,
        is_collecting=False,
        deadline_s=None,
        cancel=lambda: cancelled.append("all"),
        bar=NO_BAR,
    )
    future = results.future()
    assert future.cancel()
    assert concurrent.futures.wait([future], 1).done == {future}
    assert list(concurrent.futures.as_completed([future], DEADLINE_S)) == [future]
    assert cancelled == ["all"]
    results.sink.deliver([0, 1], [True, True], [0, 1])
    assert future.cancelled()
