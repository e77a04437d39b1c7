"""Ranks, of which rank 1 stops itself at the given moment; the others must end by themselves.

never_comes.py MOMENT [LOCKED]    MOMENT: init, collective or finalize; LOCKED: MPI keeps Python's lock
"""

from __future__ import annotations

import os
import signal
import sys

from mallob_py.runtime.world import mpi
from mallob_py.runtime.world.deadlines import at_most

PATIENCE_S = 1.0
#: patience for starts that must succeed, also on a busy machine
START_PATIENCE_S = 60.0

moment, rank = sys.argv[1], int(os.environ["PMI_RANK"])
if sys.argv[2:]:
    mpi.is_of_wheel = lambda: False


def stop_here(now: str) -> None:
    if rank == 1 and moment == now:
        os.kill(os.getpid(), signal.SIGSTOP)


stop_here("init")
with at_most(PATIENCE_S if moment == "init" else START_PATIENCE_S, "other ranks to start"):
    world = mpi.start_mpi()
with at_most(PATIENCE_S, "a barrier"):
    stop_here("collective")
    world.Barrier()
stop_here("finalize")
mpi.FINALIZE_PATIENCE_S = PATIENCE_S
mpi.leave(rank, 0, closed=True)
