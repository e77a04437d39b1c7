"""A rank's guard: the parent that a rank has so that MPICH's mpiexec does not end the others if it dies.

Mpiexec (hydra) takes a process for dead as soon as its connection to the process manager (`PMI_FD`) closes,
and then kills all others. So a rank that hydra has started forks: the child goes on as the rank, the parent
keeps the connection and becomes another program (`guard_process.py`), which waits. When the rank dies, the
guard takes leave of the process manager in its name, says how it died and ends with code 0. Ranks of other
launchers need none, as they can be told to spare the others (Slurm, Open MPI with ULFM), or are our own
children (`forked_world.py`).

Guarantees: signals that ask for the end are passed on; the rank does not outlive its guard, nor the guard
the process that has started it; a rank that dies before it has called `may_be_lost` ends all others, which
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

#: the rank's end of a pipe to its guard
_link: int | None = None
#: whether the parent takes leave of the process manager in this rank's name
_takes_leave = False
#: who reads there
_parent = 0


def is_needed(env: Mapping[str, str]) -> bool:
    """Whether this is a rank that MPICH's mpiexec has started."""
    # Only the second is there on hosts other than mpiexec's own; no other launcher sets either.
    return "PMI_FD" in env and ("HYDI_CONTROL_FD" in env or "PMI_HOSTNAME" in env)


def stand_guard() -> None:
    """Return in a child, as the rank. The caller has a single thread, and no children."""
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
    # What is blocked stays so in the other program, and whom it dies with.
    die_with(parent, signal.SIGKILL)
    place = str(Path(mallob_py.__file__).parents[1])
    program = [*bare_python(), guard_process.__file__, place, str(rank), str(reader)]
    os.execv(program[0], program)


def report_to(link: int) -> None:
    """This process is a rank whose parent reads at the other end of `link` what is said below."""
    global _link, _parent
    _link, _parent = link, os.getppid()


def needs_no_farewell() -> bool:
    """Whether this rank can end without MPI_Finalize: its parent takes leave for it, or has gone itself."""
    return _takes_leave or (_link is not None and os.getppid() != _parent)


def is_fork(env: Mapping[str, str]) -> bool:
    """Whether this is a rank like all others of its world: a child of the process that has started them.

    That one spares the others if it dies.
    """
    return _link is not None and not is_needed(env)


MAY_BE_LOST, LEAVES = b"!", b"L"


def may_be_lost() -> None:
    """From now on the others can go on without this rank."""
    global _takes_leave
    _takes_leave = _say(MAY_BE_LOST)


def leaves() -> None:
    """This rank is about to end by order, and the others know; after `may_be_lost`."""
    _say(LEAVES)


def _say(word: bytes) -> bool:
    """Whether there is a parent to hear it."""
    if _link is not None:
        with contextlib.suppress(OSError):
            return os.write(_link, word) > 0
    return False
