"""Memory and CPU time as the kernel reports them: memory left on this host, and a worker's use of both.

Memory left: on the host, and in each of this process's control groups that has a limit. The kernel's estimate
for the host (`MemAvailable`) includes file caches that the kernel could drop. A group's usage counts file
caches as used, so caches that were not used lately are subtracted. Control groups have version 2 or 1; a
container may show only its own group, as the root.

Memory used by a worker: the sum of the peaks of its process and all descendants. The kernel keeps each
process's largest number of resident bytes (`VmHWM`). This counts shared pages (the job's description,
libraries) in each process; so the shared pages mapped now are subtracted from each peak, and the greatest
number of shared pages that one process maps is added once. The result is an upper bound: peaks need not
coincide, and pages that a fork has not copied yet count for parent and child. Reading costs some microseconds
per process, since the kernel reads counters, not pages.

CPU time: the kernel keeps for each process its own CPU time and that of the ended children that it has waited
for (`/proc/<pid>/stat`), in ticks of 10 ms; live descendants are read one by one. The CPU time of killed
processes whose parents did not wait for them is not counted.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from mallob_py.runtime.processes import has_children

#: numbers of errors that mean: shared memory has no room
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)

# --- memory left ------------------------------------------------------------------------------


class Reserve(NamedTuple):
    """A reserve of memory: a size, or a share of the total if that is larger; both 0: no reserve."""

    size_bytes: int = 0
    share: float = 0.0

    def of(self, total_bytes: int) -> int:
        return max(self.size_bytes, int(self.share * total_bytes))


_KILLS = re.compile(rb"^oom_kill ([0-9]+)$", re.MULTILINE)
_LINE_OF_GROUP = re.compile(r"^\d+:([^:]*):(/.*)$", re.MULTILINE)


class Room(NamedTuple):
    """The memory left on a host or in a control group, and its total."""

    left_bytes: int
    total_bytes: int


class _Files(NamedTuple):
    """The file names in one version of control groups, and the name of idle caches in `memory.stat`."""

    folders: tuple[str, ...]
    limit: str
    usage: str
    stat: bytes
    events: str


_VERSION_1 = _Files(
    ("memory",),
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    b"total_inactive_file",
    "memory.oom_control",
)
_VERSION_2 = _Files(("", "unified"), "memory.max", "memory.current", b"inactive_file", "memory.events")


def rooms(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> list[Room]:
    """Return the memory left on the host, then in each control group with a limit; empty: not reported."""
    with suppress(OSError, ValueError, KeyError):
        lines = _numbers(_read(f"{proc}/meminfo").replace(b":", b""))
        host = Room(1024 * lines[b"MemAvailable"], 1024 * lines[b"MemTotal"])
        return [host, *_rooms_of_groups(_groups_here(proc, groups), host.total_bytes)]
    return []


def _rooms_of_groups(folders: Iterable[tuple[str, _Files]], host_bytes: int) -> Iterator[Room]:
    for folder, files in folders:
        # A group without a limit has no file, a word instead of a number, or a number beyond all memory.
        with suppress(OSError, ValueError, KeyError):
            limit_bytes = int(_read(f"{folder}/{files.limit}"))
            if limit_bytes < host_bytes:
                idle_bytes = _numbers(_read(f"{folder}/memory.stat"))[files.stat]
                used_bytes = int(_read(f"{folder}/{files.usage}")) - idle_bytes
                yield Room(limit_bytes - used_bytes, limit_bytes)


def oom_kills(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return a count that grows when the kernel kills a process on this host because memory is short."""
    here = [f"{folder}/{files.events}" for folder, files in _groups_here(proc, groups)]
    return sum(map(_kills_in, (f"{proc}/vmstat", *here)))


def _kills_in(path: str) -> int:
    with suppress(OSError):
        if (found := _KILLS.search(_read(path))) is not None:
            return int(found[1])
    return 0


def _groups_here(proc: Path, groups: Path) -> tuple[tuple[str, _Files], ...]:
    """Return the folders of this process's groups and of all groups above them, whose limits also hold."""
    with suppress(OSError):
        return _folders_of(_read(f"{proc}/self/cgroup"), groups)
    return ()


@lru_cache(maxsize=1)  # called once a second, and a process hardly ever changes its groups
def _folders_of(memberships: bytes, groups: Path) -> tuple[tuple[str, _Files], ...]:
    found = []
    for controllers, path in _LINE_OF_GROUP.findall(os.fsdecode(memberships)):
        version_1 = "memory" in controllers.split(",")
        if version_1 or not controllers:
            files, place = _VERSION_1 if version_1 else _VERSION_2, PurePosixPath(path)
            for above, folder in product((place, *place.parents), files.folders):
                found.append((str(groups / folder / above.relative_to("/")), files))
    return tuple(found)


def _numbers(text: bytes) -> dict[bytes, int]:
    """Parse lines that consist of a name and a number."""
    return {name: int(number) for name, number, *_ in map(bytes.split, text.splitlines())}


# --- memory used by workers ---------------------------------------------------------------------

_KILOBYTES = re.compile(rb"^(VmHWM|RssAnon|RssFile|RssShmem):\s*([0-9]+) kB$", re.MULTILINE)


class Memory(NamedTuple):
    """The memory of a process and its descendants."""

    peak_bytes: int
    #: bytes held now that belong to no file: about the memory that the processes' end would free
    private_bytes: int


#: largest peak memory that is reported as private memory, too: reading the private memory takes longer
_LITTLE_BYTES = 64 << 20
#: smallest factor by which a peak must have grown since its reset to be worth another reset
_NOTICEABLE = 1.02


class OwnPeak:
    """This process's peak memory, reset before each task."""

    def __init__(self) -> None:
        self._since_bytes = 0

    def forget(self) -> None:
        """Reset the peak, unless that would change little."""
        if _own_peak_bytes() > _NOTICEABLE * self._since_bytes:
            forget_peak()
            self._since_bytes = _own_peak_bytes()


def _own_peak_bytes() -> int:
    """Return this process's peak memory, without reading a file."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forget_peak() -> None:
    """Reset this process's peak memory to the memory that is resident now."""
    with suppress(OSError):
        fd = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"5")
        finally:
            os.close(fd)


def peak_bytes_of(pid: int) -> int:
    """Return the peak memory of a live process and its descendants; 0: no such process."""
    return _memory_of(family(pid)).peak_bytes


def private_bytes_of(pid: int) -> int:
    """Return the private memory of a live process and its descendants; 0: no such process."""
    return _memory_of(family(pid)).private_bytes


def _memory_of(processes: Iterable[int]) -> Memory:
    own_bytes = shared_bytes = private_bytes = 0
    for each in processes:
        with suppress(OSError):
            status = {
                name: 1024 * int(size) for name, size in _KILOBYTES.findall(_read(f"/proc/{each}/status"))
            }
            if b"VmHWM" in status:  # an ending process has no such line
                mapped_bytes = status[b"RssFile"] + status[b"RssShmem"]
                own_bytes += max(0, status[b"VmHWM"] - mapped_bytes)
                shared_bytes = max(shared_bytes, mapped_bytes)
                private_bytes += status[b"RssAnon"]
    return Memory(own_bytes + shared_bytes, private_bytes)


def family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for child in _children(pid):
        yield from family(child)


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    tasks, children = f"/proc/{pid}/task", list[int]()
    with suppress(OSError):
        threads = os.listdir(tasks) if os.stat(tasks).st_nlink > _LINKS_OF_ONE_THREAD else [pid]
        for thread in threads:
            with suppress(OSError):  # the thread has ended
                children += map(int, _read(f"{tasks}/{thread}/children").split())
    return children


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(fd, 1 << 14)]
        while len(parts[-1]) > _PAGE_BYTES // 2:  # the kernel gives long lists a page at a time
            parts.append(os.read(fd, 1 << 14))
        return b"".join(parts)
    finally:
        os.close(fd)


_PAGE_BYTES = 4096
#: number of hard links of a process's folder `task` if the process has one thread
_LINKS_OF_ONE_THREAD = 3
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: positions of the fields utime, stime, cutime, cstime, counted after the command's name
_TIMES = slice(11, 15)


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of a live process and its descendants, ended or live; 0: no such process."""
    return sum(map(_seconds, family(pid)))


def own_usage() -> tuple[Memory, float]:
    """Return the memory and CPU time of this process and its descendants.

    For a small process without children no file is read, and its peak is returned as private memory, too.
    """
    own = resource.getrusage(resource.RUSAGE_SELF)
    peak_bytes = 1024 * own.ru_maxrss
    descendants = _descendants()
    if descendants or peak_bytes > _LITTLE_BYTES:
        memory = _memory_of([os.getpid(), *descendants])
    else:
        memory = Memory(peak_bytes, peak_bytes)
    return memory, _own_cpu_seconds(own, descendants)


def own_cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants."""
    return _own_cpu_seconds(resource.getrusage(resource.RUSAGE_SELF), _descendants())


def _descendants() -> list[int]:
    return list(family(os.getpid()))[1:] if has_children() else []


def _own_cpu_seconds(own: resource.struct_rusage, descendants: Iterable[int]) -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in (own, ended)) + sum(map(_seconds, descendants))


def _seconds(pid: int) -> float:
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        # The name, in brackets, may hold any character.
        fields = file.read().rpartition(b")")[2].split()
        return sum(map(int, fields[_TIMES])) / _TICKS_PER_S
    return 0.0
