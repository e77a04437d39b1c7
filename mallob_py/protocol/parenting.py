"""A PE as the parent of workers elsewhere: what they tell its active worker goes to its seats.

Answers to a bulk request, of which this PE is to be a part, may be quicker than its own adoption: they wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.matching import Matcher
from mallob_py.protocol.messages import ChildLeft, Denied, Offer, Remember, RequestFailed
from mallob_py.protocol.staff import Staff

if TYPE_CHECKING:
    from mallob_py.protocol.distributed_balancing import AnyBalancer


class Parenting:
    """Takes the messages of children, and of requests for them."""

    def __init__(self, out: Outbox, staff: Staff, matcher: Matcher, balancer: AnyBalancer) -> None:
        self._out = out
        self._staff = staff
        self._matcher = matcher
        self._balancer = balancer
        #: answers that are quicker than our own adoption
        self.early: list[tuple[int, Offer | RequestFailed]] = []

    def receive_offer(self, source: int, offer: Offer) -> None:
        worker = self._staff.parent_of(offer.job, offer.index)
        if worker is not None:
            if worker.seats.receive_offer(source, offer, worker.volume, self._balancer.epoch):
                worker.update_process(self._out)
        elif self._may_yet_adopt():
            self.early.append((source, offer))
        else:
            self._out.send(source, offer.rejection())

    def _may_yet_adopt(self) -> bool:
        """Whether an Adopt may be on its way that makes us the parent of whoever asks."""
        return self._staff.active is None and self._matcher.token_granted

    def reject_early(self, job: int | None = None) -> None:
        """We will not be the parent of those who took us for it (all of them, or of one job)."""
        kept = []
        for source, message in self.early:
            if job is not None and message.job != job:
                kept.append((source, message))
            elif isinstance(message, Offer):
                self._out.send(source, message.rejection())
        self.early = kept

    def take_early(self, now: float) -> None:
        """We are the parent now."""
        early, self.early = self.early, []
        for source, message in early:
            if isinstance(message, Offer):
                self.receive_offer(source, message)
            else:
                self.receive_failed(source, message, now)

    def receive_denied(self, source: int, message: Denied) -> None:
        if (worker := self._staff.parent_of(message.job, message.index)) is not None:
            worker.seats.receive_denied(source, message, worker.volume, self._balancer.epoch)

    def receive_failed(self, source: int, message: RequestFailed, now: float) -> None:
        if self._may_yet_adopt():
            self.early.append((source, message))
        elif (worker := self._staff.parent_of(message.job, message.index)) is not None:
            worker.seats.receive_failed(message.index, worker.volume, self._balancer.epoch, now)

    def receive_left(self, source: int, message: ChildLeft, now: float) -> None:
        worker = self._staff.parent_of(message.job, message.index)
        if worker is not None and worker.seats.receive_left(source, message):
            worker.seats.fit(worker.volume, self._balancer.epoch, now)
            worker.update_process(self._out)

    def receive_remember(self, message: Remember) -> None:
        worker = self._staff.active
        if worker is not None and worker.job == message.job and worker.index == message.index:
            if message.carried_over:
                worker.seats.remember(message, worker.volume, self._balancer.epoch)
            else:
                worker.seats.past.add(message.past)
