"""How tests wait, and how long for what must come: one deadline for all of them, and one factor for it.

What is there is found at once, so patience costs nothing but in a test that fails. A machine that is
busy with other things asks for more of it: `MALLOB_PY_TEST_PATIENCE=8 make test`.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

PATIENCE = float(os.environ.get("MALLOB_PY_TEST_PATIENCE", "4"))
#: for anything that takes seconds at most on a machine with nothing else to do
DEADLINE_S = 45.0 * PATIENCE
#: for a whole test, whatever it waits for
TEST_DEADLINE_S = 2.5 * DEADLINE_S

T = TypeVar("T")


class PipeReader:
    """Opens a named pipe at once, and reads what is there when `is_over` is asked."""

    def __init__(self, path: Path) -> None:
        self.received = b""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def is_over(self) -> bool:
        """Whether somebody has written, and closed it."""
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
    """Wait until the condition holds, and return what it says. `what` was waited for, else."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not in time: {(what() if callable(what) else what) or condition}")
        time.sleep(0.01)
    return value


def growing(first_s: float) -> Iterator[float]:
    """Time limits to be tried in turn: nobody knows what a busy machine has done within the first one."""
    while first_s < DEADLINE_S:
        yield first_s
        first_s *= 4.0


def remove_in_use(folder: Path) -> None:
    """Remove a folder into which others write meanwhile, as one does who asks for it until it is gone."""

    def is_gone() -> bool:
        try:
            shutil.rmtree(folder)
        except OSError:
            return not folder.exists()
        return True

    poll_until(is_gone, f"{folder} is gone")
