"""How many seeds a test plays: `make test` halves the number that it names, `make test-long` doubles it."""

import math
import os

#: the part of all seeds that is played
_PART = float(os.environ.get("MALLOB_PY_SEEDS", "1"))


def seeds(count: int) -> range:
    """Return the seeds to play of a test that names `count` of them, at least one."""
    return range(max(1, math.ceil(count * _PART)))
