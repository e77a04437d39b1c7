"""The written list of tests that may be skipped (`skips.txt`), and what a step of CI makes of it."""

import re
from collections.abc import Iterable
from pathlib import Path

#: names the step of `.ci/run` that the tests are run for
STEP_VARIABLE = "MALLOB_PY_SKIPS"
#: in the list: not a step
MACHINE = "machine"


def listed() -> list[tuple[str, str]]:
    """Return the steps and the reasons of the list."""
    lines = (Path(__file__).parent / "skips.txt").read_text().splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [(step, reason) for step, reason in pairs]


def unexcused(reasons: Iterable[str], step: str) -> list[str]:
    """Return the reasons of skips that no other step runs, and that the machine does not excuse."""
    excuses = [re.compile(reason) for of_step, reason in listed() if of_step != step]
    return sorted({each for each in reasons if not any(excuse.search(each) for excuse in excuses)})
