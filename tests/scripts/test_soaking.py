"""What the soak looks at, told apart: a rank that stays large."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from soaking import rounds
from soaking.processes import Family, Wrong, proportional_bytes


def test_a_rank_that_stays_large_at_the_end_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Family, "of", lambda mark: Family([os.getpid()], [], []))
    size_bytes = proportional_bytes(os.getpid())
    assert size_bytes > 0
    monkeypatch.setattr(rounds, "RANK_AT_END_MAX_BYTES", 2 * size_bytes)
    rounds.check_size_at_end("mark")
    monkeypatch.setattr(rounds, "RANK_AT_END_MAX_BYTES", size_bytes // 2)
    with pytest.raises(Wrong, match="less than"):
        rounds.check_size_at_end("mark", deadline_s=0.0)
