"""Which jobs may begin where a user may only have so many at work, whichever clients they came to.

Pure: no clock, no files. The queue of such a user is kept by one client, its *home* (by a hash of
its name): the others ask there for each job, are told to begin, and tell when the job is over. So
the limit always holds, also while all clients take up their journals after a restart, and the
user's most important job comes first wherever it is. Jobs of users without a limit begin at once.

Messages between two clients must arrive in order.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """To the user's home: may this job begin?"""

    job: int
    user: str
    priority: float


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """From the home: yes, now."""

    job: int


class Over(msgspec.Struct, frozen=True, array_like=True, tag="over"):
    """To the home: the job has its reply, whether it was begun or not."""

    job: int
    user: str


AdmissionMessage: TypeAlias = Ask | Begin | Over


class _Queue:
    """Of one user, at its home."""

    def __init__(self) -> None:
        #: (minus priority, job); jobs that are over stay until they come up
        self.waiting: list[tuple[float, int]] = []
        #: the client of each job that waits or works
        self.client_of: dict[int, int] = {}
        self.at_work: set[int] = set()


class Admission:
    """The part of one client. Of jobs with the same priority the lower id comes first."""

    def __init__(self, limit_of: Callable[[str], int | None], client: int = 0, clients: int = 1) -> None:
        """`limit_of`: how many jobs a user may have at work; None: any number."""
        self._limit_of = limit_of
        self._client = client
        self._clients = clients
        self._queues: dict[str, _Queue] = {}
        self._admitted: list[int] = []
        self._messages: list[tuple[int, AdmissionMessage]] = []

    # --- jobs of this client ----------------------------------------------------------------

    def ask(self, job: int, user: str, priority: float) -> None:
        """A job could begin; `take_admitted` will name it."""
        if self._limit_of(user) is None:
            self._admitted.append(job)
        else:
            self._tell(self._home_of(user), Ask(job, user, priority))

    def over(self, job: int, user: str) -> None:
        """A job that was asked for has its reply, begun or not."""
        if self._limit_of(user) is not None:
            self._tell(self._home_of(user), Over(job, user))

    def take_admitted(self) -> list[int]:
        """The jobs that begin now, each named once. One may be over already."""
        admitted, self._admitted = self._admitted, []
        return admitted

    def take_messages(self) -> list[tuple[int, AdmissionMessage]]:
        """To which clients what is to be sent."""
        messages, self._messages = self._messages, []
        return messages

    @property
    def has_news(self) -> bool:
        return bool(self._messages or self._admitted)

    # --- between clients ----------------------------------------------------------------------

    def hear(self, client: int, message: AdmissionMessage) -> None:
        match message:
            case Begin(job):
                self._admitted.append(job)
            case Ask(job, user, priority):
                queue = self._queues.setdefault(user, _Queue())
                queue.client_of[job] = client
                heapq.heappush(queue.waiting, (-priority, job))
                self._admit(user, queue)
            case Over(job, user):
                queue = self._queues[user]
                del queue.client_of[job]
                queue.at_work.discard(job)
                self._admit(user, queue)
                if not queue.client_of:
                    del self._queues[user]

    def _admit(self, user: str, queue: _Queue) -> None:
        limit = self._limit_of(user)
        for job in self._next_of(queue):
            if limit is not None and len(queue.at_work) >= limit:
                break
            heapq.heappop(queue.waiting)
            queue.at_work.add(job)
            self._tell(queue.client_of[job], Begin(job))

    def _next_of(self, queue: _Queue) -> Iterator[int]:
        """The job that is first in the queue, as long as there is one."""
        while queue.waiting:
            job = queue.waiting[0][1]
            if job in queue.client_of:
                yield job
            else:
                heapq.heappop(queue.waiting)

    def _tell(self, client: int, message: AdmissionMessage) -> None:
        if client == self._client:
            self.hear(client, message)
        else:
            self._messages.append((client, message))

    def _home_of(self, user: str) -> int:
        return zlib.crc32(user.encode()) % self._clients
