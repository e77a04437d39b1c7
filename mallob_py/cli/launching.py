"""Whether `solve` must first start its ranks; apart from what ranks do, which imports much more."""

from __future__ import annotations

import sys

from mallob_py.runtime.launch import default_ranks, launch_world
from mallob_py.runtime.world import in_mpi_world


def launched(ranks: int | None) -> int | None:
    """Run this same command on `ranks` ranks (default: one per core) and return its exit code.

    None: this process is a rank itself, started by a launcher or as the only one.
    """
    if in_mpi_world():
        return None
    wanted = ranks or default_ranks()
    return launch_world(wanted, ["-m", "mallob_py.cli.main", *sys.argv[1:]]) if wanted > 1 else None
