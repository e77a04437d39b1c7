"""Short learned clauses: sets of clauses, their way out of a solver, and their way between processes.

`Clauses` are what workers of a job exchange, as flat arrays. They are ordered by length, then by glue
(literal block distance, LBD), the best first. All operations are vectorised, because a worker handles about
10^4 clauses per second beside its search. Code for sharing must not call `np.unique`, directly or indirectly,
because its first call in each process imports modules for 50 ms.

`ProofStream` reads the clauses that a running solver learns from the proof that the solver writes (DRAT,
binary or text). The solver writes into a file in memory; a process that shares the file reads it during the
search, and frees the parts it has read. Only short clauses over the formula's own variables are decoded.

`ClausePipe` carries clauses between a worker's process and a solver's; neither end ever blocks.

`sharing` argues which clauses may be passed on to other solvers.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mallob_sat.formula import Literals

Hashes: TypeAlias = NDArray[np.uint64]

#: greatest length and glue, because both are sent as bytes
LENGTH_MAX = 255
SIGNATURE_BYTES = 16
_COUNT = struct.Struct("<I")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Clauses:
    """Clauses, one after the other in `literals`. The other arrays have an element (or row) per clause."""

    lengths: NDArray[np.uint8]
    glues: NDArray[np.uint8]
    literals: Literals
    #: rows of SIGNATURE_BYTES bytes in jobs with checked answers (see `checked`), else empty rows
    signatures: NDArray[np.uint8]

    @classmethod
    def none(cls) -> Clauses:
        return cls(np.zeros(0, np.uint8), np.zeros(0, np.uint8), np.zeros(0, np.int32), _unsigned(0))

    @classmethod
    def of(cls, lengths: NDArray[Any], literals: NDArray[Any], glues: NDArray[Any] | None = None) -> Clauses:
        """Make a set of clauses, given in any order, none longer than LENGTH_MAX.

        Without `glues`, the clauses' lengths, which are never less, are taken as their glues.
        """
        if glues is None:
            glues = lengths
        lengths, glues = lengths.astype(np.uint8), glues.astype(np.uint8)
        return cls(lengths, glues, literals.astype(np.int32), _unsigned(lengths.size))._in_order()

    def __len__(self) -> int:
        return self.lengths.size

    def best(self, literals_max: int) -> tuple[Clauses, Clauses]:
        """Return the best clauses with at most `literals_max` literals in all, and the remaining clauses."""
        count = int(np.searchsorted(np.cumsum(self.lengths, dtype=np.int64), literals_max, side="right"))
        split = int(self.lengths[:count].sum(dtype=np.int64))
        return (
            Clauses(self.lengths[:count], self.glues[:count], self.literals[:split], self.signatures[:count]),
            Clauses(self.lengths[count:], self.glues[count:], self.literals[split:], self.signatures[count:]),
        )

    def where(self, chosen: NDArray[np.bool_]) -> Clauses:
        """Return the clauses for which `chosen` is true, in the same order."""
        if chosen.all():
            return self
        literals = self.literals[np.repeat(chosen, self.lengths)]
        return Clauses(self.lengths[chosen], self.glues[chosen], literals, self.signatures[chosen])

    def hashes(self) -> Hashes:
        """Return a hash of each clause that does not depend on the order of its literals."""
        if not len(self):
            return np.zeros(0, np.uint64)
        mixed = self.literals.astype(np.uint64)  # negative literals wrap around
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
        mixed ^= mixed >> np.uint64(31)
        return np.add.reduceat(mixed, self._starts())

    def renamed(self, names: Literals) -> Clauses:
        """Return the clauses with variable v called `names[v]`."""
        literals = names[np.abs(self.literals)] * np.sign(self.literals)
        return Clauses(self.lengths, self.glues, literals.astype(np.int32), self.signatures)

    def lists(self) -> list[list[int]]:
        """Return a list of literals for each clause."""
        literals = self.literals.tolist()
        starts, lengths = self._starts().tolist(), self.lengths.tolist()
        return [literals[start : start + length] for start, length in zip(starts, lengths, strict=True)]

    def encode(self) -> bytes:
        parts = (self.lengths, self.glues, self.literals.astype("<i4"), self.signatures)
        return _COUNT.pack(len(self)) + b"".join(part.tobytes() for part in parts)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Clauses:
        (count,) = _COUNT.unpack_from(data)
        lengths = np.frombuffer(data, np.uint8, count, _COUNT.size)
        glues = np.frombuffer(data, np.uint8, count, _COUNT.size + count)
        literals = np.frombuffer(data, "<i4", int(lengths.sum(dtype=np.int64)), _COUNT.size + 2 * count)
        signatures = np.frombuffer(data, np.uint8, offset=_COUNT.size + 2 * count + literals.nbytes)
        width = SIGNATURE_BYTES if signatures.size else 0
        return cls(lengths, glues, literals.astype(np.int32), signatures.reshape(count, width))

    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    def _in_order(self) -> Clauses:
        order = np.lexsort((self.glues, self.lengths))
        lengths = self.lengths[order]
        begins = np.cumsum(lengths, dtype=np.int64) - lengths
        places = np.repeat(self._starts()[order] - begins, lengths) + np.arange(self.literals.size)
        return Clauses(lengths, self.glues[order], self.literals[places], self.signatures[order])


def _unsigned(count: int) -> NDArray[np.uint8]:
    return np.zeros((count, 0), np.uint8)


def union(parts: Sequence[Clauses]) -> Clauses:
    """Return the union of several sets, in which each clause occurs once."""
    parts = [part for part in parts if len(part)] or [Clauses.none()]
    together = Clauses(
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.glues for part in parts]),
        np.concatenate([part.literals for part in parts]),
        np.concatenate([part.signatures for part in parts]),
    )._in_order()
    hashes = together.hashes()
    order = np.argsort(hashes, kind="stable")
    chosen = np.ones(len(together), np.bool_)
    chosen[order[1:][hashes[order[1:]] == hashes[order[:-1]]]] = False
    return together.where(chosen)


class HeldBack:
    """The best clauses that a search does not take yet, with at most `literals_max` literals in all."""

    def __init__(self, literals_max: int) -> None:
        self._literals_max = literals_max
        self._clauses = Clauses.none()

    def add(self, clauses: Clauses) -> None:
        """Hold back more clauses."""
        self._clauses, _ = union([self._clauses, clauses]).best(self._literals_max)

    def with_new(self, clauses: Clauses) -> Clauses:
        """Return the union of `clauses` and the clauses held back; hold back none of them any more."""
        held, self._clauses = self._clauses, Clauses.none()
        return union([held, clauses])


class KnownClauses:
    """A table of clauses' hashes. A new hash overwrites at most one other, so few are forgotten soon."""

    def __init__(self, places: int = 1 << 19) -> None:
        """Make an empty table for at most `places` clauses; `places` must be a power of two."""
        self._table: Hashes = np.zeros(places, np.uint64)

    def take_new(self, clauses: Clauses) -> Clauses:
        """Return the clauses that are not known, and remember them."""
        hashes = clauses.hashes()
        places = (hashes & np.uint64(self._table.size - 1)).astype(np.intp)
        new = self._table[places] != hashes
        self._table[places] = hashes
        return clauses.where(new)


_FRAME = struct.Struct("<I")
#: time at which a batch was sent (monotonic)
_STAMP = struct.Struct("<d")
#: number of unsent bytes above which further clauses are dropped
_UNREAD_BYTES_MAX = 1 << 20
_RECEIVED_BYTES = 1 << 18


class ClausePipe:
    """One end of a pipe for clauses in both directions. `is_stamped`: batches carry the time of sending."""

    def __init__(self, end: socket.socket, is_stamped: bool = False) -> None:
        self._is_stamped = is_stamped
        end.setblocking(False)
        self._end = end
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._received = bytearray()
        #: total time that the clauses received with a stamp had spent in the pipe
        self.waited_s = 0.0

    @classmethod
    def pair(cls) -> tuple[ClausePipe, ClausePipe]:
        ours, theirs = socket.socketpair()
        return cls(ours, is_stamped=True), cls(theirs, is_stamped=True)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, clauses: Clauses) -> None:
        self._flush()
        if not len(clauses) or self._unsent_bytes > _UNREAD_BYTES_MAX:
            return
        stamp = _STAMP.pack(time.monotonic()) if self._is_stamped else b""
        body = stamp + clauses.encode()
        self._unsent.append(memoryview(_FRAME.pack(len(body)) + body))
        self._unsent_bytes += len(self._unsent[-1])
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._end.send(self._unsent[0])
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                return
            self._unsent_bytes -= sent
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def received(self) -> list[Clauses]:
        """Return the batches that have arrived completely."""
        while True:
            try:
                data = self._end.recv(_RECEIVED_BYTES)
            except (BlockingIOError, ConnectionResetError):
                break
            if not data:
                break
            self._received += data
        found, begin = [], 0
        while len(self._received) - begin >= _FRAME.size:
            (size,) = _FRAME.unpack_from(self._received, begin)
            end = begin + _FRAME.size + size
            if end > len(self._received):
                break
            found.append(self._clauses_in(bytes(self._received[begin + _FRAME.size : end])))
            begin = end
        del self._received[:begin]
        return found

    def _clauses_in(self, body: bytes) -> Clauses:
        if not self._is_stamped:
            return Clauses.decode(body)
        clauses = Clauses.decode(memoryview(body)[_STAMP.size :])
        self.waited_s += len(clauses) * (time.monotonic() - _STAMP.unpack_from(body)[0])
        return clauses

    def close(self) -> None:
        self._end.close()


#: greatest number of bytes decoded per call, so that a call after a long pause does not take long
_READ_BYTES_MAX = 1 << 25
#: number of bytes at the end of a skipped part in which `skip` looks for the last whole step
_SKIPPED_BYTES = 1 << 20
_ADDED = 0x61
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2


class ProofStream:
    """The reader of a solver's proof. `length_max` and `variable_max` bound the clauses of interest."""

    def __init__(self, length_max: int, variable_max: int, is_binary: bool) -> None:
        self.fd = os.memfd_create("proof")
        self._length_max = length_max
        self._variable_max = variable_max
        self._decode, self._end_of_step = (decode_binary, b"\0") if is_binary else (decode_text, b"\n")
        self._position = 0

    def take(self, literals_max: int | None = None) -> Clauses:
        """Return the clauses of interest written since the last call; if there are many, the shortest ones.

        `literals_max`: the wanted number of literals in all; more may be returned.
        """
        data = os.pread(self.fd, _READ_BYTES_MAX, self._position)
        clauses, used = self._decode(data, self._length_max, self._variable_max, literals_max)
        self._forget(self._position + used)
        return clauses

    def skip(self) -> None:
        """Free the proof up to its last whole step, without decoding it."""
        size = os.fstat(self.fd).st_size
        begin = max(self._position, size - _SKIPPED_BYTES)
        if begin == self._position:
            return  # nothing was written
        end = os.pread(self.fd, size - begin, begin).rfind(self._end_of_step)
        if end >= 0:
            self._forget(begin + end + 1)

    def close(self) -> None:
        os.close(self.fd)

    def _forget(self, position: int) -> None:
        self._position = position
        if position:
            mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
            ctypes.CDLL(None).fallocate(self.fd, mode, ctypes.c_long(0), ctypes.c_long(position))


def decode_binary(
    data: bytes, length_max: int, variable_max: int, literals_max: int | None = None
) -> tuple[Clauses, int]:
    """Decode the added clauses of a binary proof; return them and the number of bytes of whole steps.

    Solvers write many times as many clauses as can be shared. So with `literals_max`, only clauses of the
    fewest bytes are decoded, enough for that number of literals in all.

    A step is a letter (a: added), the literals, and a 0. A literal is the number 2v, or 2v + 1 if v is
    negated, in groups of 7 bits, the lowest group first; all groups but the last have the highest bit set.
    """
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets == 0)
    if not ends.size:
        return Clauses.none(), 0
    used = int(ends[-1]) + 1
    starts = np.concatenate((np.zeros(1, ends.dtype), ends[:-1] + 1))
    sizes = ends - starts - 1
    literal_bytes_max = ((2 * variable_max + 1).bit_length() + 6) // 7
    short = (octets[starts] == _ADDED) & (sizes > 0) & (sizes <= literal_bytes_max * length_max)
    if literals_max is not None:
        counts = np.bincount(sizes[short])
        up_to_each_size = np.cumsum(counts * np.arange(counts.size))
        short &= sizes <= np.searchsorted(up_to_each_size, literals_max * literal_bytes_max)
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


def decode_text(
    data: bytes, length_max: int, variable_max: int, literals_max: int | None = None
) -> tuple[Clauses, int]:
    """Decode a proof as text: one step per line, deletions begin with `d`, steps end with 0."""
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
