"""The rules for all our processes: how they start, with which process they end, and what they may use.

- Processes import from where this process imports, never from the working folder: `python -m` would search it
  first, and other users may have put modules there, as in /tmp.
- Forks can have titles (`set_title`).
- Processes turn off threads of numeric libraries, and may open many descriptors.
- A process that starts others for a user catches stop signals (`StopRequests`), and adopts all orphans below
  it (`no_orphans`): so after a crash no old process still holds a lock or writes.

This module imports little, since all commands import it first.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from types import FrameType
from typing import Any


def python() -> list[str]:
    """Return the command of a Python that imports neither from the working folder nor from the script's."""
    return [sys.executable, "-P"]


def bare_python() -> list[str]:
    """Return the command of a Python with only the standard library, for programs that must start quickly."""
    return [sys.executable, "-I", "-S"]


def import_places() -> dict[str, str]:
    """Return the environment variables that make a process import from where this process imports."""
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def bytes_read(pid: int, path: str) -> tuple[int, int] | None:
    """Return how many bytes of a file a process has read, and the file's size; None: the file is not open."""
    with contextlib.suppress(OSError, ValueError):
        wanted = os.stat(path)
        for descriptor in os.listdir(f"/proc/{pid}/fd") if os.path.isfile(path) else ():
            with contextlib.suppress(OSError):  # the file was closed meanwhile
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), wanted):
                    with open(f"/proc/{pid}/fdinfo/{descriptor}") as info:
                        return int(info.readline().split()[1]), wanted.st_size
    return None


def is_stopped(pid: int) -> bool:
    """Tell whether a process exists and is stopped by a signal."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] == b"T"
    return False


_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def want_no_numeric_threads() -> None:
    """Turn off threads of numeric libraries; must be called before numpy is imported.

    Otherwise each rank would have a thread for each core of its host, and a process with threads cannot fork
    safely. The user's own settings stay.
    """
    for name in _VARIABLES:
        os.environ.setdefault(name, "1")


#: greatest limit to set: a higher limit would slow down programs that close all possible descriptors
_WANTED = 1 << 16
#: number of descriptors per worker process: socket, pidfd, lifeline
_PER_PROCESS = 3
#: number of descriptors that a rank needs for MPI, its network, doorbells, logs, the api folder, transfers
#: and readers of inputs
_OF_THE_RANK = 256


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors, to `_WANTED` or the hard limit; return the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else _WANTED
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def descriptors_needed(pes: int, processes_per_pe: int, links: int = 0) -> int:
    """Return how many descriptors a rank of `pes` PEs may need, including a description's for each process.

    `links`: number of ranks with connections outside MPI.
    """
    return _OF_THE_RANK + links + pes * processes_per_pe * (_PER_PROCESS + 1)


def descriptor_shortage(pes: int, processes_per_pe: int, limit: int, links: int = 0) -> str | None:
    """Return why the limit of descriptors is too low for `pes` PEs; None: the limit suffices."""
    wanted = descriptors_needed(pes, processes_per_pe, links)
    if wanted <= limit:
        return None
    most = max(0, (limit - _OF_THE_RANK - links) // (processes_per_pe * (_PER_PROCESS + 1)))
    who, ways = (
        (f"--pes: {pes} PEs on one rank", f"have at most {most} PEs per rank, ") if most else ("a rank", "")
    )
    if limit >= descriptors_needed(1, 1, links):
        ways += "lower --job-cache or --warm, or "
    return (
        f"{who} may need {wanted} file descriptors, {limit} are allowed: {ways}raise the hard limit "
        "(ulimit -Hn, LimitNOFILE)"
    )


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequests:
    """Context manager that holds back stop signals until they are passed on."""

    def __init__(self) -> None:
        #: the first signal, and whether the user has pressed Ctrl-C after it
        self.first: int | None = None
        self.insisted = False

    def __enter__(self) -> StopRequests:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous = {each: signal.signal(each, self._on_signal) for each in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def wait(self, timeout_s: float, *descriptors: int) -> list[int]:
        """Wait for a signal or a descriptor, at most `timeout_s`; return the readable descriptors."""
        poll = select.poll()
        for each in (self._read_fd, *descriptors):
            poll.register(each, select.POLLIN)
        readable = [descriptor for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)]
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 64)
        return [each for each in readable if each != self._read_fd]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.first is None:
            self.first = number
        elif number == signal.SIGINT:
            self.insisted = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"!")


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent_pid: int, death_signal: int) -> None:
    """Have the kernel signal this process when its parent ends. Must be called right after the fork."""
    _prctl(_PR_SET_PDEATHSIG, int(death_signal))
    if os.getppid() != parent_pid:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def no_orphans(grace_s: float = 0.0) -> Iterator[None]:
    """Context manager that adopts all orphans below this process, and kills the remaining orphans at the end.

    `grace_s`: how long orphans may take to end by themselves.
    """
    ours = os.getpid()
    before = set(_children(ours))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        if os.getpid() == ours:
            if grace_s and has_children():
                left_of(set(_children(ours)) - before, grace_s)
            # The children of a killed process become children of this process.
            deadline_s = time.monotonic() + _BURIAL_S
            while has_children() and (left := set(_children(ours)) - before):
                before |= _kill_and_bury(left, deadline_s - time.monotonic())
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def adopt_orphans() -> None:
    """Adopt all orphans below this process from now on; see `kill_adopted`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_adopted(own: Collection[int]) -> None:
    """Kill adopted processes (children neither in `own` nor in this session) and their descendants.

    A process that the kernel keeps from ending, as a hanging file system can, is not waited for.
    """
    ours, session = os.getpid(), os.getsid(0)
    held: set[int] = set()
    for _ in range(_GENERATIONS_MAX):  # children of killed processes become this process's children
        left = {each for each in _children(ours) if each not in own and _session_of(each) != session} - held
        if not left:
            return
        held |= _kill_and_bury(left, _KILLED_S)


#: greatest number of generations of processes to kill; longest wait for one generation to end
_GENERATIONS_MAX, _KILLED_S = 100, 0.5
#: longest wait for killed processes when this process ends; on a busy machine they take long to end
_BURIAL_S = 60.0


def _kill_and_bury(children: set[int], timeout_s: float) -> set[int]:
    """Kill children; return the children that have not ended after `timeout_s`."""
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left_of(children, timeout_s)


_LOOK_MIN_S, _LOOK_MAX_S = 0.0002, 0.01


def left_of(children: Iterable[int], timeout_s: float = math.inf) -> set[int]:
    """Wait for children; return the children that have not ended after `timeout_s`. Needs no descriptor."""
    left, deadline_s, delay_s = set(children), time.monotonic() + timeout_s, _LOOK_MIN_S
    while left := {pid for pid in left if not _is_buried(pid)}:
        if time.monotonic() >= deadline_s:
            break
        time.sleep(delay_s)
        delay_s = min(1.5 * delay_s, _LOOK_MAX_S)
    return left


def _is_buried(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:  # the process has ended
        return 0


def bury_orphans(own: Collection[int]) -> None:
    """Reap children that have ended, except `own`, for which the caller waits."""
    with contextlib.suppress(ChildProcessError):  # there are no children
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own:
                break
            os.waitpid(ended.si_pid, 0)


def _prctl(option: int, value: int) -> None:
    _c_library().prctl(option, value, 0, 0, 0)


@functools.cache  # forked processes then need not load the library again
def _c_library() -> Any:
    import ctypes  # imported late: running ranks do not need the module

    return ctypes.CDLL(None)


def close_all_but(*descriptors: int) -> None:
    """Close all descriptors except these and the standard streams."""
    kept = sorted(descriptors)
    for before, after in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(before + 1, after)


def set_title(title: str) -> None:
    """Have `ps` show this title, cut to the command line's length, instead of the command line.

    Only for forked processes: the title overwrites the arguments in memory. If the kernel does not report
    where the arguments are, nothing is done.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        with open("/proc/self/stat") as stat:
            begin, end = map(int, stat.read().rsplit(")", 1)[1].split()[45:47])
        if 0 < begin < end:
            import ctypes

            text = os.fsencode(title)[: end - begin - 1]
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, text, len(text))


#: greatest size of a process's `stat` file
_STAT_BYTES_MAX = 4096


def has_children() -> bool:
    """Tell whether this process has children, running or ended but not reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children(parent_pid: int) -> list[int]:
    """Return the children of a process."""
    found, wanted = [], b"%d" % parent_pid
    for folder in os.listdir("/proc"):
        if folder.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{folder}/stat", "rb", buffering=0) as stat:
                if stat.read(_STAT_BYTES_MAX).rsplit(b")", 1)[1].split(None, 2)[1] == wanted:
                    found.append(int(folder))
    return found


def descendants(root: int) -> list[int]:
    """Return the descendants of a process. Orphans and their descendants are missing."""
    found = _children(root)
    for pid in found:  # the loop body appends to the list
        found += _children(pid)
    return found


@contextlib.contextmanager
def signals_held_back(*more: int) -> Iterator[None]:
    """Context manager that holds back the stop signals and `more`."""
    held = {*STOP_SIGNALS, *more}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def use_no_input() -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
