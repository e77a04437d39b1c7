"""What a rank holds in memory that others could use: processes, suspended workers, descriptions.

Sizes are the private memory of processes, that of the solvers they have started included, or the sizes of
files: about what comes free when they go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mallob_py.protocol.pe import PE
from mallob_py.runtime.hosted_workers import HostedWorkers
from mallob_py.runtime.transfer import Transfer
from mallob_py.runtime.workers import WorkerPool


class RankHoard:
    """What there is of it on one rank; `settle(pe)` executes what a PE wants done."""

    def __init__(
        self,
        pes: Sequence[PE],
        pool: WorkerPool,
        workers: HostedWorkers,
        transfer: Transfer,
        settle: Callable[[PE], None],
        clock: Callable[[], float],
    ) -> None:
        self._pes = pes
        self._pool = pool
        self._workers = workers
        self._transfer = transfer
        self._settle = settle
        self._now = clock
        #: by PE: what its paused worker had used
        self._paused: dict[int, int] = {}

    def give_back_processes(self, wanted_bytes: int) -> int:
        """Spare ones hardly count: they share their memory with each other."""
        self._pool.keep_none_ready()
        return self._pool.drop_kept(wanted_bytes)

    def give_back_past(self, wanted_bytes: int) -> int:
        """The least recently used of each PE, PE by PE, then the next."""
        given_bytes = 0
        while given_bytes < wanted_bytes and (holders := [pe for pe in self._pes if pe.shortage.past()]):
            for pe in holders:
                if given_bytes < wanted_bytes:
                    given_bytes += self._size(pe, pe.shortage.past()[0])
                    pe.drop_past(1, self._now())
                    self._settle(pe)
        return given_bytes

    def give_back_descriptions(self, wanted_bytes: int) -> int:
        return self._transfer.drop_unused(wanted_bytes)

    def _size(self, pe: PE, worker: int) -> int:
        return self._workers.private_bytes(self._slot(pe), worker)

    def _slot(self, pe: PE) -> int:
        return pe.rank - self._pes[0].rank

    # --- running workers ----------------------------------------------------------------

    def _largest(self) -> tuple[int, PE] | None:
        """The running worker that uses most and is no root."""
        found = [
            (self._size(pe, worker), pe) for pe in self._pes if (worker := pe.shortage.pausable()) is not None
        ]
        return max(found, key=lambda each: each[0], default=None)

    def largest_bytes(self) -> int:
        largest = self._largest()
        return 0 if largest is None else largest[0]

    def pause_largest(self) -> int:
        """End that worker's process; its size."""
        if (largest := self._largest()) is None:
            return 0
        size_bytes, pe = largest
        self._paused[pe.rank] = size_bytes
        pe.pause(self._now())
        self._settle(pe)
        return size_bytes

    def _smallest_paused(self) -> PE | None:
        paused = [pe for pe in self._pes if pe.shortage.has_paused()]
        return min(paused, key=lambda pe: self._paused[pe.rank], default=None)

    def smallest_paused_bytes(self) -> int | None:
        """What the smallest paused worker had used; None if there is none."""
        pe = self._smallest_paused()
        return None if pe is None else self._paused[pe.rank]

    def unpause_smallest(self) -> None:
        if (pe := self._smallest_paused()) is not None:
            pe.unpause(self._now())
            self._settle(pe)

    def end_shortage(self) -> None:
        self._pool.keep_ready()
