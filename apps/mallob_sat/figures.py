"""Figures of a search: what its process counts, in memory that the worker's process reads."""

from __future__ import annotations

import mmap
import os
import struct
import time
from contextlib import suppress
from dataclasses import astuple, dataclass

#: the value of `conflicts` for solvers that cannot tell
UNTOLD = -1
_FORM = struct.Struct("<qqqqdq")
_CPU_CLOCK = 2


@dataclass(slots=True)
class Figures:
    """Counts of one search so far."""

    #: foreign clauses that have reached the solver's process, and those of them that the solver uses
    came: int = 0
    used: int = 0
    #: those over variables that the solver has eliminated
    removed: int = 0
    #: conflicts, or UNTOLD
    conflicts: int = UNTOLD
    #: time between the worker's process and the solver, sum of all clauses that came
    waited_s: float = 0.0
    #: the solver's process; 0: it has not begun
    pid: int = 0


class FiguredSearch:
    """A search whose child tells figures, for `Search` and `NativeSearch`."""

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
    """A place where a child writes its figures, for its parent."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _FORM.size)
        self._last: Figures | None = None
        self._cpu_s = 0.0
        self.write(Figures())

    def write(self, figures: Figures) -> None:
        self._memory[:] = _FORM.pack(*astuple(figures))

    def begin(self) -> Figures:
        """Return, in the child, its figures so far."""
        figures = Figures(pid=os.getpid())
        self.write(figures)
        return figures

    def read(self) -> Figures:
        return self._last or Figures(*_FORM.unpack(self._memory[:]))

    def cpu_s(self) -> float:
        """Return the CPU time of the child."""
        if self._last is None and (pid := self.read().pid):
            with suppress(OSError):  # the child may have died; the number is clock_getcpuclockid's
                self._cpu_s = time.clock_gettime(~pid << 3 | _CPU_CLOCK)
        return self._cpu_s

    def close(self) -> None:
        """Free the place, while the child is there or just after; what was told last can still be read."""
        self.cpu_s()
        self._last = self.read()
        self._memory.close()
