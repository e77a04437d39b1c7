"""Numeric libraries start a thread per core when they are loaded; none of ours needs them."""

from __future__ import annotations

import os

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def want_no_numeric_threads() -> None:
    """To be called before numpy is imported: all ranks of a host would have threads for all its cores.

    And a process with threads cannot fork safely. What the user has set stays.
    """
    for name in _VARIABLES:
        os.environ.setdefault(name, "1")
