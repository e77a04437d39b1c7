"""Measures the CPU share of idle ranks and the round trip between ranks 0 and 1.

Prints both; also run by hand: mpiexec -n 16 python tests/ranks/programs/idle_and_ping.py 5 500
(seconds of idleness, round trips).
"""

from __future__ import annotations

import sys
import time

from turns import end, join, run_until

from mallob_py.runtime.world.transport import Arrival

PING, CLOSE = b"p" * 60, b"close"
GAP_S = 0.002


def main() -> None:
    idle_s, rounds = float(sys.argv[1]), int(sys.argv[2])
    transport = join()
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    shares: list[float] = []  # rank 0 collects the shares; some ranks may have ended their idle time earlier

    def note_share(arrival: Arrival) -> None:
        shares.append(float(arrival.data.decode()))

    run_until(transport, lambda: time.monotonic() >= began_s + idle_s, note_share)
    share = (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)
    if transport.rank == 0:
        shares.append(share)
        run_until(transport, lambda: len(shares) == transport.size, note_share)
        trips_us: list[float] = []
        sent_s = 0.0
        waiting = False

        def pong(_arrival: Arrival) -> None:
            nonlocal waiting
            trips_us.append((time.monotonic() - sent_s) * 1e6)
            waiting = False

        def ping() -> None:
            nonlocal sent_s, waiting
            if not waiting and time.monotonic() >= sent_s + GAP_S:
                waiting, sent_s = True, time.monotonic()
                transport.send(1, PING)

        run_until(transport, lambda: len(trips_us) >= rounds, pong, ping, park_s=GAP_S)
        for peer in range(1, transport.size):
            transport.send(peer, CLOSE)
        transport.flush()
        trips_us.sort()
        print(
            f"ranks {transport.size} idle CPU mean {100 * sum(shares) / len(shares):.2f} % "
            f"max {100 * max(shares):.2f} % round trip us p50 {trips_us[len(trips_us) // 2]:.0f} "
            f"p90 {trips_us[len(trips_us) * 9 // 10]:.0f} p99 {trips_us[len(trips_us) * 99 // 100]:.0f}",
            flush=True,
        )
    else:
        closing = False

        def answer(arrival: Arrival) -> None:
            nonlocal closing
            closing = closing or arrival.data == CLOSE
            if arrival.data == PING:
                transport.send(0, PING)

        transport.send(0, str(share).encode())
        run_until(transport, lambda: closing, answer)
    end(transport)


main()
