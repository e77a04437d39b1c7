"""Fork servers of ranks that are forked themselves: one process imports for all of them.

It can be started before it is known how many ranks there will be; hence this imports next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import NoReturn

from mallob_py.runtime.stop_requests import STOP_SIGNALS


class ForkedServers:
    """The fork servers of all ranks to come, by one process that begins to import at once.

    The caller has a single thread. If `open` is not called, nothing comes of it.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        #: by rank: the control socket of its server
        self.controls: list[socket.socket] = []
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        with signals_held_back(), theirs:
            if os.fork() == 0:
                self._orders.close()
                _raise_servers(theirs, preload, parent)

    def open(self, ranks: int) -> None:
        """Have servers for so many ranks. Raises OSError, such as for want of descriptors."""
        for _ in range(ranks):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.controls.append(ours)
            with theirs:
                socket.send_fds(self._orders, [b"!"], [theirs.fileno()])
        self._orders.close()

    def close(self) -> None:
        """They end by themselves then."""
        for each in (self._orders, *self.controls):
            each.close()


def _raise_servers(orders: socket.socket, preload: Sequence[str], parent_pid: int) -> NoReturn:
    try:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        use_no_input()
        from mallob_py.runtime.fork_server import raise_servers

        raise_servers(orders, preload, parent_pid)
    finally:
        os._exit(1)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Those that ask for the end, until they can be dealt with."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def use_no_input() -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
