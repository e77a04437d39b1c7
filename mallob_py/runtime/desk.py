"""The things that a rank's loop serves beside its workers: a desk, where jobs come in; orders of its users;
its log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from mallob_py.protocol.effects import JobEnded, JobGivenUp, JobRests, JobSaved, JobSought
from mallob_py.runtime.workers.tasks import WorkerEvent

#: what the desk hears of a job that came in there
JobNews = JobSought | JobRests | JobGivenUp | JobSaved | JobEnded


class Desk:
    """Where jobs come in on this rank. Each method that a desk does not override does nothing."""

    def fileno(self) -> int | None:
        """Readable when a turn is due; asked for once."""

    @property
    def deadline_s(self) -> float:
        """When a turn is due, whatever is readable."""
        return math.inf

    def turn(self, now: float) -> None: ...

    def hear_of_job(self, news: JobNews, now: float) -> None: ...

    def worker_event(self, event: WorkerEvent, now: float) -> None: ...

    def hear(self, rank: int, data: bytes, now: float) -> None:
        """The desk of that rank has said this by `Rank.tell_desk`."""

    def close(self) -> None: ...

    def hand_over(self) -> None:
        """Close on a rank that leaves: another one goes on with what is here."""


class Orders(Protocol):
    """Where a user's orders come in, on one rank. `turn` is due as a desk's is."""

    def fileno(self) -> int | None:
        """Asked for once."""

    @property
    def deadline_s(self) -> float: ...

    def turn(self, now: float) -> None:
        """To be called when nothing else is under way: it may have this rank halt."""

    def drained(self, rank: int) -> None:
        """A rank that is to leave is ready for it."""

    def world_changed(self) -> None: ...

    def close(self) -> None: ...


class EventSink(Protocol):
    """Where events are logged: those of `pe`, or of the first PE of the rank."""

    @property
    def is_kept(self) -> bool:
        """Whether anybody will read them; else they need not be written."""

    @property
    def taken(self) -> list[tuple[float, str, Mapping[str, Any], int]]:
        """What `flush` is to write: when, what, and at which PE it happened. Who logs much appends to it."""

    @property
    def taken_max(self) -> int:
        """With so many taken, it is time to flush."""

    def write(self, now: float, event: str, fields: Mapping[str, object], pe: int | None = None) -> None: ...

    def flush(self) -> None: ...
