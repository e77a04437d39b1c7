"""A job's description as flat bytes: application, configuration and named numpy arrays.

Layout: 8 bytes header length (little endian), a msgpack header, then each array at a multiple of 64 bytes, so
that workers can use a mapped file without copying. Ranks pass these bytes on undecoded, and encode only
descriptions without arrays, because numpy, imported only for arrays, would double a rank's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNMENT = 64


class _Array(msgspec.Struct, array_like=True, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Header(msgspec.Struct, array_like=True, frozen=True):
    application: str
    configuration: dict[str, Any]
    arrays: list[_Array]


class DecodedDescription(msgspec.Struct, frozen=True):
    """A decoded description; its arrays are read-only views of the bytes."""

    application: str
    configuration: dict[str, Any]
    payload: Mapping[str, NDArray[Any]]


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def encode_description(
    application: str, configuration: Mapping[str, Any], payload: Mapping[str, NDArray[Any]]
) -> bytes:
    """Return a description as bytes."""
    return b"".join(description_parts(application, configuration, payload))


def description_parts(
    application: str, configuration: Mapping[str, Any], payload: Mapping[str, NDArray[Any]]
) -> list[bytes | memoryview]:
    """Return a description as pieces; a large array is a piece of its own, not copied.

    Offsets of arrays count from the header's end. Raises TypeError for an array of Python objects.
    """
    specs: list[_Array] = []
    body: list[bytes | memoryview] = []
    size = 0
    for name, array in payload.items():
        import numpy as np

        array = np.asarray(array, order="C")
        if array.dtype.hasobject:
            raise TypeError(f"array {name!r} of the payload holds Python objects; convert it to numbers")
        offset = _aligned(size)
        specs.append(_Array(name, array.dtype.str, array.shape, offset))
        body += (bytes(offset - size), array.tobytes() if array.nbytes < 4096 else _bytes_of(array))
        size = offset + array.nbytes
    header = msgspec.msgpack.encode(_Header(application, dict(configuration), specs))
    padding = bytes(_aligned(8 + len(header)) - 8 - len(header))
    return [len(header).to_bytes(8, "little"), header, padding, *body]


def _bytes_of(array: NDArray[Any]) -> memoryview:
    # Arrays of dates have no memoryview of their own.
    return array.reshape(-1).view("u1").data


def application_named_in(flat: bytes | bytearray | memoryview) -> str:
    """Return the application's name in a description. The beginning of the description suffices."""
    return _header(memoryview(flat))[0].application


def decode_description(flat: bytes | bytearray | memoryview) -> DecodedDescription:
    """Decode the bytes that `encode_description` returned, without copying arrays."""
    view = memoryview(flat).toreadonly()
    header, start = _header(view)
    payload: dict[str, NDArray[Any]] = {}
    for spec in header.arrays:
        import numpy as np

        dtype = np.dtype(spec.dtype)
        count = int(np.prod(spec.shape, dtype=np.int64))
        begin = start + spec.offset
        payload[spec.name] = np.frombuffer(view, dtype, count, begin).reshape(spec.shape)
    return DecodedDescription(header.application, header.configuration, payload)


#: decoder of headers; made before processes are forked, because else each of them would make its own
_decode_header = msgspec.msgpack.Decoder(_Header).decode


def _header(view: memoryview) -> tuple[_Header, int]:
    """Return the header and the offset of its end."""
    end = 8 + int.from_bytes(view[:8], "little")
    return _decode_header(view[8:end]), _aligned(end)
