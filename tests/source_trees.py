"""The sources as syntax trees, each parsed once for all tests of a process."""

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("mallob_py", "apps", "scripts")


class Source:
    """A file: its path from the root, its tree, and all nodes of the tree as `ast.walk` gives them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.nodes = tuple(ast.walk(self.tree))


@cache
def source(path: Path) -> Source:
    """Return a file. Its nodes are kept out of garbage collections, which would take a second each."""
    gc.disable()
    try:
        return Source(path)
    finally:
        gc.freeze()
        gc.enable()


def sources(*folders: str) -> Iterator[Source]:
    """Yield the files below these folders of the root, in order."""
    for folder in folders:
        yield from map(source, sorted((ROOT / folder).rglob("*.py")))
