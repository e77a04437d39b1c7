"""What a running solver learns, read from the proof that it writes (DRAT, binary or text).

The solver writes into a file in memory; whoever shares that file reads behind it, while the
search goes on, and frees what has been read. Only short clauses over the formula's own variables
are decoded into `Clauses`.

Whether a step may be passed on to other solvers is a matter of the solver: see `solvers.py`.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mallob_sat.clauses import Clauses

#: per call, so that a long pause does not end in one long halt; the rest is skipped
_READ_BYTES_MAX = 1 << 25
_ADDED = 0x61
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
#: a literal of a binary proof takes at most so many bytes
_LITERAL_BYTES_MAX = 5


class ProofStream:
    """The reading end. `length_max` and `variable_max` say which clauses are of interest."""

    def __init__(self, length_max: int, variable_max: int, is_binary: bool) -> None:
        self.fd = os.memfd_create("proof")
        self._length_max = length_max
        self._variable_max = variable_max
        self._decode = decode_binary if is_binary else decode_text
        self._position = 0

    def take(self) -> Clauses:
        """The clauses of interest that have been written since the last call."""
        data = os.pread(self.fd, _READ_BYTES_MAX, self._position)
        clauses, used = self._decode(data, self._length_max, self._variable_max)
        self._forget(self._position + used)
        return clauses

    def skip(self) -> None:
        """Free what has been written without looking at it, up to the last whole clause that is near."""
        size = os.fstat(self.fd).st_size
        begin = max(self._position, size - _READ_BYTES_MAX)
        if begin == self._position and size - begin < _READ_BYTES_MAX // 8:
            return  # not worth it
        self._position = begin
        data = os.pread(self.fd, size - begin, begin)
        _, used = self._decode(data, 0, 0)
        self._forget(begin + used)

    def close(self) -> None:
        os.close(self.fd)

    def _forget(self, position: int) -> None:
        self._position = position
        if position:
            mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
            ctypes.CDLL(None).fallocate(self.fd, mode, ctypes.c_long(0), ctypes.c_long(position))


def decode_binary(data: bytes, length_max: int, variable_max: int) -> tuple[Clauses, int]:
    """Added clauses of a binary proof, and how many bytes belong to whole steps.

    A step is a letter (a: added), the literals as numbers 2v or 2v + 1 (v negated) in groups of
    7 bits, lowest first, all but the last with the highest bit set, and a 0.
    """
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets == 0)
    if not ends.size:
        return Clauses.none(), 0
    used = int(ends[-1]) + 1
    starts = np.concatenate((np.zeros(1, ends.dtype), ends[:-1] + 1))
    sizes = ends - starts - 1
    short = (octets[starts] == _ADDED) & (sizes > 0) & (sizes <= _LITERAL_BYTES_MAX * length_max)
    starts, sizes = starts[short] + 1, sizes[short]
    if not sizes.size:
        return Clauses.none(), used
    ends_here = np.cumsum(sizes)
    groups = octets[np.repeat(starts - ends_here + sizes, sizes) + np.arange(ends_here[-1])]
    is_last = groups < 0x80
    first_of_literal = np.concatenate((np.zeros(1, np.intp), np.flatnonzero(is_last)[:-1] + 1))
    shift = np.arange(groups.size) - np.repeat(
        first_of_literal, np.diff(first_of_literal, append=groups.size)
    )
    codes = np.add.reduceat((groups & 0x7F).astype(np.int64) << (7 * shift), first_of_literal)
    literals = np.where(codes & 1, -(codes >> 1), codes >> 1)
    lengths = np.add.reduceat(is_last.astype(np.int64), ends_here - sizes)
    return _of_interest(lengths, literals, length_max, variable_max), used


def decode_text(data: bytes, length_max: int, variable_max: int) -> tuple[Clauses, int]:
    """The same for a proof as text: one step per line, `d` before those that delete, 0 at the end."""
    used = data.rfind(b"\n") + 1
    size_max = 12 * length_max + 2
    added = [line for line in data[:used].split(b"\n") if 2 < len(line) <= size_max and line[0] != ord("d")]
    numbers = np.array(b" ".join(added).split(), dtype=np.int64)
    ends = np.flatnonzero(numbers == 0)
    if not ends.size:
        return Clauses.none(), used
    lengths = np.diff(ends, prepend=-1) - 1
    return _of_interest(lengths, numbers[numbers != 0], length_max, variable_max), used


def _of_interest(
    lengths: NDArray[Any], literals: NDArray[Any], length_max: int, variable_max: int
) -> Clauses:
    begins = np.cumsum(lengths) - lengths
    nonempty = lengths > 0
    largest = np.zeros(lengths.size, np.int64)
    if literals.size:
        largest[nonempty] = np.maximum.reduceat(np.abs(literals), begins[nonempty])
    chosen = nonempty & (lengths <= length_max) & (largest <= variable_max)
    return Clauses.of(lengths[chosen], literals[np.repeat(chosen, lengths)])
