"""Accepting connections while no descriptor is free: callers are turned away instead of waiting for ever.

A listening socket stays readable until its connection is accepted. If descriptors have run out, a loop that
ignores the error finds the socket readable again at once, and burns a core. So one descriptor is kept in
reserve: the reserve is closed, the connection is accepted and closed, and the reserve is opened again.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import suppress

_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
#: pause before a caller is turned away if there is no reserved descriptor either
_REST_S = 0.1


def is_shortage(error: OSError) -> bool:
    """Tell whether the error says that descriptors or memory have run out."""
    return error.errno in _SHORTAGES


class Doorkeeper:
    """Accepts connections at the listening sockets of one loop or thread."""

    def __init__(self) -> None:
        self._reserve: int | None = None
        self._fill_reserve()

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """Return the next connection; None: no connection waits, or the next caller had to be turned away.

        Raises OSError if the listening socket itself is broken.
        """
        try:
            return listener.accept()[0]
        except (BlockingIOError, ConnectionError):
            return None
        except OSError as error:
            if not is_shortage(error):
                raise
        self._turn_away(listener)
        return None

    def close(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def _turn_away(self, listener: socket.socket) -> None:
        if self._reserve is None:
            time.sleep(_REST_S)
        self.close()
        with suppress(OSError):
            listener.accept()[0].close()
        self._fill_reserve()

    def _fill_reserve(self) -> None:
        with suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
