"""Rank 0 closes while rank 1 does not join; later both leave without MPI_Finalize's help."""

from __future__ import annotations

from turns import join, run_until

from mallob_py.runtime.world.mpi import leave

transport = join()
if transport.rank == 0:
    transport.send(1, b"leave after this and one more")
    transport.flush()
    closed = transport.close(timeout_s=0.5)
    print("closed" if closed else "gave up", flush=True)
else:
    seen: list[bytes | bytearray] = []
    run_until(transport, lambda: bool(seen), lambda arrival: seen.append(arrival.data))
    # Rank 0 waits for us in vain; MPI_Finalize, reached by both, ends the world as usual.
    closed = True
leave(transport.rank, 0, closed=True)
