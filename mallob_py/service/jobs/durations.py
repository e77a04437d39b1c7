"""Durations as users write them: "300s", "5m", "2h", "1d", "100ms", "0", or a number of seconds.

Imports little, since options of the command line use it, too.
"""

from __future__ import annotations

import math
import re

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?|\.[0-9]{1,18})\s*(ms|s|m|h|d|)\s*", re.ASCII)
_HINT = 'write a duration such as "300s", "5m", "2h", "1d", "100ms" or "0"'


def parse_duration_s(value: object) -> float:
    """Return a duration in seconds, finite and >= 0. Raises ValueError with a message for the user."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be a string or a number; {_HINT}")
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ValueError(f"{shortened(value)} is no duration; {_HINT}")
        return float(match[1]) * _UNIT_S[match[2]]
    if value < 0:
        raise ValueError(f"{shortened(value)} is negative; {_HINT}")
    try:
        duration_s = float(value)
    except OverflowError:
        duration_s = math.inf
    if not math.isfinite(duration_s):
        raise ValueError(f"is not finite; {_HINT}")
    return duration_s


def format_duration(duration_s: float) -> str:
    """Return the shortest exact text that `parse_duration_s` reads, such as "5m" or "1.5s"."""
    for unit in ("d", "h", "m", "s"):
        count = duration_s / _UNIT_S[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    if duration_s == 0:
        return "0"
    return f"{duration_s:.9f}".rstrip("0") + "s"


def shortened(value: object) -> str:
    """Return a value as shown in messages to the user."""
    try:
        text = repr(value)
    except ValueError:  # the integer has more digits than Python prints
        return "this number"
    return text if len(text) <= 60 else text[:57] + "..."
