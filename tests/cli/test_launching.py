from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mallob_py.cli import CommandError, launching, options
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


def test_a_service_in_a_folder_that_was_removed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_allows_forks", lambda: True)
    monkeypatch.setattr(launch, "supervise", lambda *_: 0)
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    parsed: Any = options.parse("serve", ["-n", "1"])
    with pytest.raises(CommandError, match="the working folder has been removed"):
        launching.run_serve(parsed)
