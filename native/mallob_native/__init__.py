"""Where the shared libraries are; `mallob_sat.native` loads them and knows their functions."""

from __future__ import annotations

from pathlib import Path


def library_path(solver: str) -> Path:
    """The library of `cadical195` or `cadical300`. Raises FileNotFoundError if there is none."""
    found = sorted(Path(__file__).parent.glob(f"libmallob_{solver}.*"))
    if not found:
        raise FileNotFoundError(f"no libmallob_{solver} in {Path(__file__).parent}")
    return found[0]
