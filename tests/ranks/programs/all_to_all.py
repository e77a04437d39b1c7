"""Every rank sends messages of random sizes to random others; receivers check order and loss."""

from __future__ import annotations

import random
import sys

from turns import end, join, run_until

from mallob_py.runtime.transport import Arrival, Channel

SIZES_BYTES = (0, 1, 40, 300, 5_000, 8_192, 20_000, 100_000)
PER_TURN_MAX = 30


def main() -> None:
    per_rank = int(sys.argv[1])
    transport = join()
    me, size = transport.rank, transport.size
    randomness = random.Random(me)
    sent = {(peer, channel): 0 for peer in range(size) for channel in Channel}
    received = dict(sent)
    expected: dict[int, list[int]] = {}
    left = per_rank

    def act() -> None:
        nonlocal left
        for _ in range(min(left, randomness.randint(1, PER_TURN_MAX))):
            peer = randomness.choice([r for r in range(size) if r != me])
            channel = randomness.choice((Channel.CONTROL, Channel.CONTROL, Channel.BULK))
            number = sent[peer, channel]
            filling = number % 251
            data = b"D" + number.to_bytes(4, "little") + bytes([filling]) * randomness.choice(SIZES_BYTES)
            (transport.send if channel is Channel.CONTROL else transport.send_bulk)(peer, data)
            sent[peer, channel] += 1
            left -= 1
            if left == 0:
                for other in range(size):
                    if other != me:
                        counts = b"".join(sent[other, c].to_bytes(4, "little") for c in Channel)
                        transport.send(other, b"E" + counts)

    def handle(arrival: Arrival) -> None:
        source, channel, data = arrival
        if data[:1] == b"E":
            assert channel is Channel.CONTROL
            expected[source] = [int.from_bytes(data[1 + 4 * c : 5 + 4 * c], "little") for c in Channel]
            assert received[source, Channel.CONTROL] == expected[source][Channel.CONTROL]
            return
        number = int.from_bytes(data[1:5], "little")
        assert number == received[source, channel], (me, source, channel, number)
        assert data[5:].count(number % 251) == len(data) - 5
        received[source, channel] += 1

    def done() -> bool:
        return (
            left == 0
            and len(expected) == size - 1
            and all(received[peer, c] == expected[peer][c] for peer in expected for c in Channel)
        )

    run_until(transport, done, handle, act)
    print(f"complete {me}", flush=True)
    end(transport)


main()
