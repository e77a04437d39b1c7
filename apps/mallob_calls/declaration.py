"""The declaration of CALLS, for processes that do not run the application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mallob_py.kit.declaration import DONE, Declaration


class CallsDeclaration(Declaration):
    """The declaration of the application CALLS, which calls Python functions."""

    name: ClassVar[str] = "CALLS"
    takes_input: ClassVar[bool] = False
    runs_code: ClassVar[bool] = True
    result_strings: ClassVar[Mapping[int, str]] = {DONE: "DONE"}
