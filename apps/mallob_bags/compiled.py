"""Kernels are compiled by Numba where it is installed (the extra `fast`); else NumPy or Python runs them.

They are compiled when their module is imported, and kept on disk for the next process. So the process that
workers are forked from has them compiled, and a new worker begins at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

try:
    import numba
except ImportError:
    HAS_NUMBA = False

    def compiled(signature: str) -> Callable[[F], F]:
        """Leave a function as it is: slower, and right."""
        return lambda function: function

    def inlined(function: F) -> F:
        """Leave a function as it is."""
        return function

else:
    HAS_NUMBA = True

    def compiled(signature: str) -> Callable[[F], F]:
        """Compile for arguments of these types (as Numba writes them), or take what has been kept."""
        return cast(Callable[[F], F], numba.njit(signature, cache=True, error_model="numpy"))

    def inlined(function: F) -> F:
        """A part of compiled functions of the same module."""
        return cast(F, numba.njit(forceinline=True)(function))


def kernel(otherwise: str) -> str:
    """Return the name of what runs the kernels here, for replies; `otherwise`: without Numba."""
    return "numba" if HAS_NUMBA else f"{otherwise}, slower than numba, which the extra 'fast' installs"
