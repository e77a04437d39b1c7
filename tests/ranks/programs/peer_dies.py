"""The last rank kills itself; the others notice the death, go on, and leave without MPI_Finalize."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from turns import join, run_until

from mallob_py.runtime.world.mpi import leave
from mallob_py.runtime.world.transport import Arrival

ROUNDS = 50


def main() -> None:
    transport = join()
    me, victim = transport.rank, transport.size - 1
    if me == victim:
        run_until(transport, lambda: True, lambda _arrival: None)
        os.kill(os.getpid(), signal.SIGKILL)
    lost: list[int] = []
    run_until(transport, lambda: bool(lost), lambda _a: None, lambda: lost.extend(transport.take_lost()))
    assert lost == [victim]
    transport.send(victim, b"ignored")
    left = ROUNDS

    def again(_arrival: Arrival) -> None:
        nonlocal left
        left -= 1
        transport.send(1 - me, b"still here")

    if me in (0, 1):
        transport.send(1 - me, b"still here")
        run_until(transport, lambda: left <= 0, again)
    # mpiexec reports a lost rank as a failure in any case, so the ranks report by files. The files also keep
    # the survivors together, since a rank that leaves looks dead to the others.
    folder = Path(sys.argv[1])
    (folder / str(me)).touch()
    run_until(transport, lambda: len(list(folder.iterdir())) == victim, lambda _arrival: None)
    closed = transport.close(timeout_s=5.0)
    assert not closed
    leave(me, 0, closed)


main()
