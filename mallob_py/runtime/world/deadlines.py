"""Deadlines for what may block inside MPI, where a rank neither waits for ever nor outlives its launcher.

MPI's start, its end and its collective calls return when all ranks have come. If one never does (its host
hangs, somebody has stopped it) the others would wait without end, at a whole core each. `at_most` ends this
process then: a thread says what it was that did not come. Some calls of mpi4py hold Python's lock, so that
no thread runs; so the kernel has a timer, too, whose signal (SIGALRM) ends the process a little later,
whatever holds it. Guards and launchers tell of that.

Everything else that a rank waits for, it waits for in its event loop, which looks after its launcher itself.
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

#: how long the ranks wait for each other at their start, in seconds, if not START_PATIENCE_S
START_PATIENCE_VARIABLE = "MALLOB_PY_START_PATIENCE"
START_PATIENCE_S = 300.0
#: as much longer they wait for the desks: a client reads its whole folder meanwhile
DESK_PATIENCES = 12
#: for MPI's end, when all ranks have met
FINALIZE_PATIENCE_S = 30.0
#: for MPI's end after an error
ABORT_PATIENCE_S = 10.0
#: what a rank waits for at its start
OTHER_RANKS = "other ranks to start"
#: how much later the kernel ends a process whose threads cannot run
_KERNEL_LATER_S = 2.0
#: between looks whether the launcher is there
_LOOK_S = 1.0


def start_patience_s(env: Mapping[str, str]) -> float:
    """The time that a rank waits for the others at its start."""
    with contextlib.suppress(ValueError):
        patience_s = float(env.get(START_PATIENCE_VARIABLE, ""))
        if 0 < patience_s < math.inf:
            return patience_s
    return START_PATIENCE_S


class LauncherGone(Exception):
    """The process that has started this rank has ended; the message says so."""


class Launcher:
    """The process that has started this one, such as MPI's launcher: without it a rank is to end."""

    def __init__(self) -> None:
        self._pid = os.getppid()

    def check(self) -> None:
        """Raise LauncherGone if this process has another parent now."""
        if os.getppid() != self._pid:
            raise LauncherGone("the process that has started this rank has gone; it ends")


@contextlib.contextmanager
def at_most(
    patience_s: float, waits_for: str, launcher: Launcher | None = None, exit_code: int = CRASHED
) -> Iterator[None]:
    """End this process with `exit_code` if what is done meanwhile takes longer, or if its launcher goes.

    `waits_for` tells people what has not come. To be used by the main thread, and not within itself. What is
    raised meanwhile ends this process, too: from then on it has ABORT_PATIENCE_S.
    """
    is_done = threading.Event()
    deadline_s = time.monotonic() + patience_s

    def end(why: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            forget_shared()  # the others are as this one, or come too late
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
