"""The rules for all processes that we start: how they begin, with whom they end, what they may have.

- They are started with the imports of this process, not with the working folder's: `python -m` would look for
  modules in the working folder first, where it may be anybody who has put them, as in /tmp.
- Forks can have titles of their own (`set_title`).
- They want no threads of numeric libraries, and as many descriptors as they may have.
- Whoever stands in for others catches the signals that ask for the end (`StopRequests`), and is the parent
  of all that lose theirs (`no_orphans`): after a crash, the next world meets nobody who still holds a lock
  or writes.

Imports next to nothing: commands begin with it.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from types import FrameType


def python() -> list[str]:
    """Python, without the working folder or the script's among the places of imports."""
    return [sys.executable, "-P"]


def bare_python() -> list[str]:
    """Python with nothing but the standard library, for programs that need to start at once."""
    return [sys.executable, "-I", "-S"]


def import_places() -> dict[str, str]:
    """The environment by which it imports from where this process does."""
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def bytes_read(pid: int, path: str) -> tuple[int, int] | None:
    """Return how far a process has read a file that it has open, and the file's size; None: it has not."""
    with contextlib.suppress(OSError, ValueError):
        wanted = os.stat(path)
        for descriptor in os.listdir(f"/proc/{pid}/fd") if os.path.isfile(path) else ():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), wanted):
                    with open(f"/proc/{pid}/fdinfo/{descriptor}") as info:
                        return int(info.readline().split()[1]), wanted.st_size
    return None


def is_stopped(pid: int) -> bool:
    """Whether a process is there and was stopped by a signal."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] == b"T"
    return False


_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def want_no_numeric_threads() -> None:
    """To be called before numpy is imported: all ranks of a host would have threads for all its cores.

    And a process with threads cannot fork safely. What the user has set stays.
    """
    for name in _VARIABLES:
        os.environ.setdefault(name, "1")


#: more would make programs slow that close all they could have
_WANTED = 1 << 16
#: per worker process: its socket, its pidfd and its lifeline
_PER_PROCESS = 3
#: MPI with its network, doorbells, logs, the api folder, transfers, readers of inputs
_OF_THE_RANK = 256


def raise_descriptor_limit() -> int:
    """Raise the soft limit as far as is allowed and sensible; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else _WANTED
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def descriptors_needed(pes: int, processes_per_pe: int, links: int = 0) -> int:
    """Return how many descriptors a rank of so many PEs may need; each process's description is locked by one
    more.

    `links`: to how many ranks it has connections of its own, not MPI's.
    """
    return _OF_THE_RANK + links + pes * processes_per_pe * (_PER_PROCESS + 1)


def descriptor_shortage(pes: int, processes_per_pe: int, limit: int, links: int = 0) -> str | None:
    """Why a rank cannot host so many PEs; None if it can."""
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
    """Catches the signals while it is a context; in between they wait to be passed on."""

    def __init__(self) -> None:
        #: the first signal, and whether the user has insisted since
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
        """Until a further signal comes, it is time, or descriptors are readable, which are returned."""
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
    """Have the kernel signal this process when its parent is gone. To be called right after the fork."""
    _prctl(_PR_SET_PDEATHSIG, int(death_signal))
    if os.getppid() != parent_pid:  # gone before it could be arranged
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def no_orphans(grace_s: float = 0.0) -> Iterator[None]:
    """Be the parent of all processes that lose theirs meanwhile, and kill those that are left at the end.

    `grace_s`: how long adopted processes may take to end by themselves before that.
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
            # Whoever is killed leaves us its own children.
            deadline_s = time.monotonic() + _BURIAL_S
            while has_children() and (left := set(_children(ours)) - before):
                before |= _kill_and_bury(left, deadline_s - time.monotonic())
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def adopt_orphans() -> None:
    """From now on, be the parent of all processes below this one that lose theirs; see `kill_adopted`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_adopted(own: Collection[int]) -> None:
    """Kill what has been adopted, and what is below: children that neither are `own` nor have our session.

    A process that the kernel holds, such as for a file system that hangs, is not waited for.
    """
    ours, session = os.getpid(), os.getsid(0)
    held: set[int] = set()
    for _ in range(_GENERATIONS_MAX):  # whoever is killed leaves us its own children
        left = {each for each in _children(ours) if each not in own and _session_of(each) != session} - held
        if not left:
            return
        held |= _kill_and_bury(left, _KILLED_S)


#: of processes below each other, and how long some may take to be gone that are killed
_GENERATIONS_MAX, _KILLED_S = 100, 0.5
#: the same at the end, when nothing else is to be done; a busy machine takes its time
_BURIAL_S = 60.0


def _kill_and_bury(children: set[int], timeout_s: float) -> set[int]:
    """Kill children, and return those that do not end within the time, as the kernel holds them."""
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left_of(children, timeout_s)


_LOOK_MIN_S, _LOOK_MAX_S = 0.0002, 0.01


def left_of(children: Iterable[int], timeout_s: float = math.inf) -> set[int]:
    """Wait for children to end, and return those that do not within the time. Needs no descriptors."""
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
    except ProcessLookupError:  # it has ended
        return 0


def bury_orphans(own: Collection[int]) -> None:
    """Let go of children that have ended; `own` are those that the caller waits for, soon."""
    with contextlib.suppress(ChildProcessError):  # there are none
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own:
                break
            os.waitpid(ended.si_pid, 0)


def _prctl(option: int, value: int) -> None:
    import ctypes  # no rank needs it while it runs

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def close_all_but(*descriptors: int) -> None:
    """Close all descriptors but these, and standard input, output and error."""
    kept = sorted(descriptors)
    for before, after in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(before + 1, after)


def set_title(title: str) -> None:
    """Have `ps` show this instead of the command line, as far as it has room; to be called by a fork.

    It is written where the kernel has put the arguments of the program that this process stems from. Nothing
    else of it changes; where the kernel does not tell the place, nothing does.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        with open("/proc/self/stat") as stat:
            begin, end = map(int, stat.read().rsplit(")", 1)[1].split()[45:47])
        if 0 < begin < end:
            import ctypes

            text = os.fsencode(title)[: end - begin - 1]
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, text, len(text))


#: what the kernel tells of a process is shorter
_STAT_BYTES_MAX = 4096


def has_children() -> bool:
    """Return whether this process has children, alive or not waited for yet."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children(parent_pid: int) -> list[int]:
    """The processes whose parent this is."""
    found, wanted = [], b"%d" % parent_pid
    for folder in os.listdir("/proc"):
        if folder.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{folder}/stat", "rb", buffering=0) as stat:
                if stat.read(_STAT_BYTES_MAX).rsplit(b")", 1)[1].split(None, 2)[1] == wanted:
                    found.append(int(folder))
    return found


def descendants(root: int) -> list[int]:
    """The processes that have come from this one, and whose parents live."""
    found = _children(root)
    for pid in found:  # which grows
        found += _children(pid)
    return found


@contextlib.contextmanager
def signals_held_back(*more: int) -> Iterator[None]:
    """Hold back the signals that ask for the end, and `more`, until they can be dealt with."""
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
