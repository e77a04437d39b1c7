"""MaxSAT as an application: workers search for the least cost from below, from above and near solutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mallob_maxsat.app import MaxSatApplication

__all__ = ["MaxSatApplication"]


def __getattr__(name: str) -> object:
    """Import the application on first use."""
    if name == "MaxSatApplication":
        from mallob_maxsat.app import MaxSatApplication

        return MaxSatApplication
    raise AttributeError(name)
