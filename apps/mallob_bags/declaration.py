"""The declarations of these bags for commands and the service; importing it loads neither NumPy nor Numba."""

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
        _option("seed", "S", "which random graph (default 2)"),
    )


class PiDeclaration(BagDeclaration):
    name: ClassVar[str] = "PI"
    options: ClassVar[tuple[JobOption, ...]] = (
        _option("points", "N", "how many points are drawn (default 1000000000)"),
        _option("seed", "S", "which points (default 1)"),
    )


class QueensDeclaration(BagDeclaration):
    name: ClassVar[str] = "QUEENS"
    options: ClassVar[tuple[JobOption, ...]] = (
        _option("n", "N", "how many queens on a board of N x N; needed", whole_number(1)),
    )


class UtsDeclaration(BagDeclaration):
    name: ClassVar[str] = "UTS"
    options: ClassVar[tuple[JobOption, ...]] = (
        _option("type", "TYPE", "geometric (the default), binomial or hybrid", str),
        _option("shape", "SHAPE", "of geometric trees: fixed (the default), linear or cyclic", str),
        _option("depth", "D", "of geometric trees (default 10)", whole_number(1)),
        _option("branching", "B", "children of the root, on average (default 4)", _real),
        _option("seed", "S", "which tree (default 19)"),
        _option("q", "Q", "of binomial trees: how likely a node has children (default 0.15)", _real),
        _option("m", "M", "of binomial trees: how many children (default 4)"),
    )
