"""The interfaces that a rank's loop serves: the desk, where jobs come in; users' orders; the event log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from mallob_py.protocol.effects import JobEnded, JobGivenUp, JobRests, JobSaved, JobSought
from mallob_py.runtime.workers.tasks import WorkerEvent

#: news for a desk about a job that came in at this desk
JobNews = JobSought | JobRests | JobGivenUp | JobSaved | JobEnded


class Desk:
    """The part of a rank that takes in jobs. Methods that a desk does not override do nothing."""

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `turn` must be called. The rank asks for it only once."""

    @property
    def deadline_s(self) -> float:
        """Return the time at which `turn` must be called even if the descriptor is not readable."""
        return math.inf

    def turn(self, now: float) -> None: ...

    def hear_of_job(self, news: JobNews, now: float) -> None: ...

    def worker_event(self, event: WorkerEvent, now: float) -> None: ...

    def hear(self, rank: int, data: bytes, now: float) -> None:
        """Take in a message that another rank's desk sent by `Rank.tell_desk`."""

    def close(self) -> None: ...

    def hand_over(self) -> None:
        """Close the desk because its rank leaves; another rank goes on with the desk's jobs."""


class Orders(Protocol):
    """The orders that users give at one rank. `turn` must be called when `fileno` or `deadline_s` says so."""

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when `turn` must be called. The rank asks for it only once."""

    @property
    def deadline_s(self) -> float: ...

    def turn(self, now: float) -> None:
        """Carry out due orders, which may halt this rank; must be called when nothing else is under way."""

    def drained(self, rank: int) -> None:
        """Record that a rank is ready to leave."""

    def world_changed(self) -> None: ...

    def close(self) -> None: ...


class EventSink(Protocol):
    """A log of events. An event belongs to PE `pe`, by default to the rank's first PE."""

    @property
    def is_kept(self) -> bool:
        """Return whether events are kept; if not, callers need not log any."""

    @property
    def taken(self) -> list[tuple[float, str, Mapping[str, Any], int]]:
        """Return the events not flushed: (time, name, fields, PE). Frequent loggers append to this list."""

    @property
    def taken_max(self) -> int:
        """Return the length of `taken` at which the loop must flush."""

    def write(self, now: float, event: str, fields: Mapping[str, object], pe: int | None = None) -> None: ...

    def flush(self) -> None: ...
