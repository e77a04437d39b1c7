"""A rank without MPI, which a test kills: starts workers of all kinds, prints their pids, waits.

Prints the pids of the fork server, a running, a suspended, a parked and the idle processes.
"""

from __future__ import annotations

import select
import sys
import time

from mallob_py.kit.payload import encode_description
from mallob_py.protocol.stimuli import WorkerStarted
from mallob_py.runtime import worker_wire as wire
from mallob_py.runtime.workers.links import ForkServer
from mallob_py.runtime.workers.pool import WorkerPool


def main() -> None:
    server = ForkServer.start()
    pool = WorkerPool(server)
    for number, application in enumerate(("SPIN", "SPIN", "PARK")):
        description = wire.Inline(bytes(encode_description(application, {}, {})))
        pool.start((number, 0), 0, 1, (), description)
    started = 0
    while started < 3 or not pool.processes.idle:
        select.select([pool], [], [], min(1.0, max(0.0, pool.next_deadline() - time.monotonic())))
        started += sum(isinstance(event, WorkerStarted) for event in pool.poll())
    pool.suspend((1, 0))
    pids = [
        server.pid,
        *(pool.pid_of((number, 0)) for number in range(3)),
        *(link.pid for link in pool.processes.idle),
    ]
    print(*pids, flush=True)
    while sys.stdin.readline():
        pass
    pool.close()


if __name__ == "__main__":
    main()
