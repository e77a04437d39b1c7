"""Futures that can be cancelled until they have an outcome.

A standard future cannot be cancelled once it is running. The futures of this module stay pending until they
have an outcome, so that cancelling them can end running work.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")
IN_A_FORK = (
    "executors, clients and their futures cannot be used in a fork of the process that made them:"
    " make new ones in the fork"
)


class SettledOnce(Future[_T]):
    """A future that several threads may cancel and settle; the first thread wins."""

    def __init__(self) -> None:
        super().__init__()
        self._mutex = threading.Lock()
        self._is_decided = False
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> _T:
        """Wait for the result; in a fork, raise RuntimeError if the future has no outcome."""
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the exception or None; in a fork, raise RuntimeError if the future has no outcome."""
        self._check_process()
        return super().exception(timeout)

    def _check_process(self) -> None:
        if os.getpid() != self._process and not self.done():
            raise RuntimeError(IN_A_FORK)  # outcomes reach the parent process only

    def cancel(self) -> bool:
        """Cancel the future unless it has an outcome."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self.wants_outcome()  # notifies callers that wait for several futures
        return is_cancelled

    def wants_outcome(self) -> bool:
        """Tell whether the future must get its result or exception now; true only once."""
        with self._mutex:
            if self._is_decided:
                return False
            self._is_decided = True
            return self.set_running_or_notify_cancel()


def awaited(future: Future[_T]) -> _T:
    """Wait for a future that no other code uses; cancel the future if the wait fails."""
    return all_awaited(future)[0]


def all_awaited(*futures: Future[_T]) -> list[_T]:
    """Wait for futures that no other code uses; cancel all futures if the wait or a future fails."""
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise
