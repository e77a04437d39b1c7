"""Envelopes: messages between ranks, with their channel and a header.

The header of 16 bytes names the generation of the world, the source PE and the destination PE; it costs 0.3
us per message, both ends together. PE numbers are valid only within their generation; messages from rank to
rank (descriptions, the end) name PE 0.

This module is apart from the transport, because importing the transport starts MPI.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar


class Channel(enum.IntEnum):
    """The channels: CONTROL for protocol messages, BULK for large data; no order holds between the two."""

    CONTROL = 0
    BULK = 1


class Arrival(NamedTuple):
    """A received message. `data` belongs to the receiver."""

    source: int
    channel: Channel
    data: bytes | bytearray


_HEADER = struct.Struct("<QII")
_SIZE_BYTES = _HEADER.size
_pack, _unpack = _HEADER.pack, _HEADER.unpack_from

T = TypeVar("T")


class WireError(Exception):
    """Error: another rank sent bytes that no rank sends; that rank or the network is broken."""


def seal(generation: int, source: int, dest: int, body: bytes) -> bytes:
    """Return a message in its envelope."""
    return _pack(generation, source, dest) + body


def open_envelope(
    data: bytes | bytearray, decode: Callable[[bytes | memoryview], T]
) -> tuple[int, int, int, T]:
    """Return (generation, source PE, destination PE, message). Raises WireError."""
    if len(data) < _SIZE_BYTES:
        raise WireError(f"{len(data)} bytes, less than a header")
    generation, source, dest = _unpack(data)
    # Small messages arrive as bytes, large messages as bytearray: copying a few bytes is cheaper than a view.
    body = data[_SIZE_BYTES:] if type(data) is bytes else memoryview(data)[_SIZE_BYTES:]
    try:
        return generation, source, dest, decode(body)
    except ValueError as error:  # msgspec's decoding errors are ValueErrors
        raise WireError(str(error)) from error
