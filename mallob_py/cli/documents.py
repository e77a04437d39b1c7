"""`mallob-py docs [NAME]`: the documents of this version, as text."""

from __future__ import annotations

from pathlib import Path

import mallob_py
from mallob_py.cli import CommandError
from mallob_py.cli.option_sources import suggestion
from mallob_py.cli.study_options import DocsOptions

_PACKAGE = Path(mallob_py.__file__).parent


def documents() -> dict[str, Path]:
    """Return documents by name: from the installed package, else from the sources."""
    folder = _PACKAGE / "docs"
    if not folder.is_dir():
        folder = _PACKAGE.parent / "docs"
    paths = {path.stem: path for path in [*folder.glob("*.md"), *folder.glob("results/*.md")]}
    return dict(sorted(paths.items()))


def title_of(path: Path) -> str:
    with open(path, encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip("\n")


def run_docs(options: DocsOptions) -> int:
    found = documents()
    if options.name is None:
        width = max(map(len, found), default=0)
        for name, path in found.items():
            print(f"{name:<{width}}  {title_of(path)}")
        return 0
    name = options.name.removeprefix("docs/").removesuffix(".md")
    if name not in found:
        hint = suggestion(name, found) or f" (there are {', '.join(found)})"
        raise CommandError(f"no document {name!r}{hint}")
    print(found[name].read_text(encoding="utf-8"), end="")
    return 0
