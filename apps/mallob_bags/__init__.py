"""Bags of tasks with known answers: trees to be counted, sums over the vertices of a graph, samples.

They are examples of `mallob_py.kit.bags` and measures of it.
"""

from __future__ import annotations

from mallob_bags.queens import QueensApplication

__all__ = ["QueensApplication"]
