"""Distributed balancing: no PE computes all volumes; questions go down, answers up (P 3.1).

News of jobs climb the tree of ranks as in `balancing.py`. The tree's root opens an epoch for the news that
have arrived: it broadcasts them together with the first question of `VolumeSearch`. Every PE notes the news,
answers for the jobs assigned to it (by a hash of their ids), adds up the answers of its subtree and sends the
sum to its parent. After a few rounds the root broadcasts the outcome, a few numbers, and the epoch begins.
From these numbers any PE derives any job's volume on demand, with the same result as in `balancing.py`.

Per epoch: O(rounds) broadcasts and reductions of constant length, and O(news + jobs/PEs) work per PE. One
computation runs at a time; news that arrive meanwhile wait for the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from mallob_py.protocol import PeerViolation, messages, volume_search
from mallob_py.protocol.balancing import Balancer, PendingNews
from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.rank_tree import place_of
from mallob_py.protocol.rotation import OFF


class DistributedBalancer:
    """One PE's part of the computations. It has the same interface as `Balancer`."""

    #: always true, so that callers call `flush` each time
    has_news = True

    def __init__(self, out: Outbox, delay_s: float, on_epoch: Callable[[float, list[int]], None]) -> None:
        self._out = out
        place = place_of(out.rank, out.size)
        self.parent = place.parent
        self._children = place.children
        self._on_epoch = on_epoch
        self._pending = PendingNews(delay_s)
        self.epoch = 0
        self.jobs: dict[int, messages.JobEvent] = {}
        self._volumes = volume_search.Volumes(volume_search.NO_JOBS)
        self._known_volumes: dict[int, int] = {}
        #: news of the epoch under computation
        self._news: list[messages.JobEvent] = []
        self._deputy = volume_search.Deputy()
        self._answer: volume_search.AnyAnswer | None = None
        self._answers_missing = 0
        #: at the tree's root: the running computation
        self._search: volume_search.VolumeSearch | None = None
        self._hint = volume_search.Hint()

    # --- the present epoch ------------------------------------------------------------------

    def volume(self, job: int) -> int | None:
        """Return the job's volume in the present epoch; None: the job is not in the image."""
        volume = self._known_volumes.get(job)
        if volume is None and (event := self.jobs.get(job)) is not None:
            volume = self._known_volumes[job] = self._volumes.of(event)
        return volume

    def each_volume(self, jobs: Iterable[int]) -> list[int | None]:
        """Return the volume of each of `jobs`, as `volume` does."""
        return [self.volume(job) for job in jobs]

    def with_volume(self) -> None:
        """Return None: no PE knows which jobs have a volume above 0 (compare `Balancer`)."""

    #: no turns: jobs beyond the number of PEs wait (compare `Balancer`)
    rotation = OFF

    @property
    def total_volume(self) -> int:
        """The sum of all volumes in the present epoch."""
        return self.epoch_volumes.total_volume

    @property
    def epoch_volumes(self) -> volume_search.EpochVolumes:
        """The few numbers, known to all PEs, from which the volumes of the present epoch follow."""
        return self._volumes.epoch_volumes

    # --- news on their way up ---------------------------------------------------------------

    def author(self, event: messages.JobEvent) -> None:
        """Publish news of a job whose client is here."""
        self._pending.take(event)

    def flush(self, now: float) -> float:
        """Send pending news, unless the last send is too recent; at the root, begin an epoch.

        Returns when to call again.
        """
        if self._search is None and self._pending.is_due(now):
            events = self._pending.take_all(now)
            if self.parent is not None:
                self._out.send(self.parent, messages.Events(events))
            else:
                self._begin(events, now)
        return self.next_deadline()

    def next_deadline(self) -> float:
        return math.inf if self._search is not None else self._pending.due_s

    # --- questions, answers and outcome ---------------------------------------------------------

    def receive(self, message: messages.AnyBalancerMessage, now: float) -> None:
        """Take a message from another PE's balancer."""
        match message:
            case messages.Events():
                self._pending.take(*message.events)
            case messages.VolumeQuestion():
                self._receive_question(message, now)
            case messages.VolumeAnswer():
                self._receive_answer(message, now)
            case messages.VolumesSettled():
                self._receive_settled(message, now)
            case _:
                raise PeerViolation("another PE has another kind of balancing")

    def _begin(self, events: tuple[messages.JobEvent, ...], now: float) -> None:
        """At the root: count the jobs of the next epoch, and open the epoch."""
        jobs = len(self.jobs)
        for event in events:
            known = self.jobs.get(event.job)
            if known is not None and known.version >= event.version:
                continue
            new = event if event.demand else None
            jobs += (new is not None) - (known is not None)
            self._hint.replace(known, new)
        self._search = volume_search.VolumeSearch(self._out.size, jobs, self._hint)
        self._go_on(events, now)

    def _go_on(self, events: tuple[messages.JobEvent, ...], now: float) -> None:
        """At the root: take the next step of the computation. Only the first step has `events`."""
        search = self._search
        assert search is not None
        if search.question is not None:
            self._receive_question(messages.VolumeQuestion(self.epoch + 1, events, search.question), now)
        else:
            assert search.epoch_volumes is not None
            self._search = None
            self._receive_settled(messages.VolumesSettled(self.epoch + 1, events, search.epoch_volumes), now)

    def _receive_question(self, message: messages.VolumeQuestion, now: float) -> None:
        if message.epoch != self.epoch + 1:
            raise PeerViolation(f"a question for epoch {message.epoch} in epoch {self.epoch}")
        if self._answer is not None:
            raise PeerViolation("a question before the last one is answered")
        for child in self._children:
            self._out.send(child, message)
        self._note(message.events)
        self._answer = self._deputy.answer(message.question)
        self._answers_missing = len(self._children)
        self._report(now)

    def _receive_answer(self, message: messages.VolumeAnswer, now: float) -> None:
        if self._answer is None or not self._answers_missing:
            raise PeerViolation("an answer without a question")
        self._answer = volume_search.merged(self._answer, message.answer)
        self._answers_missing -= 1
        self._report(now)

    def _report(self, now: float) -> None:
        """Send the answer of the subtree once it is complete."""
        if self._answers_missing:
            return
        answer, self._answer = self._answer, None
        assert answer is not None
        if self.parent is not None:
            self._out.send(self.parent, messages.VolumeAnswer(answer))
        else:
            assert self._search is not None
            self._search.take(answer)
            self._go_on((), now)

    def _note(self, events: tuple[messages.JobEvent, ...]) -> None:
        """Note news of the coming epoch: the `Deputy` gets it at once, the image when the epoch begins."""
        for event in events:
            known = self.jobs.get(event.job)
            self._news.append(event)
            if volume_search.deputy_of(event.job, self._out.size) != self._out.rank:
                continue
            if event.demand == 0:
                self._deputy.drop(event.job)
            elif known is None or known.version < event.version:
                self._deputy.put(event)

    def _receive_settled(self, message: messages.VolumesSettled, now: float) -> None:
        """Begin the epoch whose volumes have been found."""
        if message.epoch != self.epoch + 1:
            raise PeerViolation(f"epoch {message.epoch} after epoch {self.epoch}")
        for child in self._children:
            self._out.send(child, message)
        self._note(message.events)
        self.epoch = message.epoch
        ended = []
        for event in self._news:
            known = self.jobs.get(event.job)
            if event.demand == 0:
                self.jobs.pop(event.job, None)
                ended.append(event.job)
            elif known is None or known.version < event.version:
                self.jobs[event.job] = event
        self._news.clear()
        self._known_volumes.clear()
        self._volumes = volume_search.Volumes(message.volumes)
        if message.volumes.jobs != len(self.jobs):
            raise PeerViolation("the image is not that of the tree's root")
        self._on_epoch(now, ended)

    def is_at_rest(self) -> bool:
        """Tell whether no computation runs, as far as this PE knows (for checks)."""
        return self._search is None and self._answer is None and not self._news


AnyBalancer: TypeAlias = Balancer | DistributedBalancer
