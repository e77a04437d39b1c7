"""What a rank that joins takes along of the one that starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mallob_py.runtime.world import newcomer_process
from mallob_py.runtime.world.mpi import EXIT_FILE_VARIABLE, INVITED_VARIABLE
from mallob_py.runtime.world.newcomer_process import Site


class FakePopen:
    """Started by nobody."""

    pid = 1

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env


def test_who_joins_on_this_host_knows_nothing_of_the_launchers_exit_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[dict[str, str]] = []

    def start(_arguments: list[str], env: dict[str, str], _invitation: bytes) -> FakePopen:
        started.append(env)
        return FakePopen(env)

    monkeypatch.setattr(newcomer_process, "_start_rank", start)
    monkeypatch.setenv(EXIT_FILE_VARIABLE, str(tmp_path / "exit-code"))
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("KEPT", "1")
    newcomer_process.start(Site("here"), b"", tmp_path / "words")
    (env,) = started
    assert EXIT_FILE_VARIABLE not in env
    assert "PMI_RANK" not in env
    assert env["KEPT"] == env[INVITED_VARIABLE] == "1"
