"""How much memory and CPU time a worker has used: its process and all that descend from it.

Memory: the peaks of its processes, added up. The kernel keeps for each process how many bytes were resident
at most (`VmHWM`). That counts pages which are shared with others (the job's description, libraries) in each
of them; so of these, as many as are mapped now are taken off each peak, and the most that any of the
processes maps is added once. What comes out is an upper bound, as processes need not have had their peaks
at the same time and pages that a fork has copied nothing of yet count for parent and child. Reading it
costs some microseconds per process: the kernel looks at counters, not at pages.

CPU time: the kernel keeps for each process its own and that of its children that have ended and been waited
for (`/proc/<pid>/stat`), in ticks of 10 ms; those that live are asked each for itself. What is killed
without its parent waiting for it is lost.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

_KILOBYTES = re.compile(rb"^(VmHWM|RssAnon|RssFile|RssShmem):\s*([0-9]+) kB$", re.MULTILINE)


class Memory(NamedTuple):
    """Of a process and all that descend from it."""

    peak_bytes: int
    #: what they hold now that is in no file: about what their end frees
    private_bytes: int


def forget_peak() -> None:
    """Have this process's peak begin anew, at what is resident now."""
    with suppress(OSError):
        fd = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"5")
        finally:
            os.close(fd)


def peak_bytes_of(pid: int) -> int:
    """Of a living process and all that descend from it; 0 if there is none."""
    return _memory_of(family(pid)).peak_bytes


def private_bytes_of(pid: int) -> int:
    """Of a living process and all that descend from it; 0 if there is none."""
    return _memory_of(family(pid)).private_bytes


def _memory_of(processes: Iterable[int]) -> Memory:
    own_bytes = shared_bytes = private_bytes = 0
    for each in processes:
        with suppress(OSError):
            status = {
                name: 1024 * int(size) for name, size in _KILOBYTES.findall(_read(f"/proc/{each}/status"))
            }
            if b"VmHWM" in status:  # else it is ending
                mapped_bytes = status[b"RssFile"] + status[b"RssShmem"]
                own_bytes += max(0, status[b"VmHWM"] - mapped_bytes)
                shared_bytes = max(shared_bytes, mapped_bytes)
                private_bytes += status[b"RssAnon"]
    return Memory(own_bytes + shared_bytes, private_bytes)


def family(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    with suppress(OSError):
        for child in _read(f"/proc/{pid}/task/{pid}/children").split():
            yield from family(int(child))


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 14)
    finally:
        os.close(fd)


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: of the fields after the command's name: utime, stime, cutime, cstime
_TIMES = slice(11, 15)


def cpu_seconds_of(pid: int) -> float:
    """Of a living process and its descendants, dead or alive; 0 if there is none."""
    return sum(map(_seconds, family(pid)))


def own_usage() -> tuple[Memory, float]:
    """Of this process and its descendants: memory, and CPU time, whose own part is exact to the microsecond.

    With one look at who descends from it.
    """
    processes = list(family(os.getpid()))
    return _memory_of(processes), _own_cpu_seconds(processes[1:])


def own_cpu_seconds() -> float:
    """That CPU time alone."""
    _, *descendants = family(os.getpid())
    return _own_cpu_seconds(descendants)


def _own_cpu_seconds(descendants: Iterable[int]) -> float:
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in own) + sum(map(_seconds, descendants))


def _seconds(pid: int) -> float:
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        # The name, in brackets, may hold anything.
        fields = file.read().rpartition(b")")[2].split()
        return sum(map(int, fields[_TIMES])) / _TICKS_PER_S
    return 0.0
