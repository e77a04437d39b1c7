"""What went wrong in a plan, and whether two plans go wrong in the same way.

The kind of a failure is the type of the error, where it was raised, and its first line with
all numbers taken out: a smaller plan fails at another time, with other ranks and other jobs.
"""

from __future__ import annotations

import re
import traceback

import msgspec

from mallob_py.simulation.plan import Plan
from mallob_py.simulation.scenario import Scenario

_NUMBERS = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?(\s*[,:]\s*-?\d+(\.\d+)?(e-?\d+)?)*")
_FRAMES_SHOWN = 6


class Failure(msgspec.Struct, frozen=True):
    """One failure; `at_s` is the virtual time of it."""

    kind: str
    text: str
    at_s: float


def failure_of(plan: Plan) -> Failure | None:
    """Play a plan to its end, or to what goes wrong."""
    return failure_in(Scenario(plan))


def failure_in(scenario: Scenario) -> Failure | None:
    """The same for a scenario that has not been played yet."""
    try:
        scenario.run()
    except Exception as error:
        return Failure(_kind(error), traceback.format_exc(limit=-_FRAMES_SHOWN), scenario.cluster.now)
    return None


def _kind(error: Exception) -> str:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    place = traceback.extract_tb(cause.__traceback__)[-1].name
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__} in {place}: {_NUMBERS.sub('#', first_line)}"
