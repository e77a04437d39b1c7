"""Who works for what: all ranks are asked now and then, and only while somebody looks.

No rank knows all job trees, each knows the workers of its own PEs. The rank that wants to know spreads
a `RollCall` along a tree of ranks; each answers it with one `RollAnswer` of a few bytes. The
answers show the PEs at moments that differ by the time of travel: a tree that is just growing may
lack a worker, or show one twice.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class WorkerPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """On this PE the worker `index` of `job` is active. Its parent has the index (index - 1) // 2."""

    pe: int
    job: int
    index: int


class RollCall(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=74):
    """Rank `origin` asks who works for what."""

    origin: int


class RollAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=75):
    """The active workers of one rank."""

    workers: tuple[WorkerPlace, ...]


class Roll:
    """The newest answer of every rank."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[WorkerPlace, ...]] = {}

    def note(self, rank: int, workers: Iterable[WorkerPlace]) -> None:
        self._answers[rank] = tuple(workers)

    def workers(self) -> tuple[WorkerPlace, ...] | None:
        """All active workers, by PE; None if nobody has been asked."""
        if not self._answers:
            return None
        return tuple(place for _, answer in sorted(self._answers.items()) for place in answer)

    def clear(self) -> None:
        """Nobody looks any more."""
        self._answers.clear()
