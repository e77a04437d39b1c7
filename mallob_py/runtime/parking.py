"""Waiting for any of a rank's descriptors, whatever their numbers, and to the microsecond.

`epoll.poll` rounds a time-out up to whole milliseconds, and a rank often parks for tenths of one; `select`
does not round, but knows no descriptor above 1023, and a rank with many workers has thousands. So the
descriptors are in an epoll object. That is a descriptor itself, made early and of a low number, and `select`
waits for it.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterable


class Parking:
    """Waits for these descriptors, and for one more that may change."""

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._epoll = select.epoll()
        for each in descriptors:
            self._epoll.register(each, select.EPOLLIN)
        self._further: int | None = None

    def park(self, further: int | None, timeout_s: float) -> set[int]:
        """Those that are readable, at the latest after that time; `further` is one more to wait for."""
        if further != self._further:
            self._forget_further()
        if further is not None:
            self._watch_further(further)
        if not select.select((self._epoll,), (), (), timeout_s)[0]:
            return set()
        return {descriptor for descriptor, _ in self._epoll.poll(0)}

    def _watch_further(self, descriptor: int) -> None:
        # Each time: it may have been closed, and its number be that of another file by now.
        try:
            self._epoll.modify(descriptor, select.EPOLLIN)
        except FileNotFoundError:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._further = descriptor

    def _forget_further(self) -> None:
        if self._further is not None:
            with contextlib.suppress(OSError):  # closed, and so forgotten already
                self._epoll.unregister(self._further)
            self._further = None
