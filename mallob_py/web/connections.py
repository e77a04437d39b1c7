"""Connections of the web server: silent and slow peers must not keep other peers out.

A connection *waits* from its start, or from its last answer on, until the head of a request is complete. A
waiting connection must send a head within `HEAD_MAX_S`, and at most `WAITING_MAX` connections wait. A further
connection displaces the oldest one of the peer with most waiting connections. So a head that is sent at once
is always read, however many connections are silent.

Bytes that a peer does not read stay in the transport, at most 64 KB. A peer that does not read 48 KB of them
within `UNREAD_MAX_S` (0.8 KB a second) is cut off, also after the end of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_MAX_S = 10.0
UNREAD_MAX_S = 60.0
WAITING_MAX = 400


class _Waiting(Protocol):
    def cut_off(self) -> None: ...


class Places:
    """The connections that wait for a request, by peers."""

    def __init__(self, most: int = WAITING_MAX) -> None:
        self._most = most
        self._count = 0
        #: the waiting connections of each peer, the oldest first
        self._of_peers: dict[str, dict[_Waiting, None]] = {}

    def __len__(self) -> int:
        return self._count

    def take(self, peer: str, connection: _Waiting) -> None:
        """Let a connection wait. If no place is left, cut off the oldest connection of the peer with most
        connections.
        """
        if self._count >= self._most:
            crowded = max(self._of_peers.values(), key=len)
            oldest = next(iter(crowded))
            self.leave(next(peer for peer, those in self._of_peers.items() if those is crowded), oldest)
            oldest.cut_off()
        those = self._of_peers.setdefault(peer, {})
        self._count += connection not in those
        those[connection] = None

    def leave(self, peer: str, connection: _Waiting) -> None:
        """Remove a connection that may be waiting."""
        those = self._of_peers.get(peer, {})
        if connection in those:
            del those[connection]
            self._count -= 1
            if not those:
                del self._of_peers[peer]


class Connection(H11Protocol):
    """A connection of uvicorn with time limits for its peer."""

    def __init__(self, places: Places, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._places = places
        self._peer = ""
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def cut_off(self) -> None:
        """End the connection at once; unread bytes are lost."""
        if not self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()

    # --- the head of a request --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._await_head()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()
        if self.transport.is_closing():
            self._await_reader()
        elif self.cycle is answered:
            self._await_head()

    def _await_head(self) -> None:
        self._stop_waiting()
        self._places.take(self._peer, self)
        self._head_timer = self.loop.call_later(HEAD_MAX_S, self._lose_patience)

    def _stop_waiting(self) -> None:
        self._places.leave(self._peer, self)
        _cancel(self._head_timer)

    def _lose_patience(self) -> None:
        """Give up the wait for a head; the peer may still read the last answer."""
        self._stop_waiting()
        if self.transport.get_write_buffer_size():
            self.transport.close()
            self._await_reader()
        else:
            self.cut_off()

    # --- reading of answers -----------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            _cancel(self._unread_timer)

    def _await_reader(self) -> None:
        _cancel(self._unread_timer)
        self._unread_timer = self.loop.call_later(UNREAD_MAX_S, self.cut_off)

    # --- the end ----------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        _cancel(self._unread_timer)
        super().connection_lost(exc)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def connections(places: Places) -> Callable[..., Connection]:
    """Return the factory of a server's connections, which share `places`."""

    def make(**of_uvicorn: Any) -> Connection:
        return Connection(places, **of_uvicorn)

    return make
