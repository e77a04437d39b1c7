"""How much CPU time processes have used, with all that descend from them.

The kernel keeps for each process its own time and that of its children that have ended and been waited for
(`/proc/<pid>/stat`), in ticks of 10 ms; those that live are asked each for itself. What is killed without its
parent waiting for it is lost.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from mallob_py.runtime.memory import family

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: of the fields after the command's name: utime, stime, cutime, cstime
_TIMES = slice(11, 15)


def cpu_seconds_of(pid: int) -> float:
    """Of a living process and its descendants, dead or alive; 0 if there is none."""
    return sum(map(_seconds, family(pid)))


def own_cpu_seconds() -> float:
    """The same of this process, whose own part is exact to the microsecond."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    others = family(os.getpid())
    next(others)  # this process
    return sum(usage.ru_utime + usage.ru_stime for usage in own) + sum(map(_seconds, others))


def _seconds(pid: int) -> float:
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        # The name, in brackets, may hold anything.
        fields = file.read().rpartition(b")")[2].split()
        return sum(map(int, fields[_TIMES])) / _TICKS_PER_S
    return 0.0
