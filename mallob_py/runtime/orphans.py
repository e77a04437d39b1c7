"""Processes that outlive those who started them: they come to us, and do not stay.

After a crash, the next world meets nobody who still holds a lock or writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent_pid: int, death_signal: int) -> None:
    """Have the kernel signal this process when its parent is gone. To be called right after the fork."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent_pid:  # gone before it could be arranged
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def no_orphans() -> Iterator[None]:
    """Be the parent of all processes that lose theirs meanwhile, and kill those that are left at the end."""
    ours = os.getpid()
    before = set(_children(ours))
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        if os.getpid() == ours:
            # Whoever is killed leaves us its own children.
            while left := set(_children(ours)) - before:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                for pid in left:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, 0)
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children(parent_pid: int) -> list[int]:
    """The processes whose parent this is."""
    found = []
    for folder in os.listdir("/proc"):
        if folder.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{folder}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[1] == str(parent_pid):
                    found.append(int(folder))
    return found
