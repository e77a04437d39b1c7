"""numpy starts no threads in ranks and fork servers, unless the user asks for them."""

from __future__ import annotations

import os
import subprocess
import sys

from waiting import DEADLINE_S

_COUNT = """
import os
from mallob_py.runtime.processes import want_no_numeric_threads
want_no_numeric_threads()
import numpy
print(len(os.listdir("/proc/self/task")), os.environ["OMP_NUM_THREADS"])
"""


def _counted(**environment: str) -> list[str]:
    inherited = {name: one for name, one in os.environ.items() if not name.endswith("_NUM_THREADS")}
    return subprocess.run(
        [sys.executable, "-c", _COUNT],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    ).stdout.split()


def test_numpy_starts_no_threads() -> None:
    assert _counted() == ["1", "1"]


def test_what_the_user_has_set_stays() -> None:
    assert _counted(OMP_NUM_THREADS="2")[1] == "2"
