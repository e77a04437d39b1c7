"""Docstrings name their subject and can be read alone: the number of other docstrings must not grow."""

import ast
import re
from collections.abc import Iterator

from source_trees import PRODUCT, sources

#: greatest permitted number of docstrings in dialect, which must only fall
DIALECT_MAX = 112

_OPENING = re.compile(r"(What|How|Of|Those|So|Who)\b")
_PEOPLE = re.compile(r"\b(nobody|somebody)\b", re.IGNORECASE)


def _docstrings() -> Iterator[tuple[str, str]]:
    for file in sources(*PRODUCT):
        for node in file.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{file.name}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""


def test_docstrings_need_none_above_them() -> None:
    found = [where for where, text in _docstrings() if text.startswith("The same ")]
    assert not found, "\n".join(found)


def test_docstrings_in_dialect_get_fewer() -> None:
    found = [where for where, text in _docstrings() if _OPENING.match(text) or _PEOPLE.search(text)]
    assert len(found) <= DIALECT_MAX, "\n".join(found)
