"""The short form of `scripts/kill_and_restart.py`; the long one takes minutes."""

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


@pytest.mark.slow
def test_jobs_that_flow_in_while_all_is_killed_get_exactly_one_right_reply_each(tmp_path: Path) -> None:
    try:
        find_launcher()
    except LaunchError as error:
        pytest.skip(str(error))
    path = os.pathsep.join([str(ROOT), str(ROOT / "apps"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "scripts/kill_and_restart.py",
            "--jobs",
            "40",
            "--kills",
            "4",
            "--stops",
            "0",
            "--ranks",
            "2",
        ],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one right reply each" in done.stdout
    assert "kill" in done.stdout
