"""SAT solving as an application of mallob-py: a portfolio of PySAT's solvers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mallob_sat.app import SatApplication

__all__ = ["SatApplication"]


def __getattr__(name: str) -> object:
    """Import the application on demand, so that the generators start without it."""
    if name == "SatApplication":
        from mallob_sat.app import SatApplication

        return SatApplication
    raise AttributeError(name)
