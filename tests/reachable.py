"""What an object holds on to, through whatever of its attributes: for tests of what is forgotten."""

import gc
from collections.abc import Callable
from types import FunctionType, ModuleType


def reachable(root: object, is_meant: Callable[[object], bool]) -> list[object]:
    """Return the objects with that property that `root` keeps alive, code and classes left out."""
    seen = {id(root)}
    found, unseen = [], [root]
    while unseen:
        for one in gc.get_referents(unseen.pop()):
            if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
                continue
            seen.add(id(one))
            unseen.append(one)
            if is_meant(one):
                found.append(one)
    return found
