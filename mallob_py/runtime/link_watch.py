"""Which sockets of a rank's worker processes have something to read or room to write.

An epoll object of its own, which is itself a file descriptor that the event loop can wait
for: however many workers there are, the loop sees one.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import suppress

from mallob_py.runtime.worker_link import WorkerLink

WRITABLE = select.EPOLLOUT


class LinkWatch:
    """An epoll object for links, one server socket, and wake-ups from within."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)
        self._links: dict[int, WorkerLink] = {}
        self._server_fd = -1

    @property
    def closed(self) -> bool:
        return self._epoll.closed

    def fileno(self) -> int:
        return self._epoll.fileno()

    def wake(self) -> None:
        """Make `fileno()` readable until the next `ready()`."""
        os.eventfd_write(self._wakeup_fd, 1)

    def ready(self) -> Iterator[tuple[WorkerLink | None, int]]:
        """Links (or None for the server) and what they are ready for."""
        for fd, mask in self._epoll.poll(0):
            if fd == self._wakeup_fd:
                with suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif (link := self._links.get(fd)) is not None:
                yield link, mask
            elif fd == self._server_fd:
                yield None, mask

    def watch_server(self, fd: int) -> None:
        self._server_fd = fd
        self._epoll.register(fd, select.EPOLLIN)

    def forget_server(self) -> None:
        self._epoll.unregister(self._server_fd)
        self._server_fd = -1

    def watch(self, link: WorkerLink) -> None:
        """Wait for input, and for room to write if there is something to write."""
        if link.closed:
            return
        mask = select.EPOLLIN | (select.EPOLLOUT if link.has_outgoing else 0)
        if link.watched_mask == mask:
            return
        if link.watched_mask == 0:
            self._links[link.fileno()] = link
            self._epoll.register(link.fileno(), mask)
        else:
            self._epoll.modify(link.fileno(), mask)
        link.watched_mask = mask

    def forget(self, link: WorkerLink) -> None:
        if link.watched_mask:
            self._epoll.unregister(link.fileno())
            del self._links[link.fileno()]
            link.watched_mask = 0

    def close(self) -> None:
        self._epoll.close()
        os.close(self._wakeup_fd)
