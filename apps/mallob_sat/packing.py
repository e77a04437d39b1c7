"""Models as bits, for those who ask for it: variable v's value is bit v - 1, 1 for true.

A model of a million variables takes 125 kB so, instead of 7 MB as a list of literals. Bits are counted
from the lowest of each byte on; those beyond the last variable are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mallob_py.kit import SATISFIABLE, InputError, Result

_FORMS = ("literals", "packed")


def wants_packed(configuration: Mapping[str, Any]) -> bool:
    """Whether models shall be packed. Raises InputError."""
    form = configuration.get("model", "literals")
    if form not in _FORMS:
        raise InputError(f"model is {form!r:.40}; known are {', '.join(_FORMS)}", "configuration")
    return bool(form == "packed")


def packed(result: Result) -> Result:
    """The same result with its model, if it has one, as bytes."""
    if result.code != SATISFIABLE:
        return result
    model = np.asarray(result.solution, dtype=np.int32)
    bits = np.packbits(model > 0, bitorder="little").tobytes()
    return replace(result, solution=bits, fields=dict(result.fields) | {"variables": int(model.size)})
