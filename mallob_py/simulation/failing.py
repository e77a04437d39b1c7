"""What can go wrong when a worker is to get its process."""

from __future__ import annotations

from enum import Enum


class Step(Enum):
    """What happens for a worker, one after the other."""

    FETCH = "fetch"
    START = "start"


class Failing(Enum):
    """How one of these steps fails."""

    #: the host has no room for the description
    ROOM = "room"
    #: the description can be had from nobody
    SOURCE = "source"
    #: no process can be forked
    FORK = "fork"
    #: the process dies before it runs
    DEATH = "death"

    @property
    def step(self) -> Step:
        return Step.FETCH if self in (Failing.ROOM, Failing.SOURCE) else Step.START
