"""Kernels are compiled by Numba where it is installed (the extra `fast`); else plain Python runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

try:
    import numba
except ImportError:
    HAS_NUMBA = False

    def compiled(function: F) -> F:
        """As it is: slower, and right."""
        return function

else:
    HAS_NUMBA = True

    def compiled(function: F) -> F:
        """Compile at the first call, and keep that for the next process."""
        return cast(F, numba.njit(cache=True)(function))
