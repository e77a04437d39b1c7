"""The notices of a command to people and log collectors on standard error, a line at a time.

A service's lines have the time in front, since they are read days later; those of other commands do not: who
typed them sits before them.
"""

from __future__ import annotations

import sys
import time

_has_time_stamps = False


def with_time_stamps() -> None:
    """From now on this process's notices tell when they were made (UTC)."""
    global _has_time_stamps
    _has_time_stamps = True


def tell(message: str) -> None:
    """One line on standard error. It is lost if nothing reads there, or if the disk of that file is full."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) if _has_time_stamps else ""
    line = message.replace("\n", " ")
    try:  # noqa: SIM105  # guards import this, and no contextlib
        print(f"{stamp}mallob-py: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass
