"""Mending a broken connection between two ranks, until a new one exists or the peer is known to have ended.

A connection may be reset, or cut between two hosts, while both ranks live. So the rank that opened the
connection connects again, while the other rank waits; then both resume their `Stream`. Meanwhile each rank
checks whether the peer still listens: the port of an ended process refuses connections. So the end of a rank
is still noticed soon (REFUSED_S). `Links.patience_s` limits how long a rank waits for a peer that neither
refuses nor answers.

    connecting rank -> other rank   "R", own rank, a nonce, number of bytes received; a code of all these
    other rank -> connecting rank   number of bytes received; a code of this number and the nonce

The codes are keyed by the link's secret. So a process that has obtained the port of an ended rank can neither
learn the secret nor answer.
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
#: fields of a connecting rank's first message: kind, rank, nonce, bytes received, code
HELLO = struct.Struct(f"<BI{NONCE_BYTES}sQ{CODE_BYTES}s")
ANSWER = struct.Struct(f"<Q{CODE_BYTES}s")
#: time after which a rank whose port refuses all connections counts as ended
REFUSED_S = 0.5
_FIRST_PAUSE_S = 0.05
_PAUSE_MAX_S = 0.5
#: longest pause between attempts to reach a peer that counts as lost
_SLOW_PAUSE_MAX_S = 5.0
_ATTEMPT_S = 2.0
_UNDER_WAY = frozenset({errno.EINPROGRESS, errno.EALREADY})
_CONNECTED = frozenset({0, errno.EISCONN})


class Dials(NamedTuple):
    """The roles at a broken link: whether this rank connects again, and where the peer listens, if at all."""

    is_ours: bool
    listener: tuple[str, int] | None


def is_same(said: bytes, known: bytes) -> bool:
    """Tell whether two secrets are equal, in a time that does not reveal where they differ."""
    import hmac  # imported late: it loads a library that only links need

    return hmac.compare_digest(said, known)


def hello(secret: bytes, rank: int, peer: int, nonce: bytes, received: int) -> bytes:
    """Return the first message of `rank` to `peer` over a new connection."""
    code = _code(secret, b"resume", struct.pack("<IIQ", rank, peer, received) + nonce)
    return HELLO.pack(RESUME, rank, nonce, received, code)


def is_hello_of(said: bytes, secret: bytes, peer: int, rank: int) -> bool:
    """Tell whether `said` is the peer's `hello` to this rank."""
    _, _, nonce, received, _ = HELLO.unpack(said)
    return is_same(said, hello(secret, peer, rank, nonce, received))


def answer(secret: bytes, nonce: bytes, received: int) -> bytes:
    """Return the answer to a `hello` with this nonce."""
    count = struct.pack("<Q", received)
    return count + _code(secret, b"resumed", count + nonce)


def _code(secret: bytes, purpose: bytes, data: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, purpose + data, "sha256")[:CODE_BYTES]


class Resumed(NamedTuple):
    """The new connection, and the number of bytes that the peer received over earlier connections."""

    connection: socket.socket
    received: int


class Mending:
    """The attempts to mend one connection. `turn` is due at `next_s`, and at any event of `epoll`."""

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
        """`received`: number of bytes received from the peer."""
        self.since_s = now
        #: time at which `turn` is due
        self.next_s = now if dials.listener is not None else math.inf
        #: whether the peer counts as lost, so that attempts are rare: it may be back in a second or in a day
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
        """Take the steps that are due; return the new connection once it exists."""
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
        except OSError:  # no route, or no free descriptor: the peer may live
            self._refused_since_s = None
            self._fail(now)
        return None

    def is_refused(self, now: float) -> bool:
        """Tell whether the peer has ended: its port has refused connections for REFUSED_S."""
        since_s = self._refused_since_s
        return self._attempt is None and since_s is not None and now >= since_s + REFUSED_S

    def close(self) -> None:
        """Give up the attempt that is under way, if any."""
        if self._attempt is not None:
            self._attempt.close()  # closing also removes the socket from epoll
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
                if not self._dials.is_ours:  # the peer lives, and connects itself
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
        if not more:  # another process has the port, or the peer has dropped this link
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
