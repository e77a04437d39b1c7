"""Kernels: compiled by Numba where it is installed (the extra `fast`), else run by NumPy or Python.

Kernels are compiled when their module is imported, and kept on disk for later processes. So the process from
which workers are forked has compiled kernels, and a new worker begins at once.
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
        """Return a decorator that leaves the function unchanged."""
        return lambda function: function

    def inlined(function: F) -> F:
        """Leave the function unchanged."""
        return function

else:
    HAS_NUMBA = True

    def compiled(signature: str) -> Callable[[F], F]:
        """Compile a function for arguments of these types (in Numba's notation), or load its cached code."""
        return cast(Callable[[F], F], numba.njit(signature, cache=True, error_model="numpy"))

    def inlined(function: F) -> F:
        """Inline a function into the compiled functions of its module."""
        return cast(F, numba.njit(forceinline=True)(function))


def kernel(otherwise: str) -> str:
    """Return the name, shown in replies, of what runs this process's kernels: Numba, or else `otherwise`."""
    return "numba" if HAS_NUMBA else f"{otherwise}, slower than numba, which the extra 'fast' installs"
