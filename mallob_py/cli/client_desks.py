"""The clients of one rank of `mallob-py serve`: most often none or one, more where ranks were lost.

A client whose rank was lost is taken over with its folder: its journal says which jobs have no reply, and
these go on under their numbers, as after a restart of the service. Its lock is the judge of who has it: as
long as somebody holds that, such as a rank that hangs on another host, we try again now and then.

A rank with its one first client has that as its desk. From a takeover on, this stands between: it passes on
what the rank has to say, by the job that it is about.
"""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from dataclasses import dataclass, field

from mallob_py.cli.rank_options import ServeOptions
from mallob_py.cli.serve_desk import open_desk
from mallob_py.protocol.effects import JobEnded
from mallob_py.runtime import boot
from mallob_py.runtime import worker_events as events
from mallob_py.runtime.notices import tell
from mallob_py.runtime.rank import Rank
from mallob_py.service.service import Service
from mallob_py.service.turns import decode_client_message

#: a process that was killed holds its locks until it is gone
_TRY_AGAIN_S = 0.2
#: how long a folder may be held by somebody else before people are told
_PATIENCE_S = 5.0


@dataclass(slots=True)
class _Wanted:
    """A client to be taken over."""

    #: since when, and when it is tried next
    since_s: float
    next_try_s: float
    #: the other clients that go on where they are, and what these have said to it
    others: set[int]
    said: list[tuple[int, bytes]] = field(default_factory=list)


class ClientDesks:
    """The desk of a rank with any number of clients (see `runtime.rank.Desk`)."""

    def __init__(self, options: ServeOptions, rank: Rank, ranks: Sequence[int]) -> None:
        """`ranks`: of all clients, always as they are now."""
        self._options = options
        self._rank = rank
        self._ranks = ranks
        #: by client
        self._services: dict[int, Service] = {}
        #: clients to be taken over
        self._wanted: dict[int, _Wanted] = {}
        self._epoll = select.epoll()
        self._is_between = False

    def begin_with(self, client: int) -> Service:
        """Its desk, from the start. Raises `boot.DeskError`."""
        service = self._services[client] = open_desk(self._options, self._rank, client, self._ranks)
        return service

    def follow(self, moved: Sequence[int]) -> None:
        """The world has changed, and these clients have moved to other ranks."""
        now = self._rank.now()
        for wanted in self._wanted.values():
            wanted.others.difference_update(moved)
            wanted.said = [each for each in wanted.said if decode_client_message(each[1]).source not in moved]
        for client in moved:
            if self._ranks[client] == self._rank.rank:
                others = set(range(len(self._ranks))).difference(moved)
                self._wanted[client] = _Wanted(now, now, others)
        if self._wanted and not self._is_between:
            self._is_between = True
            for service in self._services.values():
                self._watch(service)
            self._rank.set_desk(self)
        for service in self._services.values():
            service.world_changed(moved)

    def _watch(self, service: Service) -> None:
        if (bell := service.fileno()) is not None:
            self._epoll.register(bell, select.EPOLLIN)

    def _take_over(self, client: int, now: float) -> None:
        wanted = self._wanted[client]
        try:
            service = open_desk(self._options, self._rank, client, self._ranks, wanted.others)
        except boot.DeskError as error:
            if wanted.since_s <= now - _PATIENCE_S:
                tell(f"client {client} cannot go on here yet: {error}")
                wanted.since_s = math.inf
            wanted.next_try_s = now + _TRY_AGAIN_S
            return
        del self._wanted[client]
        self._services[client] = service
        self._watch(service)
        for rank, data in wanted.said:
            service.hear(rank, data, now)

    # --- the event loop's side ------------------------------------------------------------

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def deadline_s(self) -> float:
        tries = (wanted.next_try_s for wanted in self._wanted.values())
        turns = (service.deadline_s for service in self._services.values())
        return min(min(tries, default=math.inf), min(turns, default=math.inf))

    def turn(self, now: float) -> None:
        for client in [client for client, wanted in self._wanted.items() if wanted.next_try_s <= now]:
            self._take_over(client, now)
        for service in self._services.values():
            service.turn(now)

    def hear(self, rank: int, data: bytes, now: float) -> None:
        client = decode_client_message(data).dest
        if client in self._services:
            self._services[client].hear(rank, data, now)
        elif client in self._wanted:
            self._wanted[client].said.append((rank, data))

    def close(self) -> None:
        for service in self._services.values():
            service.close()
        self._epoll.close()

    def hand_over(self) -> None:
        for service in self._services.values():
            service.hand_over()

    # --- what a job's client is to hear -----------------------------------------------------

    def _client_of(self, job: int) -> Service | None:
        return next((service for service in self._services.values() if service.has(job)), None)

    def job_sought(self, job: int, now: float) -> None:
        if (service := self._client_of(job)) is not None:
            service.job_sought(job, now)

    def job_saved(self, job: int, checkpoint: bytes, now: float) -> None:
        if (service := self._client_of(job)) is not None:
            service.job_saved(job, checkpoint, now)

    def job_ended(self, ended: JobEnded, now: float) -> None:
        if (service := self._client_of(ended.job)) is not None:
            service.job_ended(ended, now)

    def worker_event(self, event: events.WorkerEvent, now: float) -> None:
        match event:
            case (
                events.ReadDone(job)
                | events.ReadFailed(job)
                | events.ReadStalled(job)
                | events.ReadGoesOn(job)
            ):
                if (service := self._client_of(job)) is not None:
                    service.worker_event(event, now)
