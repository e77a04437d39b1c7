"""Rank 0 gives up on rank 1: queued and later messages are not sent, and rank 0 rings rank 1 for the messages
sent before.
"""

from __future__ import annotations

import select

from turns import join
from waiting import DEADLINE_S

from mallob_py.runtime.world.mpi import leave

transport = join()
if transport.rank == 0:
    for _ in range(100):
        transport.send(1, b"x")
    assert transport.has_pending()
    transport.give_up_on(1)
    transport.send(1, b"y")
    assert not transport.has_pending()
    assert transport.take_lost() == []
    print("dropped", flush=True)
else:
    rung, _, _ = select.select(transport.descriptors()[:1], [], [], DEADLINE_S)
    print("rung" if rung else "silent", flush=True)
closed = transport.close(timeout_s=0.5)
assert not (closed and transport.rank == 0)
leave(transport.rank, 0, closed=True)
