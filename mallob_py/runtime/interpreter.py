"""How to start Python programs of ours: with the imports of this process, not with the working folder's.

`python -m` would look for modules in the working folder first, where it may be anybody who has put them, as
in /tmp.
"""

from __future__ import annotations

import os
import sys


def python() -> list[str]:
    """Python, without the working folder or the script's among the places of imports."""
    return [sys.executable, "-P"]


def import_places() -> dict[str, str]:
    """The environment by which it imports from where this process does."""
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
