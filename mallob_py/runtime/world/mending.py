"""A connection between two ranks that has broken, until there is another one or the peer is known to be gone.

A connection that is reset, or cut by what lies between two hosts, says nothing of its ends. So the rank that
has connected once connects again, and both resume their `Stream`; the other one waits for that. Meanwhile
each looks whether the peer still listens: the port of a process that has ended refuses connections. So the
death of a rank is still heard of soon (REFUSED_S), and what does not answer is waited for: that has its
bound in `links.py`.

    who connects -> the other   "R", its rank, a nonce, how many bytes it has received; and a code of all that
    the other -> who connects   how many bytes it has received; and a code of that and the nonce

The codes are keyed by the secret of the link. So a process that has got hold of the port of a rank which has
ended does not learn the secret, and cannot answer.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import struct
from typing import NamedTuple

NONCE_BYTES = CODE_BYTES = 16
RESUME = ord("R")
#: kind, rank, nonce, bytes received, code
HELLO = struct.Struct(f"<BI{NONCE_BYTES}sQ{CODE_BYTES}s")
ANSWER = struct.Struct(f"<Q{CODE_BYTES}s")
#: a rank whose port has refused all connections for so long has ended
REFUSED_S = 0.5
_FIRST_PAUSE_S = 0.05
_PAUSE_MAX_S = 0.5
#: longest pause [s] between attempts to reach a peer that is thought dead
_SLOW_PAUSE_MAX_S = 5.0
_ATTEMPT_S = 2.0
_UNDER_WAY = frozenset({errno.EINPROGRESS, errno.EALREADY})
_CONNECTED = frozenset({0, errno.EISCONN})


class Dials(NamedTuple):
    """The sides of a broken connection: which connects again, and where the peer listens (None: nowhere)."""

    is_ours: bool
    listener: tuple[str, int] | None


def is_same(said: bytes, known: bytes) -> bool:
    """Whether these are equal, in a time that does not tell where they differ."""
    import hmac  # loads a library that few worlds need: those with links

    return hmac.compare_digest(said, known)


def hello(secret: bytes, rank: int, peer: int, nonce: bytes, received: int) -> bytes:
    """The first word of `rank` to `peer` over a new connection."""
    code = _code(secret, b"resume", struct.pack("<IIQ", rank, peer, received) + nonce)
    return HELLO.pack(RESUME, rank, nonce, received, code)


def is_hello_of(said: bytes, secret: bytes, peer: int, rank: int) -> bool:
    """Whether the peer's link to this rank has been resumed by these words."""
    _, _, nonce, received, _ = HELLO.unpack(said)
    return is_same(said, hello(secret, peer, rank, nonce, received))


def answer(secret: bytes, nonce: bytes, received: int) -> bytes:
    """The word to whoever said `hello` with this nonce."""
    count = struct.pack("<Q", received)
    return count + _code(secret, b"resumed", count + nonce)


def _code(secret: bytes, purpose: bytes, data: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, purpose + data, "sha256")[:CODE_BYTES]


class Resumed(NamedTuple):
    """The new connection, and how many bytes the peer had received by the old ones."""

    connection: socket.socket
    received: int


class Mending:
    """The attempts to mend one connection. `turn` is due at `next_s`, and when `epoll` tells of anything."""

    def __init__(
        self,
        rank: int,
        peer: int,
        secret: bytes,
        dials: Dials,
        received: int,
        epoll: select.epoll,
        now: float,
    ) -> None:
        """`received`: how many bytes have come from the peer."""
        self.since_s = now
        #: when `turn` is due
        self.next_s = now if dials.listener is not None else math.inf
        #: whether the peer is thought dead: it may be back in a second or in a day
        self.is_patient = False
        self._rank, self._peer, self._secret, self._dials = rank, peer, secret, dials
        self._received = received
        self._epoll = epoll
        self._pause_s = _FIRST_PAUSE_S
        self._refused_since_s: float | None = None
        self._attempt: socket.socket | None = None
        self._nonce = b""
        self._has_said_hello = False
        self._heard = b""

    def turn(self, now: float) -> Resumed | None:
        """Take the steps that are due."""
        try:
            if self._attempt is None:
                if now < self.next_s:
                    return None
                self._begin(now)
            return self._go_on(now)
        except ConnectionRefusedError:
            if self._refused_since_s is None:
                self._refused_since_s = now
            self._fail(now)
        except OSError:  # no way there, or no descriptors: who knows
            self._refused_since_s = None
            self._fail(now)
        return None

    def is_refused(self, now: float) -> bool:
        """Whether the peer has ended: its port refuses connections."""
        since_s = self._refused_since_s
        return self._attempt is None and since_s is not None and now >= since_s + REFUSED_S

    def close(self) -> None:
        """Give up the attempt that is under way."""
        if self._attempt is not None:
            self._attempt.close()  # epoll forgets it by that
            self._attempt = None

    def _begin(self, now: float) -> None:
        self._attempt = socket.socket(socket.AF_INET)
        self._attempt.setblocking(False)
        self._epoll.register(self._attempt.fileno(), select.EPOLLOUT)
        self._has_said_hello = False
        self._heard = b""
        self.next_s = now + _ATTEMPT_S

    def _go_on(self, now: float) -> Resumed | None:
        attempt = self._attempt
        assert attempt is not None
        if not self._has_said_hello:
            assert self._dials.listener is not None
            problem = attempt.connect_ex(self._dials.listener)
            if problem in _CONNECTED:
                if not self._dials.is_ours:  # it lives, and will connect
                    raise ConnectionAbortedError
                self._say_hello(attempt)
            elif problem == errno.ECONNREFUSED:
                raise ConnectionRefusedError
            elif problem not in _UNDER_WAY:
                raise OSError(problem, os.strerror(problem))
        if self._has_said_hello and (resumed := self._hear(attempt)) is not None:
            return resumed
        if now >= self.next_s:
            raise TimeoutError
        return None

    def _say_hello(self, attempt: socket.socket) -> None:
        self._nonce = os.urandom(NONCE_BYTES)
        attempt.send(hello(self._secret, self._rank, self._peer, self._nonce, self._received))
        self._has_said_hello = True
        self._epoll.modify(attempt.fileno(), select.EPOLLIN)

    def _hear(self, attempt: socket.socket) -> Resumed | None:
        try:
            more = attempt.recv(ANSWER.size - len(self._heard))
        except BlockingIOError:
            return None
        if not more:  # somebody else has that port, or the peer does not know us any more
            raise ConnectionRefusedError
        self._heard += more
        if len(self._heard) < ANSWER.size:
            return None
        received, _ = ANSWER.unpack(self._heard)
        if not is_same(self._heard, answer(self._secret, self._nonce, received)):
            raise ConnectionRefusedError
        self._attempt = None
        self._epoll.unregister(attempt.fileno())
        return Resumed(attempt, received)

    def _fail(self, now: float) -> None:
        self.close()
        self.next_s = now + self._pause_s
        longest_s = _SLOW_PAUSE_MAX_S if self.is_patient else _PAUSE_MAX_S
        self._pause_s = min(2 * self._pause_s, longest_s)
