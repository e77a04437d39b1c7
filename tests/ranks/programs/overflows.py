"""Rank 1 receives nothing: when too many bytes wait for it, rank 0 counts it as lost and drops them."""

from __future__ import annotations

from turns import join

from mallob_py.runtime.world import transport as module
from mallob_py.runtime.world.mpi import leave

module.WAITING_BYTES_MAX = 8 << 20
transport = join()
if transport.rank == 0:
    for _ in range(6):
        assert transport.take_lost() == []
        transport.send(1, bytes(1 << 20))
    for _ in range(6):
        transport.send(1, bytes(1 << 20))
    assert transport.take_lost() == [1]
    assert transport.how_lost(1) == "does not take its messages any more"
    assert not transport.has_pending()
    print("lost", flush=True)
closed = transport.close(timeout_s=0.5)
assert not (closed and transport.rank == 0)
leave(transport.rank, 0, closed=True)
