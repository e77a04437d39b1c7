"""The bells that wake a rank's loop: messages, workers, signals, the end of another rank, the desk and
orders.

`Parking` waits for the doorbell and all else that can bring news, whatever the numbers of the descriptors,
and to the microsecond: `epoll.poll` rounds a time-out up to whole milliseconds, and a rank often parks for
tenths of one; `select` does not round, but knows no descriptor above 1023, and a rank with many workers has
thousands. So the descriptors are in an epoll object. That is a descriptor itself, made early and of a low
number, and `select` waits for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mallob_py.runtime.world.failure_detector import LocalPeers

if TYPE_CHECKING:
    from mallob_py.runtime.workers.pool import WorkerPool
    from mallob_py.runtime.world.carrier import Carrier


class StopBell:
    """Signals that ask for the end, as a descriptor that the loop can wait for."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        #: the first that has come
        self.first: int | None = None
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for each in signals:
            signal.signal(each, self._ring)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)  # a fork may have been told to hold them back

    def _ring(self, number: int, _frame: object) -> None:
        if self.first is None:
            self.first = number
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"!")

    def fileno(self) -> int:
        return self._read_fd


#: longer waits may take up to a millisecond more
_FINE_S = 0.0025


class Parking:
    """Waits for all descriptors that can bring news, whatever their numbers."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def watch(self, descriptor: int) -> int:
        """Wait for this one, too, which stays open; returns it."""
        self._epoll.register(descriptor, select.EPOLLIN)
        return descriptor

    def forget(self, descriptor: int) -> None:
        """Wait for this one no more."""
        self._epoll.unregister(descriptor)

    def park(self, timeout_s: float) -> set[int]:
        """Wait for descriptors, and return the readable ones, at the latest after that time.

        A short wait takes a second system call: `poll` counts in milliseconds, and rounds up.
        """
        if 0.0 < timeout_s < _FINE_S:
            if not select.select((self._epoll,), (), (), timeout_s)[0]:
                return set()
            timeout_s = 0.0
        return {descriptor for descriptor, _ in self._epoll.poll(timeout_s)}


class Bells:
    """The one place where a rank waits. `rung`: which of the other descriptors were readable the last time.

    Attributes, since a loop looks at them in each turn.
    """

    def __init__(
        self, transport: Carrier, pool: WorkerPool, stop_bell: StopBell, peers: LocalPeers | None = None
    ) -> None:
        self.rung: set[int] = set()
        self._stop_bell = stop_bell
        self._parking = Parking()
        #: what is waited for by a rank that has halted
        self._parking_for_change = Parking()
        self.message = transport.descriptors()[0]
        self.signal = stop_bell.fileno()
        self.peers = None if peers is None else peers.fileno()
        of_change = [*transport.descriptors(), self.signal]
        if self.peers is not None:
            of_change.append(self.peers)
        for descriptor in of_change:
            self._parking.watch(self._parking_for_change.watch(descriptor))
        self.workers = self._parking.watch(pool.fileno())
        self.desk: int | None = None
        self.orders: int | None = None

    def watch_desk(self, descriptor: int | None) -> None:
        """From now on the desk wakes the loop."""
        self.desk = None if descriptor is None else self._parking.watch(descriptor)

    def watch_orders(self, descriptor: int | None) -> None:
        """From now on orders wake the loop."""
        self.orders = None if descriptor is None else self._parking.watch(descriptor)

    def wind_up(self) -> None:
        """Neither signals nor the desk nor orders are looked after any more."""
        for descriptor in (self.signal, self.desk, self.orders):
            if descriptor is not None:
                self._parking.forget(descriptor)

    def park(self, timeout_s: float) -> None:
        """Wait for anything."""
        self.rung = self._parking.park(timeout_s)

    def park_for_change(self, timeout_s: float) -> None:
        """Wait for what a rank hears of that has halted."""
        self.rung = self._parking_for_change.park(timeout_s)

    @property
    def stopped_by(self) -> int | None:
        """The signal that has asked this rank to end, if one has."""
        return self._stop_bell.first
