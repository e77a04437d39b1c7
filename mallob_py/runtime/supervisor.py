"""Starting a world again that has crashed or hung, from the process that has started it.

No MPI here survives the death of a rank for sure, so all ranks end then and come up again; the
service's journal makes that a pause of some seconds. Ranks that hang are noticed by each other
(`heartbeat.py`), which ends the world as well. A world that was stopped, that says how it ended, or
that never came up at all is not started again: the next one would do no better.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from mallob_py.notices import tell
from mallob_py.runtime.launch import StopRequests, run_world
from mallob_py.runtime.world import AFTER_CRASH_VARIABLE

RESTART_WINDOW_S = 600.0
_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class RestartLimit:
    """At most so many restarts within RESTART_WINDOW_S, each after twice the time of the one before."""

    def __init__(self, restarts_max: int) -> None:
        self._restarts_max = restarts_max
        self._restarts_s: deque[float] = deque()

    @property
    def count(self) -> int:
        """How many there were lately."""
        return len(self._restarts_s)

    def next_delay_s(self, now: float) -> float | None:
        """How long to wait before a restart that is wanted now; None if there were enough."""
        while self._restarts_s and self._restarts_s[0] <= now - RESTART_WINDOW_S:
            self._restarts_s.popleft()
        if len(self._restarts_s) >= self._restarts_max:
            return None
        self._restarts_s.append(now)
        return _DELAYS_S[min(len(self._restarts_s), len(_DELAYS_S)) - 1]


def supervise(
    ranks: int,
    argv: Callable[[], Sequence[str]],
    restarts_max: int,
    rank_timeout_s: float | None,
) -> int:
    """Run `python argv()...` on `ranks` ranks, again after each crash; the exit code of the last world."""
    environment = dict(os.environ)
    limit = RestartLimit(restarts_max)
    has_come_up = False
    with StopRequests() as stops:
        while True:
            end = run_world(ranks, argv(), environment, stops, rank_timeout_s)
            has_come_up = has_come_up or end.had_come_up
            if end.code is not None or stops.first is not None or not has_come_up:
                return end.exit_code
            delay_s = limit.next_delay_s(time.monotonic())
            if delay_s is None:
                tell(
                    f"the ranks have crashed (exit code {end.exit_code}) and are not started again after "
                    f"{limit.count} restarts; unanswered jobs go on at the next start"
                )
                return end.exit_code or 1
            number = limit.count
            tell(f"the ranks have crashed (exit code {end.exit_code}); restart {number} in {delay_s:g} s")
            deadline_s = time.monotonic() + delay_s
            while (left_s := deadline_s - time.monotonic()) > 0:
                stops.wait(left_s)
                if stops.first is not None:
                    return 128 + stops.first
            environment.pop(AFTER_CRASH_VARIABLE, None)
            if (crash := end.crash) is not None:
                environment[AFTER_CRASH_VARIABLE] = crash.value
