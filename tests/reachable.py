"""The objects that an object keeps alive through any attributes, for tests that objects are forgotten."""

import gc
from collections.abc import Callable
from types import FunctionType, ModuleType


def reachable(root: object, is_meant: Callable[[object], bool]) -> list[object]:
    """Return the objects with this property that `root` keeps alive, without code and classes."""
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
