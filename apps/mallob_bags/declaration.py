"""The declarations of these bags for commands and the service; importing it loads neither NumPy nor Numba."""

from __future__ import annotations

from mallob_py.kit.declaration import BagDeclaration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar


class BetweennessDeclaration(BagDeclaration):
    name: ClassVar[str] = "BC"


class PiDeclaration(BagDeclaration):
    name: ClassVar[str] = "PI"


class QueensDeclaration(BagDeclaration):
    name: ClassVar[str] = "QUEENS"


class UtsDeclaration(BagDeclaration):
    name: ClassVar[str] = "UTS"
