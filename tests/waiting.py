"""Waits of tests, with one deadline for all events, and one factor of the deadline.

Events are noticed at once, so patience costs time only in a failing test. A busy machine needs more patience:
`MALLOB_PY_TEST_PATIENCE=8 make test`.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

PATIENCE = float(os.environ.get("MALLOB_PY_TEST_PATIENCE", "4"))
#: longest wait for an event that takes seconds at most on an idle machine
DEADLINE_S = 45.0 * PATIENCE
#: time limit of a whole test
TEST_DEADLINE_S = 2.5 * DEADLINE_S

T = TypeVar("T")


class PipeReader:
    """A reader that opens a named pipe at once, and reads its content when `is_over` is called."""

    def __init__(self, path: Path) -> None:
        self.received = b""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def is_over(self) -> bool:
        """Tell whether a writer has written to the pipe and closed it."""
        try:
            block = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return False
        self.received += block
        return bool(self.received) and not block

    def close(self) -> None:
        os.close(self._descriptor)


def poll_until(
    condition: Callable[[], T | None], what: str | Callable[[], str] = "", timeout_s: float = DEADLINE_S
) -> T:
    """Wait until the condition holds, and return its value; else fail with a message that names `what`."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not in time: {(what() if callable(what) else what) or condition}")
        time.sleep(0.01)
    return value


def growing(first_s: float) -> Iterator[float]:
    """Yield time limits to try in turn, because a busy machine may have done nothing within the first."""
    while first_s < DEADLINE_S:
        yield first_s
        first_s *= 4.0


def remove_in_use(folder: Path) -> None:
    """Remove a folder into which others write meanwhile, by repeated attempts until it is gone."""

    def is_gone() -> bool:
        try:
            shutil.rmtree(folder)
        except OSError:
            return not folder.exists()
        return True

    poll_until(is_gone, f"{folder} is gone")
