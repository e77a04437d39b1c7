"""A rank's guard: its parent process, so that MPICH's mpiexec does not end the other ranks if the rank dies.

When a process's connection to the process manager (`PMI_FD`) closes, mpiexec (hydra) takes the process for
dead and kills all others. So a rank started by hydra forks: the child goes on as the rank, and the parent
keeps the connection and becomes another program (`guard_process.py`), which waits. When the rank dies, the
guard leaves the process manager for the rank, reports how it died and ends with code 0. Ranks of other
launchers need no guard: these launchers can be told to spare the other ranks (Slurm, Open MPI with ULFM), or
are our own (`forked_world.py`).

Guarantees: stop signals are passed on; the rank does not outlive its guard, and the guard does not outlive
the process that started it; a rank that dies before it has called `may_be_lost` ends all other ranks, which
would wait for it for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import mallob_py
from mallob_py.runtime.processes import bare_python, die_with
from mallob_py.runtime.world import guard_process
from mallob_py.runtime.world.guard_process import CRASHED, PASSED_ON, epitaph

__all__ = [
    "CRASHED",
    "epitaph",
    "is_fork",
    "is_needed",
    "leaves",
    "may_be_lost",
    "needs_no_farewell",
    "report_to",
    "stand_guard",
]

#: this rank's end of a pipe to its guard
_link: int | None = None
#: whether the parent leaves the process manager on behalf of this rank
_takes_leave = False
#: the process that reads the link's other end
_parent = 0


def is_needed(env: Mapping[str, str]) -> bool:
    """Tell whether this process is a rank started by MPICH's mpiexec."""
    # On hosts other than mpiexec's, only PMI_HOSTNAME is set; other launchers set neither of these variables.
    return "PMI_FD" in env and ("HYDI_CONTROL_FD" in env or "PMI_HOSTNAME" in env)


def stand_guard() -> None:
    """Make this process the guard, and return in a fork, which is the rank. Needs one thread, no children."""
    reader, writer = os.pipe()
    parent, guard = os.getppid(), os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    rank = os.fork()
    if rank == 0:
        os.close(reader)
        report_to(writer)
        die_with(guard, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        return
    os.close(writer)
    os.set_inheritable(reader, True)
    # Blocked signals, and the signal at the parent's end, stay across exec.
    die_with(parent, signal.SIGKILL)
    place = str(Path(mallob_py.__file__).parents[1])
    program = [*bare_python(), guard_process.__file__, place, str(rank), str(reader)]
    os.execv(program[0], program)


def report_to(link: int) -> None:
    """Send this rank's reports to `link`, a pipe that the parent reads."""
    global _link, _parent
    _link, _parent = link, os.getppid()


def needs_no_farewell() -> bool:
    """Tell whether this rank can end without MPI_Finalize: its parent leaves MPI for it, or has ended."""
    return _takes_leave or (_link is not None and os.getppid() != _parent)


def is_fork(env: Mapping[str, str]) -> bool:
    """Tell whether this process is a rank of a forked world, a child of the process that started all ranks.

    The parent lets the other ranks go on if this rank dies.
    """
    return _link is not None and not is_needed(env)


MAY_BE_LOST, LEAVES = b"!", b"L"


def may_be_lost() -> None:
    """Report that the other ranks can go on without this rank from now on."""
    global _takes_leave
    _takes_leave = _say(MAY_BE_LOST)


def leaves() -> None:
    """Report, after `may_be_lost`, that this rank ends now by order; the other ranks know that."""
    _say(LEAVES)


def _say(word: bytes) -> bool:
    """Report to the parent; return whether a parent reads reports."""
    if _link is not None:
        with contextlib.suppress(OSError):
            return os.write(_link, word) > 0
    return False
