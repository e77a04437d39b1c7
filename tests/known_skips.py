"""The list of tests that may be skipped (`skips.txt`), and its use by a step of CI."""

import re
from collections.abc import Iterable
from pathlib import Path

#: variable with the name of the step of `.ci/run` that runs the tests
STEP_VARIABLE = "MALLOB_PY_SKIPS"
#: entry of the list for skips that depend on the machine, not on the step
MACHINE = "machine"


def listed() -> list[tuple[str, str]]:
    """Return the steps and the reasons of the list."""
    lines = (Path(__file__).parent / "skips.txt").read_text().splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [(step, reason) for step, reason in pairs]


def unexcused(reasons: Iterable[str], step: str) -> list[str]:
    """Return the reasons of skipped tests that no other step runs and the machine does not excuse."""
    excuses = [re.compile(reason) for of_step, reason in listed() if of_step != step]
    return sorted({each for each in reasons if not any(excuse.search(each) for excuse in excuses)})
