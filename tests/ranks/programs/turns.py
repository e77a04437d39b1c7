"""A minimal event loop over the transport, shared by the test programs of this folder."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable

from waiting import DEADLINE_S

from mallob_py.runtime.world.mpi import leave, start_mpi
from mallob_py.runtime.world.transport import Arrival, Transport


def join() -> Transport:
    return Transport(start_mpi())


def run_until(
    transport: Transport,
    done: Callable[[], bool],
    handle: Callable[[Arrival], None],
    act: Callable[[], None] = lambda: None,
    park_s: float = 0.05,
) -> None:
    """Run the event loop until `done()`; fail with a message if that takes too long."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        for arrival in transport.receive():
            handle(arrival)
        act()
        transport.flush()
        if done():
            return
        if time.monotonic() > deadline_s:
            print(f"rank {transport.rank}: not done in time", file=sys.stderr, flush=True)
            leave(transport.rank, 3, closed=False)
        readable, _, _ = select.select(transport.descriptors(), [], [], transport.park_timeout_s(park_s))
        if readable:
            transport.wake()


def end(transport: Transport) -> None:
    """Close as agreed; rank 0 reports the end on stdout."""
    closed = transport.close()
    if transport.rank == 0:
        print("closed" if closed else "not closed", flush=True)
    leave(transport.rank, 0 if closed else 4, closed)
