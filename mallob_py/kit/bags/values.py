"""Results of bags as bytes: numbers of any size, numpy arrays, and tuples of both. Nothing is pickled."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from mallob_py.kit.bags.bag import BagError

_encoder = msgspec.msgpack.Encoder()


def encode_value(value: Any) -> bytes:
    """Return a value as bytes. Raises BagError for other types."""
    return _encoder.encode(_plain(value))


def check_value(value: Any) -> None:
    """Refuse a value that `encode_value` cannot encode. Raises BagError."""
    match value:
        case tuple():
            for each in value:
                check_value(each)
        case np.ndarray() if value.dtype.kind in "biuf":
            pass
        case _:
            _plain(value)


def decode_value(data: bytes) -> Any:
    return _value(msgspec.msgpack.decode(data))


def _plain(value: Any) -> Any:
    match value:
        case bool():
            return value
        case float():  # subclasses, such as NumPy's numbers and texts, cannot be encoded
            return float(value)
        case str():
            return str.__str__(value)
        case bytes():
            return bytes(value)
        case int():
            return ["i", hex(value)]  # Python limits the number of decimal digits
        case tuple():
            return ["t", *map(_plain, value)]
        case np.ndarray() if value.dtype.kind in "biuf":
            little = value.astype(value.dtype.newbyteorder("<"), copy=False)
            return ["a", little.dtype.str, list(value.shape), little.tobytes()]
        case np.generic() if value.dtype.kind in "biuf" and value.dtype.char != "g":
            return _plain(value.item())
    raise BagError(
        f"the result of a bag must be a number, a numpy array or a tuple of them, not {value!r:.80}"
    )


def _value(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    match plain:
        case ["i", digits]:
            return int(digits, 0)  # checkpoints of earlier versions have decimal digits
        case ["t", *items]:
            return tuple(map(_value, items))
        case ["a", dtype, shape, data]:
            return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
    raise ValueError(f"not a result: {plain!r:.80}")
