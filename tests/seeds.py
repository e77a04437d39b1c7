"""The number of seeds of a test: `make test` halves the number in the test, `make test-long` doubles it."""

import math
import os

#: factor of the number of seeds
_PART = float(os.environ.get("MALLOB_PY_SEEDS", "1"))


def seeds(count: int) -> range:
    """Return the seeds of a test that names `count` seeds: at least one."""
    return range(max(1, math.ceil(count * _PART)))
