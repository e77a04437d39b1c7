"""How workers take parts of an enumeration off the root: cubes, whole or not at all.

The root could do all alone, and would in any case come to the right end. A helper picks a cube (values of
a few variables), enumerates it and sends all its solutions up. The root puts them in the place of
those that it has found itself in that cube, and looks there no more. So no agreement is needed: a
cube that is done twice, or whose message is lost with a worker, costs time only. Helpers hear from
the root which cubes are done, and send theirs again as long as they are not.

    ROWS(q, rows)     up    all solutions of cube q, or as many as are wanted at most
    DONE(bits)        down  bit q: cube q is done

A cube of too many solutions for a message is left to the root.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from mallob_py.kit import TreeMessage, WorkerContext

#: solutions of a cube beyond this are not worth their way
CUBE_BYTES_MAX = 4 << 20
_TELL_PERIOD_S = 1.0
_SEND_AGAIN_S = 5.0
#: helpers begin far from each other
_SPREAD = 0.6180339887
_HEADER = struct.Struct("<3scI")
_MAGIC = b"\xf5CU"
_ROWS = b"R"
_DONE = b"D"


class Leader:
    """The root's side."""

    def __init__(self, context: WorkerContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._done = 0
        self._tell_s = clock()

    def turn(self) -> list[tuple[int, bytes]]:
        """Cubes that helpers have done, each once: its number and the rows of its solutions."""
        news = []
        for message in self._context.poll():
            kind, cube, body = _decode(message)
            if kind == _ROWS and not self._done >> cube & 1:
                self._done |= 1 << cube
                news.append((cube, body))
        now = self._clock()
        if news or now >= self._tell_s:
            self._tell_s = now + _TELL_PERIOD_S
            self._context.send_to_children(_done_message(self._done))
        return news


class Helper:
    """The side of every other worker."""

    def __init__(
        self, context: WorkerContext, n_cubes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context = context
        self._n_cubes = n_cubes
        self._clock = clock
        self._done = 0
        #: done here, as sent to the root; kept in case that another root, started anew, lacks them
        self._sent: dict[int, bytes] = {}
        self._left_to_root: set[int] = set()
        self._send_again_s = clock() + _SEND_AGAIN_S
        self._next = int(context.index * _SPREAD * n_cubes) % n_cubes

    def choose(self) -> int | None:
        """A cube that nobody is known to have done; None if there is none at present."""
        for step in range(self._n_cubes):
            cube = (self._next + step) % self._n_cubes
            if not self.is_done(cube) and cube not in self._sent and cube not in self._left_to_root:
                self._next = cube
                return cube
        return None

    def is_done(self, cube: int) -> bool:
        return bool(self._done >> cube & 1)

    def give(self, cube: int, rows: bytes) -> None:
        """All solutions of a cube, found here."""
        if len(rows) > CUBE_BYTES_MAX:
            self.leave_to_root(cube)
            return
        self._sent[cube] = _HEADER.pack(_MAGIC, _ROWS, cube) + rows
        self._context.send_to_parent(self._sent[cube])

    def leave_to_root(self, cube: int) -> None:
        self._left_to_root.add(cube)

    def turn(self, timeout_s: float = 0.0) -> None:
        """Take in and pass on what there is, or comes within this time."""
        for message in self._context.poll(timeout_s):
            kind, _, body = _decode(message)
            if kind == _ROWS:
                self._context.send_to_parent(message.data)
            elif kind == _DONE:
                self._done = int.from_bytes(body, "little")  # less than before, if the root is new
                self._context.send_to_children(message.data)
        now = self._clock()
        if now >= self._send_again_s:
            self._send_again_s = now + _SEND_AGAIN_S
            for cube, data in self._sent.items():
                if not self.is_done(cube):
                    self._context.send_to_parent(data)


def _done_message(done: int) -> bytes:
    return _HEADER.pack(_MAGIC, _DONE, 0) + done.to_bytes(-(-done.bit_length() // 8), "little")


def _decode(message: TreeMessage) -> tuple[bytes, int, bytes]:
    """Kind, number of the cube and the rest; no kind if it is not for us."""
    if message.returned or message.data[: len(_MAGIC)] != _MAGIC:
        return b"", 0, b""
    _, kind, cube = _HEADER.unpack_from(message.data)
    return kind, cube, message.data[_HEADER.size :]
