"""Where the shared library is; `mallob_sat.native_solver` loads it and knows its functions."""

from __future__ import annotations

from pathlib import Path

#: the C interface's version, raised whenever a function of src/engine.cpp changes
INTERFACE = 1


def library_path() -> Path:
    """The shared library. Raises FileNotFoundError if the package was copied without it."""
    found = sorted(Path(__file__).parent.glob("libmallob_cadical*"))
    if not found:
        raise FileNotFoundError(f"no libmallob_cadical in {Path(__file__).parent}")
    return found[0]
