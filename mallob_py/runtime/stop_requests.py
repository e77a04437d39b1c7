"""Signals that ask a process which stands in for a world to end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequests:
    """Catches the signals while it is a context; in between they wait to be passed on."""

    def __init__(self) -> None:
        #: the first signal, and whether the user has insisted since
        self.first: int | None = None
        self.insisted = False

    def __enter__(self) -> StopRequests:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous = {each: signal.signal(each, self._on_signal) for each in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def wait(self, timeout_s: float, *descriptors: int) -> list[int]:
        """Until a further signal comes, it is time, or descriptors are readable, which are returned."""
        poll = select.poll()
        for each in (self._read_fd, *descriptors):
            poll.register(each, select.POLLIN)
        readable = [descriptor for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)]
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 64)
        return [each for each in readable if each != self._read_fd]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.first is None:
            self.first = number
        elif number == signal.SIGINT:
            self.insisted = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"!")
