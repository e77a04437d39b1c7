"""The bells that wake a rank's loop: messages, workers, signals, another rank's end, new jobs, orders.

`Parking` waits for any number of descriptors, such as the doorbell, with a time-out exact to the microsecond.
`epoll.poll` rounds its time-out up to whole milliseconds, although a rank often parks for 0.1 ms;
`select` does not round, but takes no descriptor above 1023, and a rank with many workers has thousands. So
the descriptors are in an epoll object, and `select` waits for this object, which is made early, so that its
descriptor is low.
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
    """The signals that order this rank to end, as a descriptor that wakes the loop."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        #: the number of the first stop signal; None: no stop signal has come
        self.first: int | None = None
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for each in signals:
            signal.signal(each, self._ring)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)  # a fork may inherit a blocked signal

    def _ring(self, number: int, _frame: object) -> None:
        if self.first is None:
            self.first = number
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"!")

    def fileno(self) -> int:
        return self._read_fd


#: time-out below which rounding up to whole milliseconds would cost too much
_FINE_S = 0.0025


class Parking:
    """A set of descriptors, possibly thousands, and the wait until any of them is readable."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def watch(self, descriptor: int) -> int:
        """Add a descriptor to wait for, and return the descriptor; the caller must keep it open."""
        self._epoll.register(descriptor, select.EPOLLIN)
        return descriptor

    def forget(self, descriptor: int) -> None:
        """Stop waiting for a descriptor."""
        self._epoll.unregister(descriptor)

    def park(self, timeout_s: float) -> set[int]:
        """Wait until a descriptor is readable, at most `timeout_s`; return the readable descriptors.

        A short wait takes a second system call, since `poll` rounds up to milliseconds.
        """
        if 0.0 < timeout_s < _FINE_S:
            if not select.select((self._epoll,), (), (), timeout_s)[0]:
                return set()
            timeout_s = 0.0
        return {descriptor for descriptor, _ in self._epoll.poll(timeout_s)}


class Bells:
    """The one place where a rank waits. `rung`: the descriptors that were readable after the last wait.

    The bells are attributes, not methods, since the loop reads them in each turn.
    """

    def __init__(
        self, transport: Carrier, pool: WorkerPool, stop_bell: StopBell, peers: LocalPeers | None = None
    ) -> None:
        self.rung: set[int] = set()
        self._stop_bell = stop_bell
        self._parking = Parking()
        #: the descriptors that wake a halted rank: for messages, signals and the end of other ranks
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
        """Let jobs that come in at this rank's desk wake the loop."""
        self.desk = None if descriptor is None else self._parking.watch(descriptor)

    def watch_orders(self, descriptor: int | None) -> None:
        """Let users' orders wake the loop."""
        self.orders = None if descriptor is None else self._parking.watch(descriptor)

    def wind_up(self) -> None:
        """Ignore signals, new jobs and users' orders from now on."""
        for descriptor in (self.signal, self.desk, self.orders):
            if descriptor is not None:
                self._parking.forget(descriptor)

    def park(self, timeout_s: float) -> None:
        """Wait for any bell, at most `timeout_s`."""
        self.rung = self._parking.park(timeout_s)

    def park_for_change(self, timeout_s: float) -> None:
        """Wait for a bell that a halted rank heeds, at most `timeout_s`."""
        self.rung = self._parking_for_change.park(timeout_s)

    @property
    def stopped_by(self) -> int | None:
        """Return the number of the signal that ordered this rank to end; None: no signal did."""
        return self._stop_bell.first
