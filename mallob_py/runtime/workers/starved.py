"""Starved tasks: their processes were killed because memory was short, so they rest before they run again.

If a process is killed (signal 9) while the host is short of memory, the fault is the host's rather than the
task's. The pool has the task rest, longer after each death, and then wait until as much memory is free as the
process had used, but at most for a minute. Of several tasks, the smallest runs first, and only one at each
check.

A process that had used more than `_MOST` of all memory gains nothing from a rest: its deaths count as the
task's fault. So do all deaths of a task after the first `SPARED_MAX`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from mallob_py.restarts import backoff_s
from mallob_py.runtime.memory import Room, oom_kills, rooms
from mallob_py.runtime.workers.tasks import JobTask, ReadTask, Task

#: greatest number of deaths of a task while memory is short that do not count as the task's fault
SPARED_MAX: Final = 8
#: the share of all memory above which a process is too large for the host
_MOST = 0.75
_REST_S, _REST_MAX_S = 1.0, 60.0
#: the longest time that a task waits for memory after its rest
_PATIENCE_S = 60.0
#: the time between two checks whether a task may go on
_LOOK_S = 1.0
#: the time without a death after which former deaths are forgotten
_WELL_AFTER_S = 600.0
#: the time after a kill by the kernel for which this kill explains further deaths of processes
_RECENT_S = 3.0
#: greatest number of records of tasks; the oldest records are forgotten
_RECORDS_MAX = 1024


class MemoryKills:
    """The evidence that memory is short on this host: kills by the kernel, and the memory watch."""

    def __init__(self, count: Callable[[], int] = oom_kills) -> None:
        self._count = count
        #: number of kills by the kernel, as counted by the last call of `look`; None: no call yet
        self._counted: int | None = None
        self._seen_s = -math.inf
        #: function that tells whether the rank's memory watch finds memory short; programs other than the
        #: kernel may then kill processes, which the kernel does not count
        self.is_short: Callable[[], bool] = bool

    def look(self, now_s: float) -> None:
        """Record whether the kernel has killed a process since the last call."""
        counted = self._count()
        if self._counted not in (None, counted):
            self._seen_s = now_s
        self._counted = counted

    def explain(self, now_s: float) -> bool:
        """Return whether a process that was killed just now was killed because memory was short."""
        self.look(now_s)
        return now_s - self._seen_s <= _RECENT_S or self.is_short()


class _Record:
    """The deaths of one task while memory was short."""

    __slots__ = ("deaths", "rests_until_s", "size_bytes", "waits_until_s")

    def __init__(self) -> None:
        self.deaths = 0
        self.size_bytes = 0
        self.rests_until_s = self.waits_until_s = -math.inf


class Starved:
    """The tasks of one rank that rest because memory was short, and the records of their deaths."""

    def __init__(
        self, kills: MemoryKills | None = None, measure: Callable[[], Sequence[Room]] = rooms
    ) -> None:
        self.kills = kills or MemoryKills()
        self._measure = measure
        #: `_key(task)` -> its record; the key outlasts processes, while a worker's number changes at each
        #: death
        self._records: OrderedDict[object, _Record] = OrderedDict()
        self._resting: dict[Task, _Record] = {}
        #: time when `awake` must be called
        self.look_at_s = math.inf

    def note_death(self, task: Task, peak_bytes: int, now_s: float) -> bool:
        """Record that a task's process was killed while memory was short; return whether the task is spared.

        The death of a task that is not spared is its own fault; the task rests nevertheless.
        """
        record = self._records.setdefault(_key(task), _Record())
        self._records.move_to_end(_key(task))
        if len(self._records) > _RECORDS_MAX:
            self._records.popitem(last=False)
        if now_s > record.waits_until_s + _WELL_AFTER_S:
            record.deaths = 0
        record.deaths += 1
        record.size_bytes = max(record.size_bytes, peak_bytes)
        record.rests_until_s = record.waits_until_s = now_s + backoff_s(_REST_S, _REST_MAX_S, record.deaths)
        total_bytes = min((room.total_bytes for room in self._measure()), default=math.inf)
        if record.size_bytes > _MOST * total_bytes:
            return False
        record.waits_until_s += _PATIENCE_S
        return record.deaths <= SPARED_MAX

    def holds(self, task: Task, now_s: float) -> bool:
        """Have a task rest if it must not run yet; return whether it rests."""
        if not self._records or (record := self._records.get(_key(task))) is None:
            return False
        if record.rests_until_s == -math.inf:
            return False
        self._resting[task] = record
        self.look_at_s = min(self.look_at_s, max(now_s, record.rests_until_s))
        return True

    def awake(self, now_s: float) -> Task | None:
        """Return the task to run now: the smallest one that has rested and has memory; None: no task."""
        self.look_at_s = math.inf
        if not self._resting:
            return None
        self.look_at_s = now_s + _LOOK_S
        left_bytes = min((room.left_bytes for room in self._measure()), default=math.inf)
        free_bytes = 0 if self.kills.explain(now_s) else left_bytes
        rested = [
            task
            for task, record in self._resting.items()
            if record.rests_until_s <= now_s
            and (record.size_bytes < free_bytes or record.waits_until_s <= now_s)
        ]
        task = min(rested, key=lambda one: self._resting[one].size_bytes, default=None)
        if task is not None:
            self._resting.pop(task).rests_until_s = -math.inf
        return task

    def leave_out(self, task: Task) -> None:
        """Remove a task that does not rest any more, because it is suspended or has ended."""
        self._resting.pop(task, None)

    def forget(self, task: Task) -> None:
        """Forget the deaths of a task that has ended well."""
        self._records.pop(_key(task), None)


def _key(task: Task) -> object:
    match task:
        case JobTask(key=(job, _)):
            return job
        case ReadTask(request_id=request_id):
            return "read", request_id
    return "inspection"
