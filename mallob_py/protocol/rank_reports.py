"""The reports of ranks about themselves: their states, and the roll of workers.

*News*: a rank's host, load, use and troubles, sent to the rank of the first client at the start and after
changes, at most once a second, for the status (`mallob-py status --hosts`).

*The roll*: no rank knows all job trees, each knows the workers of its own PEs. Only while there are
onlookers, a rank spreads a `RollCall` along a tree of ranks; each answers it with a `RollAnswer` of a few
bytes. The answers are from moments that differ by the time of travel: a growing tree may lack a worker, or
show one twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from mallob_py.protocol.rank_messages import RankNews, RankUse, WorkerPlace

_UNKNOWN = RankUse()


class Roll:
    """The newest answer of every rank."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[WorkerPlace, ...]] = {}

    def note(self, rank: int, workers: Iterable[WorkerPlace]) -> None:
        self._answers[rank] = tuple(workers)

    def workers(self) -> tuple[WorkerPlace, ...] | None:
        """All active workers, by PE; None: no rank was asked."""
        if not self._answers:
            return None
        return tuple(place for _, answer in sorted(self._answers.items()) for place in answer)

    def clear(self) -> None:
        """Forget the answers when no onlooker is left."""
        self._answers.clear()


class RankReports:
    """One rank's reports: its news to another rank, and its roll of all workers."""

    def __init__(self, rank: int, host: str, pid: int, pes: int) -> None:
        self._rank = rank
        self._host = host
        self._pid = pid
        self._pes = pes
        self._told: RankNews | None = None
        #: rank to which this rank's news go, as `NewsGoTo` says
        self.go_to: int | None = None
        #: on the rank to which news go: the state of each rank
        self.of_ranks: dict[int, RankNews] = {}
        #: workers on all ranks, as answered since `RollWanted`
        self.roll = Roll()

    def begin_anew(self, gone: Iterable[int]) -> None:
        """Begin a generation: forget the news sent so far, and the ranks `gone`."""
        self._told = None
        self.roll.clear()
        for rank in gone:
            self.of_ranks.pop(rank, None)

    def send_to(self, rank: int) -> None:
        """Send the news to that rank from now on."""
        if rank != self.go_to:
            self._told = None
        self.go_to = rank

    def news(
        self, busy: int, troubles: Iterable[str], turns: int = 0, use: RankUse = _UNKNOWN
    ) -> RankNews | None:
        """Return news to send to rank `go_to`; None: nothing has changed, or `go_to` is this rank."""
        news = RankNews(self._host, self._pid, self._pes, busy, tuple(troubles), turns, use)
        if news == self._told:
            return None
        self._told = news
        if self.go_to != self._rank:
            return news
        self.of_ranks[self._rank] = news
        return None
