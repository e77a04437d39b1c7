"""A rank's heap: memory freed after large messages goes back to the kernel when the rank has little to do.

glibc keeps freed memory that lies below a live block, and reuses it for later messages. So a rank that has
passed on a bag's tasks would keep its largest size. Two remedies were measured. Fixed thresholds (`mallopt`)
make the kernel hand out new pages for every large message, which takes 20 times as long for a message of 1
MB. `malloc_trim` costs nothing during messages, and afterwards about 50 ms for 200 MB. So `malloc_trim` is
called, but seldom, and only when the rank is not busy and much can be given back.

The C library knows how much of the heap is free, but not how much of this free memory it has given back
already. So the measure is the present amount of the process's unused memory, less its smallest amount since
the last trim. With other C libraries (musl) nothing is done.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

#: smallest amount of memory that is worth a trim
_WORTH_BYTES = 8 << 20
#: shortest time between trims: new messages must fetch memory again after a trim, and counting costs time
_EVERY_S = 10.0
#: share of a core above which a rank counts as busy
_BUSY_SHARE = 0.5
#: `struct mallinfo`: number of fields; index of the used bytes in mappings (hblkhd), and elsewhere (uordblks)
_FIELDS, _MAPPED, _USED = 10, 4, 7


class CHeap(NamedTuple):
    """The C heap: its unused memory, and the call that returns this memory to the system."""

    unused_bytes: Callable[[], int]
    trim: Callable[[], object]


class _MallInfo2(ctypes.Structure):
    _fields_ = (("counts", ctypes.c_size_t * _FIELDS),)


class _MallInfo(ctypes.Structure):
    """The counts of glibc before 2.33, exact up to 4 GB; a larger heap is trimmed too often."""

    _fields_ = (("counts", ctypes.c_uint * _FIELDS),)


def c_heap() -> CHeap | None:
    """Return this process's heap; None: the C library is not glibc."""
    library = ctypes.CDLL(None)
    trim = getattr(library, "malloc_trim", None)
    if (info := getattr(library, "mallinfo2", None)) is not None:
        info.restype = _MallInfo2
    elif (info := getattr(library, "mallinfo", None)) is not None:
        info.restype = _MallInfo
    if trim is None or info is None:
        return None
    trim.argtypes = (ctypes.c_size_t,)

    def unused_bytes() -> int:
        counts = info().counts
        return _own_resident_bytes() - int(counts[_MAPPED] + counts[_USED])

    return CHeap(unused_bytes, lambda: trim(0))


def _own_resident_bytes() -> int:
    """Return this process's resident bytes, without memory that may be shared."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


class HeapKeeper:
    """Keeper that gives the heap's free memory back. `look` should be called about once a second."""

    def __init__(self, heap: CHeap | None) -> None:
        self._heap = heap
        #: smallest number of unused bytes since the last trim; includes Python's reserve for small objects
        self._least_bytes = math.inf if heap is None else heap.unused_bytes()
        self._next_s = -math.inf
        #: time of the last call of `look`, and CPU time then
        self._last: tuple[float, float] | None = None

    def look(self, now_s: float, cpu_s: float) -> None:
        """Trim the heap if that is due. `cpu_s`: the rank's CPU time so far."""
        if self._heap is None:
            return
        last, self._last = self._last, (now_s, cpu_s)
        if last is None or cpu_s - last[1] > _BUSY_SHARE * (now_s - last[0]) or now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        with suppress(OSError):  # without a free descriptor, the next call tries again
            self._give_back(self._heap)

    def _give_back(self, heap: CHeap) -> None:
        """Trim the heap if enough of it is unused. Raises OSError."""
        unused_bytes = heap.unused_bytes()
        self._least_bytes = min(self._least_bytes, unused_bytes)
        if unused_bytes - self._least_bytes >= _WORTH_BYTES:
            heap.trim()
            self._least_bytes = heap.unused_bytes()
