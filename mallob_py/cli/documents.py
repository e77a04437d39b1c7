"""`mallob-py docs [NAME]`: prints the documents of this version as text, and files for other programs.

A line such as `::: mallob_py.kit.Application`, for which the site shows docstrings, is replaced by signatures
and docstrings.
"""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mallob_py
from mallob_py.cli import CommandError
from mallob_py.cli.option_sources import suggestion
from mallob_py.cli.study_options import DocsOptions

_PACKAGE = Path(mallob_py.__file__).parent
#: pattern of a line that stands for docstrings in a document, with the site's options in the lines below
_PLACE = re.compile(r"^::: ([\w.]+)\n(?: +.*\n)*", re.MULTILINE)
#: files for other programs
_FILES = ("*.json", "*.yml", "compose/*")


def _folder() -> Path:
    folder = _PACKAGE / "docs"
    return folder if folder.is_dir() else _PACKAGE.parent / "docs"


def files() -> dict[str, Path]:
    """Return name (such as alerts.yml) -> path of the files for other programs."""
    return {path.name: path for pattern in _FILES for path in sorted(_folder().glob(pattern))}


def documents() -> dict[str, Path]:
    """Return name -> path of the documents, in the installed package or else in the sources."""
    folder = _folder()
    paths = {path.stem: path for path in [*folder.glob("*.md"), *folder.glob("results/*.md")]}
    return dict(sorted(paths.items()))


def title_of(path: Path) -> str:
    with open(path, encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip("\n")


def with_interfaces(text: str) -> str:
    """Return a document in which signatures and docstrings replace the lines that stand for them."""
    return _PLACE.sub(lambda found: "\n".join(_told(found[1])) + "\n", text)


def _told(place: str) -> Iterator[str]:
    thing = pydoc.locate(place)
    name = place.rpartition(".")[2]
    if inspect.ismodule(thing):
        yield inspect.getdoc(thing) or ""
        return
    yield from _one(name, thing, "")
    if inspect.isclass(thing):
        if fields := inspect.get_annotations(thing):
            yield ""
        yield from (f"        {field}: {kind}" for field, kind in fields.items() if field[0] != "_")
        for member, inner in vars(thing).items():
            is_told = inspect.isfunction(inner) or isinstance(inner, property | classmethod | staticmethod)
            if is_told and not member.startswith("_") and inspect.getdoc(inner):
                yield ""
                yield from _one(member, inner, "    ")


def _one(name: str, thing: Any, indent: str) -> Iterator[str]:
    """Yield lines with an object's signature and docstring."""
    called = getattr(thing, "fget", None) or getattr(thing, "__func__", thing)
    try:
        signature = "" if isinstance(thing, property) else str(inspect.signature(called))
    except (TypeError, ValueError):
        signature = ""
    yield f"{indent}    {'class ' * inspect.isclass(thing)}{name}{signature}"
    yield ""
    for line in (inspect.getdoc(called) or "").splitlines():
        yield f"{indent}{line}" if line else ""


def run_docs(options: DocsOptions) -> int:
    found = documents()
    if options.name is None:
        width = max(map(len, found), default=0)
        for name, path in found.items():
            print(f"{name:<{width}}  {title_of(path)}")
        return 0
    others = files()
    name = options.name.removeprefix("docs/").removeprefix("compose/").removesuffix(".md")
    if name in others:
        print(others[name].read_text(encoding="utf-8"), end="")
        return 0
    if name not in found:
        hint = suggestion(name, [*found, *others]) or f" (there are {', '.join([*found, *others])})"
        raise CommandError(f"no document {name!r}{hint}")
    print(with_interfaces(found[name].read_text(encoding="utf-8")), end="")
    return 0
