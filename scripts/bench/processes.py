"""The cost of a service's processes, read from `/proc`.

CPU time comes from the kernel scheduler's counters, in nanoseconds, because clock ticks of 10 ms are too
coarse for processes that sleep most of the time.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Memory:
    """Resident memory, and memory in which shared pages are divided by the number of sharers (PSS)."""

    resident_bytes: int
    proportional_bytes: int


def everyone_below(pid: int) -> tuple[int, ...]:
    """Return a process and all its descendants."""
    return (pid, *_below(pid, _children()))


def cpu_s(pids: tuple[int, ...]) -> float:
    """Return the CPU time that the living threads of these processes have used so far."""
    total_ns = 0
    for pid in pids:
        for thread in (_PROC / str(pid) / "task").glob("*/schedstat"):
            with suppress(OSError):
                total_ns += int(thread.read_bytes().split()[0])
    return total_ns / 1e9


def memory(pids: tuple[int, ...]) -> Memory:
    """Return the memory of these processes together."""
    resident = proportional = 0
    for pid in pids:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]:
            name, kilobytes = line.split()[:2]
            resident += int(kilobytes) * 1024 if name == "Rss:" else 0
            proportional += int(kilobytes) * 1024 if name == "Pss:" else 0
    return Memory(resident, proportional)


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                # The second field is the program's name, which may contain blanks and brackets.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    return children


def _below(pid: int, children: dict[int, list[int]]) -> list[int]:
    found: list[int] = []
    for child in children.get(pid, ()):
        found += [child, *_below(child, children)]
    return found
