"""Figures of a search: counts that the search's process writes into memory shared with the worker process."""

from __future__ import annotations

import mmap
import os
import struct
import time
from contextlib import suppress
from dataclasses import astuple, dataclass

#: value of `conflicts` for solvers that do not report their number of conflicts
UNTOLD = -1
_FORM = struct.Struct("<qqqqdq")
_CPU_CLOCK = 2


@dataclass(slots=True)
class Figures:
    """Counts of one search so far."""

    #: number of other workers' clauses that have reached the solver's process, and that the solver uses
    came: int = 0
    used: int = 0
    #: number of other workers' clauses over variables that the solver has eliminated
    removed: int = 0
    #: number of conflicts, or UNTOLD
    conflicts: int = UNTOLD
    #: total time that the `came` clauses had waited between the worker process and the solver
    waited_s: float = 0.0
    #: pid of the solver's process; 0: it has not begun
    pid: int = 0


class FiguredSearch:
    """A search whose child process reports figures; base of `Search` and `NativeSearch`."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._board, self._figures = FiguresBoard(), Figures()

    def figures(self) -> Figures:
        """Return what the solver's process has counted so far."""
        return self._board.read()

    def cpu_s(self) -> float:
        """Return the CPU time of the solver's process."""
        return self._board.cpu_s()


class FiguresBoard:
    """Shared memory into which a child writes its figures for its parent."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _FORM.size)
        self._last: Figures | None = None
        self._cpu_s = 0.0
        self.write(Figures())

    def write(self, figures: Figures) -> None:
        self._memory[:] = _FORM.pack(*astuple(figures))

    def begin(self) -> Figures:
        """Begin to count in the child; return empty figures, which name the child's pid."""
        figures = Figures(pid=os.getpid())
        self.write(figures)
        return figures

    def read(self) -> Figures:
        return self._last or Figures(*_FORM.unpack(self._memory[:]))

    def cpu_s(self) -> float:
        """Return the CPU time of the child."""
        if self._last is None and (pid := self.read().pid):
            with suppress(OSError):  # the child may have ended; the clock is that of clock_getcpuclockid
                self._cpu_s = time.clock_gettime(~pid << 3 | _CPU_CLOCK)
        return self._cpu_s

    def close(self) -> None:
        """Free the memory, while the child's pid still exists. The last figures can still be read."""
        self.cpu_s()
        self._last = self.read()
        self._memory.close()
