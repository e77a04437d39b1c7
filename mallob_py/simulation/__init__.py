"""Many PEs in virtual time, from a seed, with the same protocol code as on real ranks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch off the search for garbage in cycles: a simulation makes little, and the search is slow.

    The context is usable as a decorator, too, and can be nested.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
