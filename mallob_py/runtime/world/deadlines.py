"""Deadlines for calls that may block inside MPI: a rank must neither wait for ever nor outlive its launcher.

MPI's start, its end and its collective calls return when all ranks take part. If a rank never does (its host
hangs, or the rank was stopped), the other ranks would wait for ever, and each would use a whole core. Then a
thread of `at_most` reports what was missing and ends this process. Some calls of mpi4py hold Python's lock,
so that no thread runs; therefore a kernel timer also ends the process, a little later (SIGALRM). Guards and
launchers report that signal.

All other waiting is done in the rank's event loop, which watches the launcher itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from mallob_py.runtime.notices import tell
from mallob_py.runtime.world.guard_process import CRASHED
from mallob_py.runtime.world.mpich_files import forget_shared

#: environment variable: how long ranks wait for each other at their start [s]
START_PATIENCE_VARIABLE = "MALLOB_PY_START_PATIENCE"
START_PATIENCE_S = 300.0
#: patience for the opening of desks, as a multiple of the patience for the start: a client first reads its
#: whole folder
DESK_PATIENCES = 12
#: patience for MPI's end, after all ranks have met
FINALIZE_PATIENCE_S = 30.0
#: patience for MPI's end after an error
ABORT_PATIENCE_S = 10.0
#: name, for people, of the thing for which a rank waits at its start
OTHER_RANKS = "other ranks to start"
#: delay after which the kernel ends a process whose threads cannot run
_KERNEL_LATER_S = 2.0
#: period of checking the launcher
_LOOK_S = 1.0


def start_patience_s(env: Mapping[str, str]) -> float:
    """Return how long a rank waits for the other ranks at its start."""
    with contextlib.suppress(ValueError):
        patience_s = float(env.get(START_PATIENCE_VARIABLE, ""))
        if 0 < patience_s < math.inf:
            return patience_s
    return START_PATIENCE_S


class LauncherGone(Exception):
    """Error: the process that started this rank has ended."""


class Launcher:
    """The process that started this rank, such as MPI's launcher; without it the rank must end."""

    def __init__(self) -> None:
        self._pid = os.getppid()

    def check(self) -> None:
        """Raise LauncherGone if this process has another parent now."""
        if os.getppid() != self._pid:
            raise LauncherGone("the process that started this rank has ended; this rank ends")


@contextlib.contextmanager
def at_most(
    patience_s: float, waits_for: str, launcher: Launcher | None = None, exit_code: int = CRASHED
) -> Iterator[None]:
    """Context manager that ends this process with `exit_code` if its body takes too long.

    `waits_for`: name, for people, of the thing that is missing. Only the main thread may use this context
    manager, and not nested. After an exception in the body, this process ends within ABORT_PATIENCE_S, too.
    """
    is_done = threading.Event()
    deadline_s = time.monotonic() + patience_s

    def end(why: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            forget_shared()  # other ranks also remove the shared file, or come too late to use it
            tell(why)
            sys.stdout.flush()
        os._exit(exit_code)

    def watch() -> None:
        while not is_done.wait(max(0.0, min(_LOOK_S, deadline_s - time.monotonic()))):
            try:
                if launcher is not None:
                    launcher.check()
            except LauncherGone as error:
                end(str(error))
            if time.monotonic() >= deadline_s:
                end(f"waited {patience_s:g} s in vain for {waits_for}; this rank ends")

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, patience_s + _KERNEL_LATER_S)
    thread = threading.Thread(target=watch, name="deadline", daemon=True)
    thread.start()
    left_s = ABORT_PATIENCE_S
    try:
        yield
        left_s = 0.0
    finally:
        is_done.set()
        thread.join()
        signal.setitimer(signal.ITIMER_REAL, left_s)
