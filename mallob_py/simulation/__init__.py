"""Many PEs in virtual time, from a seed: the very same protocol code as on real ranks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Look for no garbage in cycles within the context: a simulation makes little, and looking is slow.

    Usable as a decorator, and nested.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
