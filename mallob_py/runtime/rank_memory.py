"""Memory of a rank, once a second: tell what workers need, give back what is free, watch the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Protocol

from mallob_py.protocol.stimuli import AnyStimulus
from mallob_py.runtime.heap import HeapKeeper

if TYPE_CHECKING:
    from mallob_py.runtime.memory_watch import MemoryWatch


class _Workers(Protocol):
    def grown_memory(self) -> Iterable[tuple[int, AnyStimulus]]: ...

    def jobs(self) -> set[int]: ...


class _Descriptions(Protocol):
    def keep_only(self, jobs: set[int]) -> None: ...


class RankMemory:
    """The memory of one rank. `tell(slot, stimulus)` reaches a PE; `fetching()`: jobs being fetched."""

    def __init__(
        self,
        workers: _Workers,
        descriptions: _Descriptions,
        heap: HeapKeeper,
        tell: Callable[[int, AnyStimulus], None],
        fetching: Callable[[], Set[int]],
    ) -> None:
        self._workers = workers
        self._descriptions = descriptions
        self._heap = heap
        self._tell = tell
        self._fetching = fetching
        self._watch: MemoryWatch | None = None
        #: the ranks of this host that share its memory
        self._sharing: tuple[int, ...] = ()

    def set_watch(self, watch: MemoryWatch, ranks: Iterable[int]) -> None:
        """`ranks`: those of this host."""
        self._watch = watch
        self._sharing = tuple(ranks)

    @property
    def troubles(self) -> tuple[str, ...]:
        """In words, for people."""
        return ("short of memory",) if self._watch is not None and self._watch.is_short else ()

    def look(self, now: float) -> None:
        for slot, used in self._workers.grown_memory():
            self._tell(slot, used)
        self._descriptions.keep_only(self._workers.jobs() | self._fetching())
        self._heap.look(now, time.thread_time())
        if self._watch is not None:
            self._watch.look(now)

    def share_among(self, ranks: Iterable[int]) -> None:
        """These ranks are on this host now."""
        self._sharing = tuple(ranks)
        if self._watch is not None:
            self._watch.share_among(len(self._sharing))

    def leave_out(self, rank: int) -> None:
        """A rank is gone, which may have been on this host."""
        if self._watch is not None and rank in self._sharing:
            self._watch.leave_out(rank)
