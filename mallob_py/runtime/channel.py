"""What the transport hands over: messages by channel. Apart from it, since importing it starts MPI."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Channel(enum.IntEnum):
    """CONTROL for protocol messages, BULK for large data; no order between the two."""

    CONTROL = 0
    BULK = 1


class Arrival(NamedTuple):
    """A received message. `data` belongs to the receiver."""

    source: int
    channel: Channel
    data: bytes | bytearray
