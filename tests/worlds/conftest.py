"""Tests that all ranks of one world run together: mpiexec -n 3 python -m pytest --with-mpi tests/worlds"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks/programs"))
