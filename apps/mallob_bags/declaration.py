"""The declarations of these bags for commands and the service. This module imports no NumPy and no Numba."""

from __future__ import annotations

from mallob_py.kit.declaration import BagDeclaration, JobOption, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ClassVar


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


_NUMBER = whole_number(0)


def _option(key: str, metavar: str, text: str, parse: Callable[[str], object] = _NUMBER) -> JobOption:
    return JobOption(f"--{key}", parse, metavar=metavar, help=text)


class BetweennessDeclaration(BagDeclaration):
    name: ClassVar[str] = "BC"
    options: ClassVar[tuple[JobOption, ...]] = (
        _option("n", "N", "the graph has 2^N vertices (default 10)"),
        _option("seed", "S", "seed of the random graph (default 2)"),
    )


class PiDeclaration(BagDeclaration):
    name: ClassVar[str] = "PI"
    options: ClassVar[tuple[JobOption, ...]] = (
        _option("points", "N", "number of points that are drawn (default 1000000000)"),
        _option("seed", "S", "seed of the random points (default 1)"),
    )


class QueensDeclaration(BagDeclaration):
    name: ClassVar[str] = "QUEENS"
    options: ClassVar[tuple[JobOption, ...]] = (
        _option("n", "N", "number of queens, on a board of N x N (required)", whole_number(1)),
    )


class UtsDeclaration(BagDeclaration):
    name: ClassVar[str] = "UTS"
    options: ClassVar[tuple[JobOption, ...]] = (
        _option("type", "TYPE", "type of the tree: geometric (the default), binomial or hybrid", str),
        _option("shape", "SHAPE", "shape of a geometric tree: fixed (the default), linear or cyclic", str),
        _option("depth", "D", "depth of a geometric tree (default 10)", whole_number(1)),
        _option("branching", "B", "mean number of the root's children (default 4)", _real),
        _option("seed", "S", "seed of the tree (default 19)"),
        _option("q", "Q", "binomial trees: probability that a node has children (default 0.15)", _real),
        _option("m", "M", "binomial trees: number of children of a node with children (default 4)"),
    )
