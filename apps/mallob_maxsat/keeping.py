"""Checkpoints: the best model and the lower bound of a job's root, kept for the next root.

A restarted service reads the formula's file again, which may contain another formula. So a checkpoint
contains a digest of its formula, and is used for no other formula.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mallob_maxsat.state import Bounds
from mallob_maxsat.talk import bits_of_model, model_of_bits
from mallob_py.kit import WorkerContext

#: age of a job from which on its root asks for a checkpoint and writes checkpoints
_BEGIN_S = 0.2
_PERIOD_S = 1.0


class _Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A checkpoint. `formula`: digest of the formula. `model`: a bit per variable, empty if none is known."""

    formula: bytes
    lower: int
    model: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode


class Keeping:
    """The checkpoints of one worker. They have an effect only while the worker is the root."""

    def __init__(self, context: WorkerContext, bounds: Bounds, n_vars: int) -> None:
        self._context = context
        self._bounds = bounds
        self._n_vars = n_vars
        self._next_s = time.monotonic() + _BEGIN_S
        self._formula = b""
        self._kept_version = -1

    def turn(self) -> None:
        """Load the last root's checkpoint once; later, save a checkpoint now and then if bounds changed."""
        now, bounds = time.monotonic(), self._bounds
        if self._context.index != 0 or now < self._next_s:
            return
        self._next_s = now + _PERIOD_S
        if not self._formula:
            formula = _digest(self._context.payload)
            self._take_in(self._context.last_checkpoint(), formula)
            if self._context.index != 0:
                return
            self._formula = formula
        if bounds.version != self._kept_version:
            self._kept_version = bounds.version
            model = b"" if bounds.model is None else bits_of_model(bounds.model)
            self._context.checkpoint(_encode(_Kept(self._formula, bounds.lower, model)))

    def _take_in(self, data: bytes | None, formula: bytes) -> None:
        if data is None:
            return
        kept = _decode(data)
        if kept.formula != formula:
            return
        if kept.model:
            self._bounds.found(model_of_bits(kept.model, self._n_vars))
        self._bounds.raise_lower(kept.lower)


def _digest(payload: Mapping[str, NDArray[np.generic]]) -> bytes:
    digest: Any = hashlib.blake2b(digest_size=16)
    for name in sorted(payload):
        digest.update(payload[name].tobytes())
        digest.update(name.encode())
    return bytes(digest.digest())
