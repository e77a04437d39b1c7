"""Accepting connections while no descriptor is free: a caller is turned away, and none waits for ever.

A socket that listens stays readable until its connection is accepted. Where descriptors have run out, a
loop that only passes over the error finds it readable at once again, and burns a core. So one descriptor is
kept in reserve: it is closed, the connection accepted and closed, and the reserve opened again.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import suppress

_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
#: without a reserve, too: until the loop may try again
_REST_S = 0.1


def is_shortage(error: OSError) -> bool:
    """Whether it says that descriptors or memory have run out."""
    return error.errno in _SHORTAGES


class Doorkeeper:
    """Accepts connections at the listening sockets of one loop or thread."""

    def __init__(self) -> None:
        self._reserve: int | None = None
        self._fill_reserve()

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """The next connection; None if none waits any more, or if its caller had to be turned away.

        Raises OSError if the listening socket itself is of no use.
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
