"""Where outcomes of calls go: futures of single calls, the results of a map."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple, Protocol, TypeVar

_T = TypeVar("_T")


class CallProgress(NamedTuple):
    """The progress of calls: `done` of `total` (None: unknown)."""

    done: float
    total: float | None

    @property
    def share(self) -> float | None:
        """From 0 to 1."""
        return None if not self.total else min(1.0, self.done / self.total)


class Sink(Protocol):
    """Takes the outcome of each call of a group once. Called by the hub's thread."""

    def begin(self, calls: Sequence[int]) -> Sequence[int]:
        """These are about to be sent; those that are still wanted."""
        ...

    def deliver(self, calls: Sequence[int], is_ok: Sequence[bool], values: Sequence[Any]) -> None:
        """A value for each, or the exception."""
        ...

    def told(self, call: int, progress: CallProgress) -> None:
        """A call says how far it is."""
        ...


class CallFuture(Future[_T]):
    """The outcome of one call."""

    #: what the function has told by `mallob_py.report_progress`, else (0, None); (1, 1) at the end
    _progress = CallProgress(0, None)

    @property
    def progress(self) -> CallProgress:
        """Return how far the call is, as far as its function tells that (`mallob_py.report_progress`)."""
        if self.done() and self._progress.total is None:
            return CallProgress(1, 1)
        return self._progress


class FutureSink:
    """Futures of calls that were submitted one by one."""

    def __init__(self) -> None:
        #: by call; None: it has its outcome
        self.futures: list[CallFuture[Any] | None] = []
        self._begun: set[int] = set()

    def begin(self, calls: Sequence[int]) -> Sequence[int]:
        wanted = []
        for call in calls:
            if call in self._begun:
                wanted.append(call)
            elif (future := self.futures[call]) is not None and future.set_running_or_notify_cancel():
                self._begun.add(call)
                wanted.append(call)
        return wanted

    def deliver(self, calls: Sequence[int], is_ok: Sequence[bool], values: Sequence[Any]) -> None:
        for call, ok, value in zip(calls, is_ok, values, strict=True):
            future, self.futures[call] = self.futures[call], None
            if future is None:
                continue
            if call not in self._begun and not future.set_running_or_notify_cancel():
                continue
            self._begun.discard(call)
            if ok:
                future.set_result(value)
            else:
                future.set_exception(value)

    def told(self, call: int, progress: CallProgress) -> None:
        if (future := self.futures[call]) is not None:
            future._progress = progress


class MapResults(Iterator[_T]):
    """The results of a map: an iterator with a length, which is the number of calls.

    In the order of the calls, or (`ordered=False`) as they come. With `on_error="raise"` the first exception
    that is met ends the iteration and cancels what has not begun; with "collect" it stands where the result
    would.
    """

    def __init__(
        self,
        count: int,
        *,
        is_ordered: bool,
        is_collecting: bool,
        deadline_s: float | None,
        cancel: Callable[[], None],
    ) -> None:
        self._count = count
        self._is_ordered = is_ordered
        self._is_collecting = is_collecting
        self._deadline_s = deadline_s
        self._cancel = cancel
        self._values: list[Any] = [None] * count
        #: 0: not there; 1: a result; 2: an exception
        self._states = bytearray(count)
        #: calls whose outcomes have come and were not taken, if they are not taken in order
        self._arrived: deque[int] = deque()
        self._done = 0
        self._taken = 0
        self._is_waiting = False
        self._changed = threading.Condition()
        self._future: Future[list[_T]] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> MapResults[_T]:
        return self

    def __next__(self) -> _T:
        if self._taken == self._count:
            raise StopIteration
        call = self._taken if self._is_ordered else -1
        if not (self._states[call] if self._is_ordered else self._arrived):
            self._wait(call)
        if not self._is_ordered:
            call = self._arrived.popleft()
        self._taken += 1
        value, self._values[call] = self._values[call], None
        if self._states[call] == 2 and not self._is_collecting:
            self._taken = self._count
            self._cancel()
            raise value
        return value  # type: ignore[no-any-return]

    def _wait(self, call: int) -> None:
        with self._changed:
            self._is_waiting = True
            try:
                while not (self._states[call] if self._is_ordered else self._arrived):
                    left_s = None if self._deadline_s is None else self._deadline_s - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        self._cancel()
                        raise TimeoutError(f"{self._done} of {self._count} calls were done in time")
                    self._changed.wait(left_s)
            finally:
                self._is_waiting = False

    @property
    def progress(self) -> CallProgress:
        """Calls that are done, of all."""
        return CallProgress(self._done, self._count)

    def cancel(self) -> None:
        """Have no further call begun; what is not done ends with CancelledError."""
        self._cancel()

    close = cancel

    def future(self) -> Future[list[_T]]:
        """All results as one future, in the order of the calls: `await
        asyncio.wrap_future(results.future())`.

        Its exception is that of the first call, in their order, that has failed (unless they are collected).
        What is taken by iteration is not in it, so do one or the other.
        """
        with self._changed:
            if self._future is None:
                self._future = Future()
                self._future.set_running_or_notify_cancel()
            future = self._future
        self._settle_future()
        return future

    # --- of a sink ------------------------------------------------------------------------------

    def begin(self, calls: Sequence[int]) -> Sequence[int]:
        return calls

    def deliver(self, calls: Sequence[int], is_ok: Sequence[bool], values: Sequence[Any]) -> None:
        with self._changed:
            for call, ok, value in zip(calls, is_ok, values, strict=True):
                self._values[call] = value
                self._states[call] = 1 if ok else 2
            self._done += len(calls)
            if not self._is_ordered:
                self._arrived.extend(calls)
            if self._is_waiting:
                self._changed.notify_all()
        if self._future is not None:
            self._settle_future()

    def told(self, call: int, progress: CallProgress) -> None:
        pass

    def _settle_future(self) -> None:
        with self._changed:
            future = self._future
            assert future is not None
            if future.done():
                return
            failed = -1 if self._is_collecting else self._states.find(2)
            if failed < 0 and self._done < self._count:
                return
        if failed >= 0 and (
            self._done == self._count or not isinstance(self._values[failed], CancelledError)
        ):
            future.set_exception(self._values[failed])
            self._cancel()
        elif failed < 0:
            future.set_result(list(self._values))
