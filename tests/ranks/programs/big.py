"""Rank 0 sends large messages to all others on the bulk channel, with control messages between."""

from __future__ import annotations

import hashlib
import random

from turns import end, join, run_until

from mallob_py.runtime.transport import Arrival, Channel

SIZES_BYTES = (5_000_000, 262_144, 1, 3_333_333)


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZES_BYTES[number])


def main() -> None:
    transport = join()
    if transport.rank == 0:
        answered = 0

        def count(_arrival: Arrival) -> None:
            nonlocal answered
            answered += 1

        for number in range(len(SIZES_BYTES)):
            data = content(number)
            for peer in range(1, transport.size):
                transport.send_bulk(peer, data)
                transport.send(peer, hashlib.sha256(data).digest())
        run_until(transport, lambda: answered == transport.size - 1, count)
        print("all intact", flush=True)
    else:
        digests: dict[Channel, list[bytes]] = {channel: [] for channel in Channel}

        def check(arrival: Arrival) -> None:
            bulk = arrival.channel is Channel.BULK
            digests[arrival.channel].append(
                hashlib.sha256(arrival.data).digest() if bulk else bytes(arrival.data)
            )

        run_until(transport, lambda: all(len(d) == len(SIZES_BYTES) for d in digests.values()), check)
        assert digests[Channel.BULK] == digests[Channel.CONTROL]
        transport.send(0, b"intact")
        transport.flush()
    end(transport)


main()
