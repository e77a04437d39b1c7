"""What each rank tells the first client's rank of itself: its host, how busy it is, and what troubles it.

Told at the start and when something has changed, at most once a second. So the status can say which
host does what (`mallob-py status --hosts`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

import msgspec

PERIOD_S = 1.0


class RankNews(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=76):
    """How a rank is: `busy` of its `pes` run a worker. `troubles` are short texts, for people."""

    host: str
    pid: int
    pes: int
    busy: int
    troubles: tuple[str, ...] = ()


class RankReporter:
    """What one rank has to tell, and what it has told."""

    def __init__(self, pes: int) -> None:
        self._host = socket.gethostname()
        self._pes = pes
        self._told: RankNews | None = None

    def news(self, busy: int, troubles: Iterable[str]) -> RankNews | None:
        """What is to be told now; None if nothing has changed."""
        news = RankNews(self._host, os.getpid(), self._pes, busy, tuple(troubles))
        if news == self._told:
            return None
        self._told = news
        return news
