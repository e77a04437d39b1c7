"""Rank 0 closes while rank 1 does not join; later both leave without MPI_Finalize.

close_alone.py [dead]    dead: rank 0 hears that rank 1 has died, and waits no longer
"""

from __future__ import annotations

import sys

from turns import join, run_until

from mallob_py.runtime.world.mpi import leave

transport = join()
if transport.rank == 0:
    transport.send(1, b"leave after this and one more")
    transport.flush()
    if sys.argv[1:] == ["dead"]:
        news = iter([(), (1,)])
        closed = transport.close(timeout_s=3600.0, dead=lambda: next(news, ()))
    else:
        closed = transport.close(timeout_s=0.5)
    print("closed" if closed else "gave up", flush=True)
else:
    seen: list[bytes | bytearray] = []
    run_until(transport, lambda: bool(seen), lambda arrival: seen.append(arrival.data))
    # Rank 0 waits for this rank in vain; MPI_Finalize, which both reach, ends the world as usual.
    closed = True
leave(transport.rank, 0, closed=True)
