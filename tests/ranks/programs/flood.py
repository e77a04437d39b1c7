"""Rank 0 floods rank 1, which makes no calls of MPI, and meanwhile exchanges messages with rank 2."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from turns import DEADLINE_S, end, join, run_until

from mallob_py.runtime.world.transport import Arrival, Transport

FLOOD, ROUNDS = 1000, 100
ECHO, RELEASE = b"echo", b"release"


def flood(transport: Transport, marker: Path) -> None:
    for number in range(FLOOD):
        transport.send(1, number.to_bytes(200, "little"))
    echoes = 0

    def again(_arrival: Arrival) -> None:
        nonlocal echoes
        echoes += 1
        transport.send(2, ECHO if echoes < ROUNDS else RELEASE)

    transport.send(2, ECHO)
    run_until(transport, lambda: echoes == ROUNDS, again)
    print("third rank answered", flush=True)
    marker.touch()


def stay_silent(transport: Transport, marker: Path) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not marker.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
    numbers: list[int] = []
    run_until(
        transport, lambda: len(numbers) == FLOOD, lambda a: numbers.append(int.from_bytes(a.data, "little"))
    )
    assert numbers == list(range(FLOOD))
    print("flood arrived in order", flush=True)


def echo(transport: Transport) -> None:
    released = False

    def answer(arrival: Arrival) -> None:
        nonlocal released
        released = arrival.data == RELEASE
        if not released:
            transport.send(arrival.source, ECHO)

    run_until(transport, lambda: released, answer)


def main() -> None:
    marker = Path(sys.argv[1])
    transport = join()
    if transport.rank == 0:
        flood(transport, marker)
    elif transport.rank == 1:
        stay_silent(transport, marker)
    else:
        echo(transport)
    end(transport)


main()
