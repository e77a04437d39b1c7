"""The one desk of `solve` and `run`: on rank 0, and on another rank should that be lost.

Only the rank with the desk knows what has been answered. So it tells the others after each answer, and
whoever takes over begins with what is left, as job number so many: the workers that the others have of it
go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mallob_py.protocol.effects import JobEnded
from mallob_py.runtime import worker_events as events
from mallob_py.runtime.rank import Desk, Rank

_COUNT_BYTES = 4


class OneDesk:
    """The desk if this is its rank, else a place to wait for it."""

    def __init__(self, rank: Rank, make: Callable[[int], Desk]) -> None:
        """`make(answered)`: begins with what has not been answered yet."""
        self._rank = rank
        self._make = make
        self._answered = 0
        #: once it is here
        self.desk: Desk | None = None
        rank.on_change(self._follow)

    def open(self) -> Desk:
        """What this rank is to have."""
        return self._begin() if self._is_ours() else self

    def tell_answered(self, answered: int) -> None:
        """So much has been answered, should somebody else have to go on."""
        self._answered = answered
        if self._rank.survives:
            data = answered.to_bytes(_COUNT_BYTES, "little")
            for rank in self._rank.placement.members:
                if rank != self._rank.rank:
                    self._rank.tell_desk(rank, data)

    def _is_ours(self) -> bool:
        return self._rank.rank == self._rank.placement.members[0]

    def _begin(self) -> Desk:
        self.desk = self._make(self._answered)
        return self.desk

    def _follow(self) -> None:
        if self.desk is not None:
            self.tell_answered(self._answered)  # to those who have joined, too
        elif self._is_ours():
            self._rank.set_desk(self._begin())

    # --- as a desk without jobs ---------------------------------------------------------------

    def fileno(self) -> int | None:
        return None

    deadline_s = math.inf

    def turn(self, now: float) -> None:
        pass

    def job_sought(self, job: int, now: float) -> None:
        pass

    def job_saved(self, job: int, checkpoint: bytes, now: float) -> None:
        pass

    def job_ended(self, ended: JobEnded, now: float) -> None:
        pass

    def worker_event(self, event: events.WorkerEvent, now: float) -> None:
        pass

    def hear(self, rank: int, data: bytes, now: float) -> None:
        self._answered = max(self._answered, int.from_bytes(data, "little"))

    def close(self) -> None:
        pass

    def hand_over(self) -> None:
        pass
