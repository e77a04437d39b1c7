"""The short form of `scripts/large_trees.py`; the long one counts billions of nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.runtime.world.launch import find_launcher
from mallob_py.runtime.world.mpi import LaunchError

ROOT = Path(__file__).parents[2]


def large_trees(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "apps"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, ROOT / "scripts/large_trees.py", *arguments],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder)},
    )


@pytest.mark.slow
def test_trees_are_counted_exactly_while_workers_come_go_and_are_killed_and_a_rank_and_the_service_too(
    tmp_path: Path,
) -> None:
    try:
        find_launcher()
    except LaunchError as error:
        pytest.skip(str(error))
    done = large_trees(tmp_path, "T3", "QUEENS 12", "--losses", "1", "--restarts", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("exact") == 4, done.stdout  # as each ends, and in the table


def test_a_tree_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    done = large_trees(tmp_path, "T4", "T17")
    assert done.returncode == 2
    assert "no tree is called 'T17': there are UTS 8, " in done.stderr
