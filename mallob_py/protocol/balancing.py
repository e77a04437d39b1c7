"""Balancing: one sparse, asynchronous all-reduction keeps everybody's image of all jobs (P 4.1).

Events climb the tree of ranks; a PE that has been quiet forwards at once, otherwise it
gathers for a short delay. The root of the tree numbers what has arrived (the *epoch*) and
sends it down. Every PE applies the same epochs in the same order to its image and derives
all volumes from it, so everybody agrees, per epoch, without further messages.

A job's events have one author for life, the client that took it in. Versions of one job
arrive everywhere in order, since they all take the same way; the newer one supersedes the
older one on the way. An event with demand 0 is the last one: it also reaches PEs which never
heard of the job, because they may run a worker of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from mallob_py.protocol.messages import Epoch, Events, JobEvent
from mallob_py.protocol.outbox import Outbox
from mallob_py.protocol.rank_tree import place_of
from mallob_py.protocol.volumes import fair_volumes

#: from all live jobs to the volume of each job that has one
VolumeRule = Callable[[int, Mapping[int, JobEvent]], Mapping[int, int]]


def standing(priority: float, arrival_s: float, ageing_s: float) -> float:
    """What decides who gets one worker where there are more jobs than PEs; larger is better.

    Twice the priority outweighs `ageing_s` of waiting. A job's standing never changes, so
    later jobs can overtake a waiting one for a bounded time only.
    """
    return math.log2(priority) - arrival_s / ageing_s


def local_volumes(size: int) -> VolumeRule:
    """The rule by which each PE computes all volumes itself."""

    def rule(_epoch: int, jobs: Mapping[int, JobEvent]) -> Mapping[int, int]:
        if len(jobs) == 1:
            (event,) = jobs.values()
            return {event.job: min(event.demand, size)}
        events = list(jobs.values())
        volumes = fair_volumes(
            [event.priority for event in events],
            [event.demand for event in events],
            size,
            job_ids=[event.job for event in events],
            standing=[event.standing for event in events] if len(events) > size else None,
        )
        return {event.job: volume for event, volume in zip(events, volumes.tolist(), strict=True) if volume}

    return rule


class Balancer:
    """One PE's part of the all-reduction, and its image of all jobs.

    `on_epoch(now, ended)` is called after each applied epoch, with the jobs that have ended.
    """

    def __init__(
        self,
        out: Outbox,
        delay_s: float,
        rule: VolumeRule,
        on_epoch: Callable[[float, list[int]], None],
    ) -> None:
        self._out = out
        self._place = place_of(out.rank, out.size)
        self._delay_s = delay_s
        self._rule = rule
        self._on_epoch = on_epoch
        self._pending: dict[int, JobEvent] = {}
        self._may_send_from = -math.inf
        self.epoch = 0
        self.jobs: dict[int, JobEvent] = {}
        self._volumes: Mapping[int, int] = {}

    def volume(self, job: int) -> int | None:
        """The job's volume in the present epoch; None for a job that is not in the image."""
        if job not in self.jobs:
            return None
        return self._volumes.get(job, 0)

    def volumes(self) -> Mapping[int, int]:
        """All volumes above 0 in the present epoch."""
        return self._volumes

    @property
    def total_volume(self) -> int:
        """The sum of all volumes in the present epoch."""
        return sum(self._volumes.values())

    def author(self, event: JobEvent) -> None:
        """Publish news of a job whose client is here."""
        self._take(event)

    def receive_events(self, message: Events) -> None:
        for event in message.events:
            self._take(event)

    def _take(self, event: JobEvent) -> None:
        known = self._pending.get(event.job)
        if known is None or known.version < event.version:
            self._pending[event.job] = event

    def receive_epoch(self, message: Epoch, now: float) -> None:
        """Pass a result on and apply it."""
        assert message.epoch == self.epoch + 1, f"epoch {message.epoch} after {self.epoch}"
        for child in (self._place.left, self._place.right):
            if child is not None:
                self._out.send(child, message)
        self.epoch = message.epoch
        ended = []
        for event in message.events:
            known = self.jobs.get(event.job)
            if event.demand == 0:
                self.jobs.pop(event.job, None)
                ended.append(event.job)
            elif known is None or known.version < event.version:
                self.jobs[event.job] = event
        self._volumes = self._rule(self.epoch, self.jobs)
        self._on_epoch(now, ended)

    def flush(self, now: float) -> None:
        """Send what is pending, unless the last send is too recent."""
        if not self._pending or now < self._may_send_from:
            return
        events = tuple(self._pending.values())
        self._pending.clear()
        self._may_send_from = now + self._delay_s
        if self._place.parent is not None:
            self._out.send(self._place.parent, Events(events))
        else:
            self.receive_epoch(Epoch(self.epoch + 1, events), now)

    def next_deadline(self) -> float:
        return self._may_send_from if self._pending else math.inf
