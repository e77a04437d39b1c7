"""The program of a rank's guard (`guard.py`): waits for the rank, and leaves MPI for the rank if it dies.

Each rank has a guard as long as it runs. To save memory, the guard runs in an interpreter of its own that
imports almost nothing, not even `site`: 4 MB, while a fork of the rank grew to 10 MB.

    guard_process.py PLACE RANK_PID LINK        PLACE: where mallob_py is imported from
"""

from __future__ import annotations

import os
import select
import signal
import sys

TYPE_CHECKING = False  # importing typing and contextlib would take a fifth more memory
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

#: signals passed on to the rank; mpiexec sends the last two to ranks when other ranks die
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: exit code of a rank that could not go on, different from all exit codes of answers
CRASHED = os.EX_SOFTWARE
#: signals that order the rank to end
_STOP = (signal.SIGINT, signal.SIGTERM)
_ANSWER_TIMEOUT_MS = 1000
#: how long a rank may take to end after a stop signal; other ranks have given it up long before
STOP_GRACE_S = 30


def epitaph(rank: int, pid: int, code: int, consequence: str = "the others go on") -> str:
    """Return a line for people: how a rank died, and the consequence."""
    if code == -signal.SIGALRM:  # the kernel timer of deadlines.py
        how = "has waited too long inside MPI for other ranks, and was ended by SIGALRM"
    elif code == -signal.SIGBUS:  # the rank wrote to mapped memory without room
        how = "was ended by SIGBUS: /dev/shm has no room; enlarge it (a container: --shm-size)"
    else:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "has crashed"
    return f"rank {rank} (process {pid}) {how}; {consequence}"


def guard(rank: int, link: int, grace_s: float = STOP_GRACE_S) -> NoReturn:
    """Wait for the rank's process, then end as it did, or, if it had written to `link`, leave MPI for it.

    `link`: a pipe from the rank. The caller must block the signals in `PASSED_ON`. A rank that does not end
    within `grace_s` after a stop signal is killed: it hangs, and mpiexec would wait for it.
    """
    from mallob_py.runtime.notices import tell, with_time_stamps

    with_time_stamps()  # only ranks of a service have guards

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number in _STOP:
            signal.setitimer(signal.ITIMER_REAL, grace_s)
        try:  # noqa: SIM105
            os.kill(rank, signal.SIGKILL if number == signal.SIGALRM else number)
        except ProcessLookupError:
            pass

    for number in (*PASSED_ON, signal.SIGALRM):
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    # The rank has ended, so its end of the pipe is closed: reading does not wait.
    if os.read(link, 1):
        if code < 0 or code == CRASHED:
            tell(epitaph(int(os.environ["PMI_RANK"]), rank, code))
        _take_leave(int(os.environ["PMI_FD"]))
        os._exit(0)
    if code < 0:
        # End by the rank's signal, so that mpiexec does what it always does.
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _take_leave(link: int) -> None:
    """Leave the process manager for the rank, unless the rank has done so."""
    try:
        os.write(link, b"cmd=finalize\n")
        poll = select.poll()
        poll.register(link, select.POLLIN)
        if poll.poll(_ANSWER_TIMEOUT_MS):
            os.read(link, 1 << 10)
    except OSError:
        pass


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    guard(int(sys.argv[2]), int(sys.argv[3]))
