"""The processes of a watched service, as /proc shows them, and the error for violated guarantees."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MARK = "MALLOB_PY_SOAK_MARK"


class Wrong(Exception):
    """A guarantee is violated. `identity`: the job that is concerned, if any."""

    def __init__(self, text: str, identity: str | None = None) -> None:
        super().__init__(text)
        self.identity = identity


def state_of(pid: int) -> str:
    """Return a process's state as a letter, as in /proc: R computes, Z has ended; X: no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return "X"


def lives(pid: int) -> bool:
    """Tell whether a process has not ended. An ended process whose parent has not waited counts as ended."""
    return state_of(pid) not in "ZX"


def marked_processes(mark: str) -> list[int]:
    """Return the living processes whose environment has this value of MARK."""
    return processes_with(MARK, mark)


def processes_with(variable: str, value: str) -> list[int]:
    """Return the living processes that were started with this value of an environment variable."""
    needle = f"{variable}={value}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if needle in (folder / "environ").read_bytes().split(b"\0") and lives(int(folder.name)):
                found.append(int(folder.name))
    return found


def inherits(pid: int, variable: str) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return any(word.startswith(f"{variable}=".encode()) for word in words)
    return False


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def proportional_bytes(pid: int) -> int:
    """Return a process's memory, in which shared pages are divided by the number of sharers (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@dataclass(frozen=True, slots=True)
class Family:
    """A service's processes by their role. Solver processes of a worker count as workers."""

    ranks: list[int]
    fork_servers: list[int]
    workers: list[int]

    @classmethod
    def of(cls, mark: str) -> Family:
        pids = marked_processes(mark)
        forked = [pid for pid in pids if "fork_server" in command_line(pid)]
        servers = [pid for pid in forked if parent_of(pid) not in forked]
        workers = [pid for pid in forked if pid not in servers]
        return cls(sorted({parent_of(pid) for pid in servers} & set(pids)), servers, workers)


def rank_number(pid: int) -> int:
    """Return a rank's number in the world in which it was started; -1 if it cannot be read."""
    if (title := re.search(r": rank (\d+)", command_line(pid))) is not None:
        return int(title[1])
    with contextlib.suppress(OSError):
        for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if word.startswith(b"PMI_RANK="):
                return int(word.removeprefix(b"PMI_RANK="))
    return -1


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float, period_s: float = 0.02) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise Wrong(f"did not happen within {timeout_s:g} s: {what}")
        time.sleep(period_s)
