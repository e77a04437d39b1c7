"""The desk and the orders of one rank, as far as it has them, and what they hear of it (`desk.py`)."""

from __future__ import annotations

import math

from mallob_py.protocol.effects import JobEnded, JobGivenUp, JobRests, JobSaved, JobSought
from mallob_py.protocol.rank_effects import DeskHears
from mallob_py.runtime.bells import Bells
from mallob_py.runtime.desk import Desk, Orders
from mallob_py.runtime.workers.tasks import WorkerEvent


class Doors:
    """The doors of one rank, closed until it has a desk or orders."""

    def __init__(self, bells: Bells) -> None:
        self._bells = bells
        self._desk: Desk | None = None
        self._orders: Orders | None = None

    def set_desk(self, desk: Desk) -> None:
        """From now on jobs come in here."""
        self._desk = desk
        self._bells.watch_desk(desk.fileno())

    def set_orders(self, orders: Orders) -> None:
        """From now on orders come in here."""
        self._orders = orders
        self._bells.watch_orders(orders.fileno())

    @property
    def takes_orders(self) -> bool:
        return self._orders is not None

    @property
    def deadline_s(self) -> float:
        """When one of them is to be served, if nothing comes before."""
        return min(
            math.inf if self._desk is None else self._desk.deadline_s,
            math.inf if self._orders is None else self._orders.deadline_s,
        )

    def open(self, now: float) -> None:
        """Serve the desk once, whatever the time."""
        if self._desk is not None:
            self._desk.turn(now)

    def serve_desk(self, now: float) -> None:
        """Serve the desk if its bell has rung or its time has come."""
        if self._desk is not None and (self._bells.desk in self._bells.rung or self._desk.deadline_s <= now):
            self._desk.turn(now)

    def serve_orders(self, now: float) -> None:
        """Serve the orders if their bell has rung or their time has come."""
        orders = self._orders
        if orders is not None and (self._bells.orders in self._bells.rung or orders.deadline_s <= now):
            orders.turn(now)

    # --- what they hear ---------------------------------------------------------------------

    def hear_of_job(
        self, effect: JobSought | JobRests | JobGivenUp | JobSaved | JobEnded, now: float
    ) -> None:
        assert self._desk is not None
        match effect:
            case JobSought(job):
                self._desk.job_sought(job, now)
            case JobRests(job):
                self._desk.job_rests(job)
            case JobGivenUp(job, spent):
                self._desk.job_given_up(job, spent, now)
            case JobSaved(job, checkpoint):
                self._desk.job_saved(job, checkpoint, now)
            case JobEnded():
                self._desk.job_ended(effect, now)

    def hear_worker(self, event: WorkerEvent, now: float) -> None:
        if self._desk is not None:
            self._desk.worker_event(event, now)

    def hear(self, it: DeskHears, now: float) -> None:
        if self._desk is not None:
            self._desk.hear(it.rank, it.data, now)

    def drained(self, rank: int) -> None:
        if self._orders is not None:
            self._orders.drained(rank)

    def world_changed(self) -> None:
        if self._orders is not None:
            self._orders.world_changed()

    def close(self, *, hand_over: bool) -> None:
        if self._desk is not None:
            if hand_over:
                self._desk.hand_over()
            else:
                self._desk.close()
        if self._orders is not None:
            self._orders.close()
