"""Which inputs are read at a time, and which of them do not get on.

So many processes read at a time; further reads wait. A process that has used no CPU time between two looks
waits itself: for the writer of a named pipe, or a dead file server. It goes on waiting, but its place goes to
the next one, so that inputs which never come keep nobody from reading. There is room for `STALLED_MAX` of
these; if others wait, the one that has stood still longest has to go.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field

from mallob_py.runtime.worker_tasks import ReadTask

LOOK_PERIOD_S = 1.0
STALLED_MAX = 64


@dataclass(frozen=True, slots=True)
class Changes:
    """Reads that stand still now, those that go on after all, and those that have to go."""

    stalled: list[ReadTask] = field(default_factory=list)
    going_on: list[ReadTask] = field(default_factory=list)
    surplus: list[ReadTask] = field(default_factory=list)


class Reads:
    """The reads of one rank."""

    def __init__(self, at_once_max: int) -> None:
        self._at_once_max = at_once_max
        #: CPU time of their processes at the last look, in nanoseconds
        self._going: dict[ReadTask, int] = {}
        #: the same; who stands still longest comes first
        self._stalled: dict[ReadTask, int] = {}
        self._later: dict[ReadTask, None] = {}
        #: when `look` is wanted next
        self.look_at_s = math.inf

    def admits(self, task: ReadTask, now_s: float) -> bool:
        """Whether a read may begin (or has begun, and does so again); else it waits here."""
        if task in self._going or task in self._stalled:
            return True
        if len(self._going) >= self._at_once_max:
            self._later[task] = None
            return False
        self._going[task] = -1
        self.look_at_s = min(self.look_at_s, now_s + LOOK_PERIOD_S)
        return True

    def end(self, task: ReadTask) -> None:
        """A read is over, or will not be."""
        for tasks in (self._going, self._stalled, self._later):
            tasks.pop(task, None)

    def following(self, now_s: float) -> list[ReadTask]:
        """Those that have waited here and begin now."""
        begin = []
        while self._later and len(self._going) < self._at_once_max:
            task = next(iter(self._later))
            del self._later[task]
            self.admits(task, now_s)
            begin.append(task)
        return begin

    def look(self, now_s: float) -> Changes:
        """See who has done anything since the last look."""
        changes = Changes()
        for task, before_ns in list(self._stalled.items()):
            if (used_ns := _cpu_ns(task)) != before_ns:
                del self._stalled[task]
                self._going[task] = used_ns
                changes.going_on.append(task)
        for task, before_ns in list(self._going.items()):
            used_ns = self._going[task] = _cpu_ns(task)
            if used_ns != before_ns or used_ns < 0 or task in changes.going_on:
                continue
            if len(self._stalled) >= STALLED_MAX:
                if not self._later:
                    continue  # it is in nobody's way
                oldest = next(iter(self._stalled))
                del self._stalled[oldest]
                changes.surplus.append(oldest)
            del self._going[task]
            self._stalled[task] = used_ns
            changes.stalled.append(task)
        self.look_at_s = now_s + LOOK_PERIOD_S if self._going or self._stalled else math.inf
        return changes


def _cpu_ns(task: ReadTask) -> int:
    """What its process has used; -1 if there is none."""
    if task.link is not None:
        with (
            suppress(OSError, ValueError),
            open(f"/proc/{task.link.pid}/schedstat", "rb", buffering=0) as file,
        ):
            return int(file.read().split()[0])
    return -1
