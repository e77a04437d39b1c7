"""The memory watch: a host's ranks give memory back when memory runs low, before the kernel kills a process.

Each rank measures the memory left about once a second. When less than the reserve is left, an episode begins.
At each measurement the rank gives back, in this order, until its part of the missing memory is expected to be
free:

1. spare processes (no spare process is made while memory is short) and processes kept for chains of revisions
2. suspended workers, the least recently used worker first
3. descriptions that no worker of this host needs, if another host has them
4. if that is not enough, the process of the host's largest worker that is no root (`HostVote`). That worker
   is paused (`protocol/giving_back.py`), and its job goes on.

Sizes are the private memory of processes, including their solvers, or the sizes of files: about the memory
that becomes free when they end.

Roots are never paused. The next measurement shows each step's effect. An episode ends when clearly more than
the reserve is left. When there is room for all memory that a paused worker had used, the worker gets a new
process, one worker at a time; so a worker that was too large by itself is not started again and again.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from mallob_py.log_events import LogEvent
from mallob_py.protocol.pe import PE
from mallob_py.protocol.stimuli import AnyStimulus, DropPast, PauseWorker, UnpauseWorker
from mallob_py.runtime.heap import HeapKeeper
from mallob_py.runtime.memory import Reserve, Room
from mallob_py.runtime.workers.hosted import HostedWorkers
from mallob_py.runtime.workers.pool import WorkerPool
from mallob_py.runtime.workers.starved import MemoryKills
from mallob_py.runtime.world.transfer import Transfer

#: times by the ranks' clock: when a worker was last paused or unpaused, and when a rank last complained
_TIMES = struct.Struct("dd")
_BID = struct.Struct("Q")


class HostVote:
    """The vote on which rank of a host pauses a worker, as seen by one rank; no call waits for a bid.

    Each rank has a place in the host's file for its bid, the size of the worker that it could pause. The
    largest bid wins the *turn* to pause a worker, as soon as no rank has the turn.
    """

    def __init__(self, path: Path, place: int, ranks: int) -> None:
        self._place = place
        #: number of ranks on the host
        self.ranks = ranks
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with self._locked():
            if os.fstat(self._file).st_size == 0:
                os.pwrite(self._file, _TIMES.pack(-1e9, -1e9), 0)
        # Bids come when memory is short, and then a file in memory may not be able to grow.
        os.posix_fallocate(self._file, self._offset_of(place), _BID.size)

    @staticmethod
    def _offset_of(place: int) -> int:
        return _TIMES.size + place * _BID.size

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def bid(self, size_bytes: int) -> None:
        """Bid the size of the largest worker that this rank could pause; 0: no bid."""
        self._write_bid(self._place, size_bytes)

    def withdraw(self, place: int) -> None:
        """Withdraw the bid of a lost rank, so that it cannot win."""
        self._write_bid(place, 0)

    def _write_bid(self, place: int, size_bytes: int) -> None:
        os.pwrite(self._file, _BID.pack(size_bytes), self._offset_of(place))

    def wins_turn(self, now_s: float, pause_s: float) -> bool:
        """Take the right to pause a worker if no rank has had it for `pause_s` and no rank has bid more."""
        with self._locked():
            bids = os.pread(self._file, os.fstat(self._file).st_size - _TIMES.size, _TIMES.size)
            sizes = [size for (size,) in _BID.iter_unpack(bids)]
            is_largest = sizes.index(max(sizes)) == self._place
            return is_largest and self._take_turn(now_s, pause_s)

    def takes_turn(self, now_s: float, pause_s: float) -> bool:
        """Take the right to pause or unpause a worker if no rank has had it for `pause_s`."""
        with self._locked():
            return self._take_turn(now_s, pause_s)

    def _take_turn(self, now_s: float, pause_s: float) -> bool:
        turn_s, complaint_s = self._times()
        if now_s < turn_s + pause_s:
            return False
        os.pwrite(self._file, _TIMES.pack(now_s, complaint_s), 0)
        return True

    def hold_turn(self, now_s: float) -> None:
        """Keep all ranks from pausing workers for a while, so that freed memory is measured first."""
        with self._locked():
            _, complaint_s = self._times()
            os.pwrite(self._file, _TIMES.pack(now_s, complaint_s), 0)

    def may_complain(self, now_s: float, pause_s: float) -> bool:
        """Tell whether no rank has complained for `pause_s`; if so, this rank must complain now."""
        with self._locked():
            turn_s, complaint_s = self._times()
            if now_s < complaint_s + pause_s:
                return False
            os.pwrite(self._file, _TIMES.pack(turn_s, now_s), 0)
            return True

    def _times(self) -> tuple[float, float]:
        turn_s, complaint_s = _TIMES.unpack(os.pread(self._file, _TIMES.size, 0))
        return turn_s, complaint_s


#: shortest time between two pauses of workers, so that the memory freed by the first is measured before the
#: second
_PAUSE_EVERY_S = 3.0
#: shortest time between two unpauses, in which the first unpaused worker becomes about as large as before
_UNPAUSE_EVERY_S = 10.0
_COMPLAIN_EVERY_S = 60.0
#: the multiple of the reserve that must be left to end an episode
_ENOUGH = 1.25


class Reclaimable(Protocol):
    """The memory that a rank could give back. Sizes: the bytes expected to become free."""

    def give_back_processes(self, wanted_bytes: int) -> int: ...

    def give_back_past(self, wanted_bytes: int) -> int: ...

    def give_back_descriptions(self, wanted_bytes: int) -> int: ...

    def largest_bytes(self) -> int: ...

    def pause_largest(self) -> int: ...

    def smallest_paused_bytes(self) -> int | None: ...

    def unpause_smallest(self) -> None: ...

    def end_shortage(self) -> None: ...


class MemoryWatch:
    """One rank's memory watch. `measure` returns the memory left; `log` and `complain` report actions."""

    def __init__(
        self,
        reserve: Reserve,
        measure: Callable[[], Sequence[Room]],
        reclaimable: Reclaimable,
        vote: HostVote,
        log: Callable[[str, Mapping[str, object]], None],
        complain: Callable[[str], None],
    ) -> None:
        self._reserve = reserve
        self._measure = measure
        self._reclaimable = reclaimable
        self._vote = vote
        self._log = log
        self._complain = complain
        self._is_short = False
        self._has_bid = False

    def leave_out(self, rank: int) -> None:
        """Remove a lost rank of this host."""
        self._vote.withdraw(rank)

    def share_among(self, ranks: int) -> None:
        """Share the host's memory with this many ranks from now on."""
        self._vote.ranks = ranks

    @property
    def is_short(self) -> bool:
        """Return whether memory must be given back."""
        return self._is_short

    def look(self, now_s: float) -> None:
        """Measure the memory left, and give memory back or unpause a worker."""
        rooms = self._measure()
        tightest = max(rooms, key=self._missing_bytes, default=None)
        if tightest is None:
            return
        missing_bytes = self._missing_bytes(tightest)
        if missing_bytes > 0:
            if not self._is_short:
                self._begin(tightest, now_s)
            self._give_back(missing_bytes, now_s)
        elif not self._is_short:
            self._unpause(-missing_bytes, now_s)
        elif all(room.left_bytes >= _ENOUGH * self._reserve.of(room.total_bytes) for room in rooms):
            self._end(tightest)

    def _missing_bytes(self, room: Room) -> int:
        return self._reserve.of(room.total_bytes) - room.left_bytes

    def _begin(self, room: Room, now_s: float) -> None:
        self._is_short = True
        reserve_bytes = self._reserve.of(room.total_bytes)
        self._log(LogEvent.SHORT_OF_MEMORY, {"left_bytes": room.left_bytes, "reserve_bytes": reserve_bytes})
        if self._vote.may_complain(now_s, _COMPLAIN_EVERY_S):
            self._complain(
                f"short of memory: {_megabytes(room.left_bytes)} of {_megabytes(room.total_bytes)} are left, "
                f"less than the reserve of {_megabytes(reserve_bytes)}; suspended workers are given up, then "
                "running ones paused. Lower --pes, --job-cache or --memory-limit, or give more memory"
            )

    def _give_back(self, missing_bytes: int, now_s: float) -> None:
        # All ranks of the host give back an equal part.
        wanted_bytes = -(-missing_bytes // self._vote.ranks)
        given_bytes = 0
        for what, give_back in (
            ("processes", self._reclaimable.give_back_processes),
            ("suspended workers", self._reclaimable.give_back_past),
            ("descriptions", self._reclaimable.give_back_descriptions),
        ):
            if given_bytes < wanted_bytes and (size_bytes := give_back(wanted_bytes - given_bytes)):
                self._tell_given(what, size_bytes)
                given_bytes += size_bytes
        if given_bytes >= wanted_bytes:
            self._withdraw_bid()
            self._vote.hold_turn(now_s)
        else:
            self._bid_for_turn(now_s)

    def _bid_for_turn(self, now_s: float) -> None:
        """Bid for the right to pause a worker. If the last bid has won, pause the largest worker."""
        largest_bytes = self._reclaimable.largest_bytes()
        had_bid, self._has_bid = self._has_bid, largest_bytes > 0
        self._vote.bid(largest_bytes)
        if had_bid and self._has_bid and self._vote.wins_turn(now_s, _PAUSE_EVERY_S):
            self._tell_given("a running worker", self._reclaimable.pause_largest())
            self._withdraw_bid()

    def _withdraw_bid(self) -> None:
        if self._has_bid:
            self._has_bid = False
            self._vote.bid(0)

    def _tell_given(self, what: str, size_bytes: int) -> None:
        self._log(LogEvent.GAVE_BACK_MEMORY, {"what": what, "bytes": size_bytes})

    def _end(self, room: Room) -> None:
        self._is_short = False
        self._withdraw_bid()
        self._reclaimable.end_shortage()
        self._log(LogEvent.ENOUGH_MEMORY, {"left_bytes": room.left_bytes})

    def _unpause(self, room_bytes: int, now_s: float) -> None:
        """Restart a paused worker that fits into the bytes beyond the reserve."""
        paused_bytes = self._reclaimable.smallest_paused_bytes()
        fits_in = paused_bytes is not None and paused_bytes <= room_bytes
        if fits_in and self._vote.takes_turn(now_s, _UNPAUSE_EVERY_S):
            self._reclaimable.unpause_smallest()


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


class RankReclaimable:
    """The memory that one rank could give back; `tell(slot, stimulus)` passes a PE a stimulus."""

    def __init__(
        self,
        pes: Sequence[PE],
        pool: WorkerPool,
        workers: HostedWorkers,
        transfer: Transfer,
        tell: Callable[[int, AnyStimulus], None],
    ) -> None:
        self._pes = pes
        self._pool = pool
        self._workers = workers
        self._transfer = transfer
        self._tell = tell
        #: PE -> bytes of memory that its paused worker used when it was paused
        self._paused: dict[int, int] = {}

    def give_back_processes(self, wanted_bytes: int) -> int:
        """End spare and kept processes. Spare processes count as no memory: they share the server's."""
        self._pool.processes.keep_none_ready()
        return self._pool.processes.discard_all(self._pool.kept.drop_oldest(wanted_bytes))

    def give_back_past(self, wanted_bytes: int) -> int:
        """Give back each PE's least recently used suspended worker, then each PE's next one, and so on."""
        given_bytes = 0
        while given_bytes < wanted_bytes and (
            holders := [pe for pe in self._pes if pe.workers.giving_back.past()]
        ):
            for pe in holders:
                if given_bytes < wanted_bytes:
                    given_bytes += self._size(pe, pe.workers.giving_back.past()[0])
                    self._tell(self._slot(pe), DropPast(1))
        return given_bytes

    def give_back_descriptions(self, wanted_bytes: int) -> int:
        return self._transfer.drop_unused(wanted_bytes)

    def _size(self, pe: PE, worker: int) -> int:
        return self._workers.private_bytes(self._slot(pe), worker)

    def _slot(self, pe: PE) -> int:
        return pe.rank - self._pes[0].rank

    # --- running workers ----------------------------------------------------------------

    def _largest(self) -> tuple[int, PE] | None:
        """Return the size and PE of the largest running worker that is no root; None: there is none."""
        found = [
            (self._size(pe, worker), pe)
            for pe in self._pes
            if (worker := pe.workers.giving_back.pausable()) is not None
        ]
        return max(found, key=lambda each: each[0], default=None)

    def largest_bytes(self) -> int:
        largest = self._largest()
        return 0 if largest is None else largest[0]

    def pause_largest(self) -> int:
        """Pause the largest worker; return its size."""
        if (largest := self._largest()) is None:
            return 0
        size_bytes, pe = largest
        self._paused[pe.rank] = size_bytes
        self._tell(self._slot(pe), PauseWorker())
        return size_bytes

    def _smallest_paused(self) -> PE | None:
        paused = [pe for pe in self._pes if pe.workers.giving_back.has_paused()]
        return min(paused, key=lambda pe: self._paused[pe.rank], default=None)

    def smallest_paused_bytes(self) -> int | None:
        """Return the bytes that the smallest paused worker had used; None: there is none."""
        pe = self._smallest_paused()
        return None if pe is None else self._paused[pe.rank]

    def unpause_smallest(self) -> None:
        if (pe := self._smallest_paused()) is not None:
            self._tell(self._slot(pe), UnpauseWorker())

    def end_shortage(self) -> None:
        self._pool.processes.keep_ready()


class _Workers(Protocol):
    def grown_memory(self) -> Iterable[tuple[int, AnyStimulus]]: ...

    def jobs(self) -> set[int]: ...


class _Descriptions(Protocol):
    def keep_only(self, jobs: set[int]) -> None: ...


class RankMemory:
    """One rank's care for memory: each second, reports workers' needs, frees memory, watches the host.

    `tell(slot, stimulus)` passes a PE a stimulus. `fetching()` returns the jobs whose descriptions are
    being fetched.
    """

    def __init__(
        self,
        workers: _Workers,
        descriptions: _Descriptions,
        heap: HeapKeeper,
        tell: Callable[[int, AnyStimulus], None],
        fetching: Callable[[], Set[int]],
        kills: MemoryKills,
    ) -> None:
        self._kills = kills
        self._workers = workers
        self._descriptions = descriptions
        self._heap = heap
        self._tell = tell
        self._fetching = fetching
        self._watch: MemoryWatch | None = None
        #: ranks that share this host's memory
        self._sharing: tuple[int, ...] = ()

    def set_watch(self, watch: MemoryWatch, ranks: Iterable[int]) -> None:
        """Set the watch; `ranks`: the ranks of this host."""
        self._watch = watch
        self._kills.is_short = lambda: watch.is_short
        self._sharing = tuple(ranks)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Return this rank's troubles with memory, in words for people."""
        return ("short of memory",) if self._watch is not None and self._watch.is_short else ()

    def look(self, now: float) -> None:
        for slot, used in self._workers.grown_memory():
            self._tell(slot, used)
        self._descriptions.keep_only(self._workers.jobs() | self._fetching())
        self._heap.look(now, time.thread_time())
        self._kills.look(time.monotonic())
        if self._watch is not None:
            self._watch.look(now)

    def share_among(self, ranks: Iterable[int]) -> None:
        """Note the ranks that share this host's memory from now on."""
        self._sharing = tuple(ranks)
        if self._watch is not None:
            self._watch.share_among(len(self._sharing))

    def leave_out(self, rank: int) -> None:
        """Remove a lost rank, if it was on this host."""
        if self._watch is not None and rank in self._sharing:
            self._watch.leave_out(rank)
