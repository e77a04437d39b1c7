"""What the ranks of a host tell each other when memory is short: whose turn it is to end a worker.

All of them see the same shortage at the same time. If each ended a worker, far too many would go. So each
writes down the size of its largest worker, and only the rank of the largest one acts; then all wait until
they can see what came of it. The board is a small file in shared memory, read and written under a lock.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: when a worker was last ended or started again, and when somebody last complained, by the ranks' clock
_TIMES = struct.Struct("dd")
_BID = struct.Struct("Q")


class HostBoard:
    """The board as rank number `place` of so many on the host sees it. Nothing blocks for long."""

    def __init__(self, path: Path, place: int, ranks: int) -> None:
        self._place = place
        self._ranks = ranks
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with self._locked():
            if os.fstat(self._file).st_size == 0:
                os.pwrite(self._file, _TIMES.pack(-1e9, -1e9) + ranks * _BID.pack(0), 0)

    @property
    def ranks(self) -> int:
        return self._ranks

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def bid(self, size_bytes: int) -> None:
        """The largest worker that this rank could end is so large; 0: there is none, or no need."""
        os.pwrite(self._file, _BID.pack(size_bytes), _TIMES.size + self._place * _BID.size)

    def wins_turn(self, now_s: float, pause_s: float) -> bool:
        """Take the turn if it was nobody's for `pause_s` and no rank has bid more."""
        with self._locked():
            bids = os.pread(self._file, self._ranks * _BID.size, _TIMES.size)
            sizes = [size for (size,) in _BID.iter_unpack(bids)]
            is_largest = sizes.index(max(sizes)) == self._place
            return is_largest and self._take_turn(now_s, pause_s)

    def takes_turn(self, now_s: float, pause_s: float) -> bool:
        """Take the turn if it was nobody's for `pause_s`."""
        with self._locked():
            return self._take_turn(now_s, pause_s)

    def _take_turn(self, now_s: float, pause_s: float) -> bool:
        turn_s, complaint_s = self._times()
        if now_s < turn_s + pause_s:
            return False
        os.pwrite(self._file, _TIMES.pack(now_s, complaint_s), 0)
        return True

    def hold_turn(self, now_s: float) -> None:
        """Something was given back without ending a worker: let nobody end one until that can be seen."""
        with self._locked():
            _, complaint_s = self._times()
            os.pwrite(self._file, _TIMES.pack(now_s, complaint_s), 0)

    def may_complain(self, now_s: float, pause_s: float) -> bool:
        """Whether nobody has complained for `pause_s`; if so, the caller does now."""
        with self._locked():
            turn_s, complaint_s = self._times()
            if now_s < complaint_s + pause_s:
                return False
            os.pwrite(self._file, _TIMES.pack(turn_s, now_s), 0)
            return True

    def _times(self) -> tuple[float, float]:
        turn_s, complaint_s = _TIMES.unpack(os.pread(self._file, _TIMES.size, 0))
        return turn_s, complaint_s

    def close(self) -> None:
        os.close(self._file)
