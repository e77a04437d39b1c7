"""Shared objects in a worker: opened if another process of the host has the object, else received."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from mallob_py.kit.calls import messages, sharing
from mallob_py.kit.calls.wire import Buffer


class Fetcher:
    """Fetcher of shared objects for calls: `fetch` waits in any thread until another thread calls `take`."""

    def __init__(self, send: Callable[[messages.FromWorker], None], client_user: int) -> None:
        self._send = send
        #: ids of the users whose regions may be opened
        self._users = {os.geteuid(), client_user}
        self._mutex = threading.Lock()
        #: random id (mark) of an object that is being fetched -> the object's region
        self._wanted: dict[str, Future[sharing.Region]] = {}

    def fetch(self, mark: str) -> sharing.Region:
        """Return the region of an object. Raises LookupError, OSError."""
        with self._mutex:
            future = self._wanted.get(mark)
            if future is None:
                future = self._wanted[mark] = Future()
                try:
                    self._send(messages.Fetch(mark, False))
                except BaseException:  # the call is interrupted
                    del self._wanted[mark]
                    raise
        return future.result()

    def take(self, message: messages.Found, buffers: Sequence[Buffer]) -> None:
        """Accept the executor's answer to a fetch."""
        mark = message.mark
        try:
            if message.pid:
                region = sharing.opened(message.pid, message.fd, mark, self._users)
            elif buffers:
                region = sharing.received(buffers[0], mark)
            else:
                region = sharing.fetch_nothing(mark)
        except Exception as error:
            if message.pid:
                self._send(messages.Fetch(mark, True))
            else:
                self._future(mark).set_exception(error)
            return
        self._future(mark).set_result(region)
        self._send(messages.Kept(mark, region.fd))

    def _future(self, mark: str) -> Future[sharing.Region]:
        with self._mutex:
            return self._wanted.pop(mark, Future())
