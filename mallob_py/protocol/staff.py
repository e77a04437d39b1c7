"""The staff: the active, suspended and leaving workers of one PE, found by process or by stay."""

from __future__ import annotations

from mallob_py.protocol.leaving import Leaver, Leaving
from mallob_py.protocol.worker import Worker


class Staff:
    """The workers of one PE: at most one is in a tree."""

    def __init__(self, suspended: dict[int, Worker], leaving: Leaving) -> None:
        self.active: Worker | None = None
        #: suspended workers by job
        self.suspended = suspended
        self.leaving = leaving

    def active_in(self, stay: int) -> Worker | None:
        worker = self.active
        return worker if worker is not None and worker.stay == stay else None

    def active_as(self, number: int) -> Worker | None:
        worker = self.active
        return worker if worker is not None and worker.number == number else None

    def parent_of(self, job: int, index: int) -> Worker | None:
        """Return the active worker if it is the parent of worker `index` of `job`, else None."""
        worker = self.active
        if worker is None or worker.job != job or worker.seats.seat(index) is None:
            return None
        return worker

    def by_number(self, number: int) -> Worker | None:
        """Return the worker whose process has this number; None: the process is gone."""
        if self.active is not None and self.active.number == number:
            return self.active if self.active.state.has_process else None
        return next((worker for worker in self.suspended.values() if worker.number == number), None)

    def by_any_number(self, number: int) -> Worker | Leaver | None:
        """Return the worker, leaving or not, whose process has this number; None: the process is gone."""
        return self.by_number(number) or self.leaving.get(number)
