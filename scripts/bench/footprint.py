"""The costs of a service: CPU time, wake-ups and system calls of all its processes.

CPU time is the kernel scheduler's own count. A wake-up is a voluntary context switch: a sleeping thread runs
again. Both counts are exact and cost the service nothing. strace counts system calls and slows the processes,
so system calls and times must be measured on different jobs.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from processes import everyone_below

_PROC = Path("/proc")
#: system calls whose counts are reported separately
TOLD = ("epoll_wait", "openat", "read", "newfstatat", "sendto")
_ATTACH_PATIENCE_S = 20.0


class Footprint:
    """CPU time and wake-ups of a process and its descendants, from now on."""

    def __init__(self, pid: int, since_start: bool = False) -> None:
        self._pid = pid
        self._before = (0.0, 0) if since_start else self._now()

    def cpu_s(self) -> float:
        return self._now()[0] - self._before[0]

    def per(self, count: float) -> dict[str, float]:
        """Return the costs divided by `count`, a number of jobs or seconds."""
        after = self._now()
        return {
            "CPU ms": 1e3 * (after[0] - self._before[0]) / count,
            "wake-ups": (after[1] - self._before[1]) / count,
        }

    def _now(self) -> tuple[float, int]:
        cpu_ns = switches = 0
        for pid in everyone_below(self._pid):
            for thread in (_PROC / str(pid) / "task").glob("*"):
                with suppress(OSError):
                    cpu_ns += int((thread / "schedstat").read_bytes().split()[0])
                    status = (thread / "status").read_text()
                    switches += int(status.partition("\nvoluntary_ctxt_switches:")[2].split(None, 1)[0])
        return cpu_ns / 1e9, switches


class SystemCalls:
    """Context manager that counts the system calls of a process tree; no counts without strace."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> SystemCalls:
        self._strace: subprocess.Popen[bytes] | None = None
        if shutil.which("strace") is None:
            return self
        self._out = tempfile.NamedTemporaryFile("r", prefix="mallob-py-calls.")
        pids = everyone_below(self._pid)
        command = ["strace", "-f", "-qq", "-c", "-U", "calls,name", "-o", self._out.name]
        self._strace = subprocess.Popen(
            [*command, *(f"--attach={pid}" for pid in pids)], stderr=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + _ATTACH_PATIENCE_S
        while (
            not all(map(_is_traced, pids)) and time.monotonic() < deadline_s and self._strace.poll() is None
        ):
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._strace is None:
            return
        self._strace.send_signal(signal.SIGINT)
        self._strace.wait()
        with self._out as out:
            for line in out:
                fields = line.split()
                if len(fields) == 2 and fields[0].isdecimal() and fields[1] != "total":
                    self.counts[fields[1]] += int(fields[0])

    def per(self, count: float) -> dict[str, float]:
        """Return the counts of system calls divided by `count`, a number of jobs: of all calls, and of each
        call in TOLD.
        """
        if not self.counts:
            return {}
        told = {name: self.counts[name] / count for name in TOLD}
        return {"calls": self.counts.total() / count, **told}


def _is_traced(pid: int) -> bool:
    with suppress(OSError):
        return "\nTracerPid:\t0\n" not in (_PROC / str(pid) / "status").read_text()
    return True
