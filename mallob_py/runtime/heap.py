"""A rank's own heap: what large messages have left of it goes back to the kernel when it has little to do.

glibc keeps what has been freed below anything that still lives, and after the first large messages it takes
all further ones from there. So a rank that has carried a bag's tasks would stay at its largest for good.
Two remedies were measured. Fixed thresholds (`mallopt`) have the kernel hand out new pages for every large
message: 20 times the time for one of 1 MB. `malloc_trim` costs nothing while messages come, and afterwards
some 50 ms for 200 MB; so that is called, when the rank is not busy, when it can give back much, and seldom.

The C library knows how much of the heap is free, but not how much of that has gone back already. So what
counts is the memory that this process has and does not use, and by how much that is more than the least it
was since the last time. With another C library (musl) nothing is done.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

#: less is not worth a call
_WORTH_BYTES = 8 << 20
#: messages may come again, and what is given back has to be fetched again then; counting takes its time, too
_EVERY_S = 10.0
#: of a core
_BUSY_SHARE = 0.5
#: of the fields of `struct mallinfo`, all of one kind: in mappings of their own (hblkhd), other (uordblks)
_FIELDS, _MAPPED, _USED = 10, 4, 7


class CHeap(NamedTuple):
    """The C heap: the memory of this process that no allocation uses, and the way to give that back."""

    unused_bytes: Callable[[], int]
    trim: Callable[[], object]


class _MallInfo2(ctypes.Structure):
    _fields_ = (("counts", ctypes.c_size_t * _FIELDS),)


class _MallInfo(ctypes.Structure):
    """The counts of glibc before 2.33. It counts up to 4 GB; beyond, it is trimmed once more than need be."""

    _fields_ = (("counts", ctypes.c_uint * _FIELDS),)


def c_heap() -> CHeap | None:
    """This process's; None where it is not glibc's."""
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
    """Without what others may have mapped, too."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


class HeapKeeper:
    """Gives back what is free. `look` wants to be called about once a second."""

    def __init__(self, heap: CHeap | None) -> None:
        self._heap = heap
        #: the least that was unused since the last time: what Python has for small things is part of it
        self._least_bytes = math.inf if heap is None else heap.unused_bytes()
        self._next_s = -math.inf
        #: the last look: when, and the CPU time that had been used by then
        self._last: tuple[float, float] | None = None

    def look(self, now_s: float, cpu_s: float) -> None:
        """Trim the heap if it is time to. `cpu_s` is the CPU time that the rank has used by now."""
        if self._heap is None:
            return
        last, self._last = self._last, (now_s, cpu_s)
        if last is None or cpu_s - last[1] > _BUSY_SHARE * (now_s - last[0]) or now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        with suppress(OSError):  # no descriptor is free: it looks again later
            self._give_back(self._heap)

    def _give_back(self, heap: CHeap) -> None:
        """Raises OSError."""
        unused_bytes = heap.unused_bytes()
        self._least_bytes = min(self._least_bytes, unused_bytes)
        if unused_bytes - self._least_bytes >= _WORTH_BYTES:
            heap.trim()
            self._least_bytes = heap.unused_bytes()
