from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mallob_py.cli import launching, options
from mallob_py.runtime.world import launch


def test_a_time_limit_counts_across_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def start_twice(ranks: int, run: Callable[..., Any], *_: Any) -> int:
        for _start in range(2):
            run(ranks, {}, None)
        return 0

    monkeypatch.setattr(launching, "_allows_forks", lambda: True)
    monkeypatch.setattr(launching, "_run_forks", lambda options, *_: given.append(options.time_limit_s))
    monkeypatch.setattr(launch, "supervise", start_twice)
    parsed: Any = options.parse("serve", ["-n", "2", "--time-limit", "1h"])
    assert launching.run_serve(parsed) == 0
    assert 3600 > given[0] > given[1] > 3000
