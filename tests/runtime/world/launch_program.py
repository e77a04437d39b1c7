"""The program of test_launch.py: `host` stands for the command line, the other modes are ranks.

host N MODE [ARGUMENT]   launch_world of N ranks of this file in MODE
code C                   ranks end; rank 0 with exit code C, the others with 0
wait FOLDER              ranks write their pid to FOLDER/<rank> and wait to be asked to stop
stubborn FOLDER          the same, but the ranks ignore the request
crash                    rank 1 dies before the others are done
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

from mallob_py.runtime.world import launch
from mallob_py.runtime.world.mpi import abort_world, leave, start_mpi, stop_signals
from mallob_py.runtime.world.mpich_files import forget_shared

LIFETIME_S = 60.0


def host(ranks: int, arguments: list[str]) -> int:
    return launch.launch_world(ranks, [__file__, *arguments])


def rank_program(mode: str, argument: str) -> None:
    reader, writer = os.pipe()
    for each in stop_signals():
        ignore = mode == "stubborn"
        signal.signal(each, signal.SIG_IGN if ignore else lambda *_: os.write(writer, b"!") and None)
    world = start_mpi()
    rank = world.Get_rank()
    world.Barrier()
    forget_shared()  # as ranks of a service do: MPI's shared file must not outlive killed ranks
    if mode == "crash" and rank == 1:
        abort_world(7)
    if mode in ("wait", "stubborn"):
        partial = Path(argument) / f"~{rank}"
        partial.write_text(str(os.getpid()), encoding="ascii")
        partial.rename(Path(argument) / str(rank))
    if mode == "wait":
        asked, _, _ = select.select([reader], [], [], LIFETIME_S)
        leave(rank, 0 if asked else 9, closed=True)
    if mode in ("stubborn", "crash"):
        time.sleep(LIFETIME_S)
    leave(rank, int(argument or 0) if rank == 0 else 0, closed=True)


def main() -> None:
    mode, *arguments = sys.argv[1:]
    if mode == "host":
        sys.exit(host(int(arguments[0]), arguments[1:]))
    rank_program(mode, arguments[0] if arguments else "")


main()
