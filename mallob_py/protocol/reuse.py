"""Memory of past workers: who may still have a suspended worker of this job (P 3.3).

With full reuse, each worker that leaves the tree reports itself, and what it remembers of
the subtree below it, straight to its nearest ancestor that stays; a worker that joins gets
what its new parent remembers of the subtree below it. So every present leaf knows the past
workers below its index, whichever way the tree shrinks and grows again. All of it is only
advice: lost memory costs a new worker, never a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable

from mallob_py.protocol.messages import PastWorker
from mallob_py.protocol.rank_tree import in_subtree

_PER_INDEX_MAX = 4


class PastWorkers:
    """Past workers by index, most recent last; each rank is remembered once."""

    def __init__(self) -> None:
        self._by_index: dict[int, list[PastWorker]] = {}
        self._index_of: dict[int, int] = {}

    def add(self, past: Iterable[PastWorker]) -> None:
        for worker in past:
            self.forget(worker.rank)
            known = self._by_index.setdefault(worker.index, [])
            known.append(worker)
            known.sort(key=lambda entry: entry.epoch)
            self._index_of[worker.rank] = worker.index
            if len(known) > _PER_INDEX_MAX:
                self.forget(known[0].rank)

    def forget(self, rank: int) -> None:
        index = self._index_of.pop(rank, None)
        if index is None:
            return
        rest = [worker for worker in self._by_index[index] if worker.rank != rank]
        if rest:
            self._by_index[index] = rest
        else:
            del self._by_index[index]

    def most_recent(self, index: int) -> PastWorker | None:
        known = self._by_index.get(index)
        return known[-1] if known else None

    def of_index(self, index: int) -> list[PastWorker]:
        return list(self._by_index.get(index, ()))

    def knows_below(self, subtree: int) -> bool:
        return any(in_subtree(index, subtree) for index in self._by_index)

    def take_below(self, subtree: int) -> tuple[PastWorker, ...]:
        """Remove and return all past workers of that subtree."""
        taken = tuple(
            worker
            for index, known in self._by_index.items()
            if in_subtree(index, subtree)
            for worker in known
        )
        for worker in taken:
            self.forget(worker.rank)
        return taken

    def take_all(self) -> tuple[PastWorker, ...]:
        return self.take_below(0)

    def __len__(self) -> int:
        return len(self._index_of)
