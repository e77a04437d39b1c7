"""Marks of tests that need the native solver's library."""

import pytest

from mallob_sat.native import NATIVE_SOLVERS, NativeSolverMissing, load_library

try:
    for solver in NATIVE_SOLVERS:
        load_library(solver)
    _MISSING = ""
except NativeSolverMissing as missing:
    _MISSING = str(missing)

needs_library = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)
