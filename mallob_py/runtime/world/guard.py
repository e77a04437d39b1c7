"""A rank's guard: the parent that a rank has so that MPICH's mpiexec does not end the others if it dies.

Mpiexec (hydra) takes a process for dead as soon as its connection to the process manager (`PMI_FD`) closes,
and then kills all others. So a rank that hydra has started forks: the child goes on as the rank, the parent
keeps the connection and waits. When the rank dies, the guard takes leave of the process manager in its name,
says how it died and ends with code 0. Ranks of other launchers need none, as they can be told to spare the
others (Slurm, Open MPI with ULFM), or are our own children (`forked_world.py`).

Guarantees: signals that ask for the end are passed on; the rank does not outlive its guard, nor the guard
the process that has started it; a rank that dies before it has called `may_be_lost` ends all others, which
would wait for it for ever.

It is to be called early, as what the process has imported by then is in memory for both.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Mapping
from types import FrameType
from typing import NoReturn

from mallob_py.runtime.notices import tell
from mallob_py.runtime.processes import die_with

#: what the guard passes on; mpiexec sends the last two to ranks when others have died
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ANSWER_TIMEOUT_MS = 1000
#: the exit code of a rank that could not go on, which says nothing of how it all ended: no answer has it
CRASHED = os.EX_SOFTWARE
#: the rank's end of a pipe to its guard
_link: int | None = None


def is_needed(env: Mapping[str, str]) -> bool:
    """Whether this is a rank that MPICH's mpiexec has started."""
    return "PMI_FD" in env and "HYDI_CONTROL_FD" in env


def stand_guard() -> None:
    """Return in a child, as the rank. The caller has a single thread, and no children."""
    reader, writer = os.pipe()
    parent, guard = os.getppid(), os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    rank = os.fork()
    if rank == 0:
        os.close(reader)
        report_to(writer)
        die_with(guard, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        return
    os.close(writer)
    die_with(parent, signal.SIGKILL)
    _guard(rank, reader)


def report_to(link: int) -> None:
    """This process is a rank whose parent reads at the other end of `link` what is said below."""
    global _link
    _link = link


MAY_BE_LOST, LEAVES = b"!", b"L"


def may_be_lost() -> None:
    """From now on the others can go on without this rank."""
    _say(MAY_BE_LOST)


def leaves() -> None:
    """This rank is about to end by order, and the others know; after `may_be_lost`."""
    _say(LEAVES)


def _say(word: bytes) -> None:
    if _link is not None:
        with contextlib.suppress(OSError):
            os.write(_link, word)


def _guard(rank: int, link: int) -> NoReturn:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    # The rank is dead, and so is its end of the pipe: this does not wait.
    if os.read(link, 1):
        if code < 0 or code == CRASHED:
            tell(epitaph(int(os.environ["PMI_RANK"]), rank, code))
        _take_leave(int(os.environ["PMI_FD"]))
        os._exit(0)
    if code < 0:
        # As if we were the rank: mpiexec is to do what it always does.
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def epitaph(rank: int, pid: int, code: int) -> str:
    """How a rank has died, for people."""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "has crashed"
    return f"rank {rank} (process {pid}) {how}; the others go on"


def _take_leave(link: int) -> None:
    """Of the process manager, unless the rank has done so."""
    with contextlib.suppress(OSError):
        os.write(link, b"cmd=finalize\n")
        poll = select.poll()
        poll.register(link, select.POLLIN)
        if poll.poll(_ANSWER_TIMEOUT_MS):
            os.read(link, 1 << 10)
