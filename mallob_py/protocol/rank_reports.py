"""The reports of ranks about themselves: how each is, and who works there for what.

*News*: its host, how busy it is, and what troubles it. Told to the first client's rank, at the start and
when something has changed, at most once a second. So the status can say which host does what (`mallob-py
status --hosts`).

*The roll*: no rank knows all job trees, each knows the workers of its own PEs. Only while somebody looks,
the rank that wants to know spreads a `RollCall` along a tree of ranks; each answers it with one
`RollAnswer` of a few bytes. The answers show the PEs at moments that differ by the time of travel: a tree
that is just growing may lack a worker, or show one twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from mallob_py.protocol.rank_messages import RankNews, WorkerPlace


class Roll:
    """The newest answer of every rank."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[WorkerPlace, ...]] = {}

    def note(self, rank: int, workers: Iterable[WorkerPlace]) -> None:
        self._answers[rank] = tuple(workers)

    def workers(self) -> tuple[WorkerPlace, ...] | None:
        """All active workers, by PE; None if no rank has been asked."""
        if not self._answers:
            return None
        return tuple(place for _, answer in sorted(self._answers.items()) for place in answer)

    def clear(self) -> None:
        """No onlooker is left."""
        self._answers.clear()


class RankReports:
    """One rank's: the news that it has to tell, and has told, and what it hears of others."""

    def __init__(self, rank: int, host: str, pid: int, pes: int) -> None:
        self._rank = rank
        self._host = host
        self._pid = pid
        self._pes = pes
        self._told: RankNews | None = None
        #: the rank that hears the news, as `NewsGoTo` has said
        self.go_to: int | None = None
        #: how each rank is, on the rank that is told
        self.of_ranks: dict[int, RankNews] = {}
        #: who works for what anywhere, since `RollWanted`
        self.roll = Roll()

    def begin_anew(self, gone: Iterable[int]) -> None:
        """In a new generation: nothing has been told, and nothing is known of those that are gone."""
        self._told = None
        self.roll.clear()
        for rank in gone:
            self.of_ranks.pop(rank, None)

    def send_to(self, rank: int) -> None:
        """That rank hears the news from now on."""
        if rank != self.go_to:
            self._told = None
        self.go_to = rank

    def news(self, busy: int, troubles: Iterable[str], turns: int = 0) -> RankNews | None:
        """The news to be told to another rank now; None if nothing has changed, or this rank is told."""
        news = RankNews(self._host, self._pid, self._pes, busy, tuple(troubles), turns)
        if news == self._told:
            return None
        self._told = news
        if self.go_to != self._rank:
            return news
        self.of_ranks[self._rank] = news
        return None
