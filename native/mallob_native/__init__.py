"""Where the shared libraries and the checker are; `mallob_sat` uses both and knows their interfaces."""

from __future__ import annotations

from pathlib import Path


def library_path(solver: str) -> Path:
    """The library of `cadical195` or `cadical300`. Raises FileNotFoundError if there is none."""
    found = sorted(Path(__file__).parent.glob(f"libmallob_{solver}.*"))
    if not found:
        raise FileNotFoundError(f"no libmallob_{solver} in {Path(__file__).parent}")
    return found[0]


def program_path(name: str) -> Path:
    """A program of this package. Raises FileNotFoundError if it is missing."""
    if not (path := Path(__file__).with_name(name)).is_file():
        raise FileNotFoundError(f"no {name} in {path.parent}")
    return path
