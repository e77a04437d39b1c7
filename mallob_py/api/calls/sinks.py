"""Where outcomes of calls go: futures of single calls, the results of a map."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from mallob_py.kit.calls.values import no_stop

_T = TypeVar("_T")
IN_A_FORK = "an executor cannot be used in a fork of the process that made it: make one there"


class CallProgress(NamedTuple):
    """The progress of calls: `done` of `total` (None: unknown)."""

    done: float
    total: float | None

    @property
    def share(self) -> float | None:
        """From 0 to 1."""
        return None if not self.total else min(1.0, self.done / self.total)


class Sink(Protocol):
    """Takes the outcome of each call of a group once."""

    def begin(self, calls: Sequence[int]) -> Sequence[int]:
        """These are about to be sent; those that are still wanted. Called by the hub's thread."""
        ...

    def deliver(self, calls: Sequence[int], is_ok: Sequence[bool], values: Sequence[Any]) -> None:
        """A value for each, or the exception. Called by a thread that delivers; may run the user's code."""
        ...

    def told(self, call: int, progress: CallProgress) -> None:
        """A call says how far it is."""
        ...


class CallFuture(Future[_T]):
    """The outcome of one call."""

    #: what the function has told by `mallob_py.report_progress`, else (0, None); (1, 1) at the end
    _progress = CallProgress(0, None)
    #: where it stands, once the hub has taken it in
    _place: tuple[FutureSink, int] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> _T:
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_process()
        return super().exception(timeout)

    def _check_process(self) -> None:
        if os.getpid() != self._process and not self.done():
            raise RuntimeError(IN_A_FORK)  # no outcome comes here

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
        return [call for call in calls if call in self._begun or self._begins(call)]

    def _begins(self, call: int) -> bool:
        future = self.futures[call]
        try:
            is_wanted = future is not None and future.set_running_or_notify_cancel()
        except Exception:  # somebody else has given it an outcome
            return False
        if is_wanted:
            self._begun.add(call)
        return is_wanted

    def deliver(self, calls: Sequence[int], is_ok: Sequence[bool], values: Sequence[Any]) -> None:
        for call, ok, value in zip(calls, is_ok, values, strict=True):
            future, self.futures[call] = self.futures[call], None
            if future is None:
                continue
            # Callbacks are the user's code, and somebody else may have given the future an outcome.
            with suppress(BaseException):
                if call not in self._begun:
                    if isinstance(value, CancelledError):
                        future.cancel()
                    if not future.set_running_or_notify_cancel():
                        continue
                self._begun.discard(call)
                if ok:
                    future.set_result(value)
                else:
                    future.set_exception(value)

    def told(self, call: int, progress: CallProgress) -> None:
        if (future := self.futures[call]) is not None:
            future._progress = progress


class _Outcomes:
    """The outcomes of a map, as they come; its sink."""

    def __init__(self, count: int, is_ordered: bool, is_collecting: bool, cancel: Callable[[], None]) -> None:
        self.count = count
        self.is_ordered = is_ordered
        self.is_collecting = is_collecting
        self.cancel = cancel
        self.values: list[Any] = [None] * count
        #: 0: not there; 1: a result; 2: an exception
        self.states = bytearray(count)
        #: calls whose outcomes have come and were not taken, if they are not taken in order
        self.arrived: deque[int] = deque()
        self.done = 0
        self.is_waited_for = False
        self.changed = threading.Condition()
        self.future: _AllResults[Any] | None = None

    def begin(self, calls: Sequence[int]) -> Sequence[int]:
        return calls

    def deliver(self, calls: Sequence[int], is_ok: Sequence[bool], values: Sequence[Any]) -> None:
        with self.changed:
            for call, ok, value in zip(calls, is_ok, values, strict=True):
                self.values[call] = value
                self.states[call] = 1 if ok else 2
            self.done += len(calls)
            if not self.is_ordered:
                self.arrived.extend(calls)
            if self.is_waited_for:
                self.changed.notify_all()
        if self.future is not None:
            self.settle_future()

    def told(self, call: int, progress: CallProgress) -> None:
        pass

    def settle_future(self) -> None:
        with self.changed:
            future = self.future
            assert future is not None
            if future.done():
                return
            failed = -1 if self.is_collecting else self.states.find(2)
            if failed < 0 and self.done < self.count:
                return
            values = list(self.values)
        # The user may cancel it at any time.
        if failed < 0:
            with suppress(InvalidStateError):
                future.set_result(values)
        elif self.done == self.count or not isinstance(values[failed], CancelledError):
            with suppress(InvalidStateError):
                future.set_exception(values[failed])
            self.cancel()


class _AllResults(Future[_T]):
    """All results of a map. Whoever cancels it cancels the map."""

    def __init__(self, cancel_map: Callable[[], None]) -> None:
        super().__init__()
        self._cancel_map = cancel_map

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            self._cancel_map()
        return is_cancelled


class MapResults(Iterator[_T]):
    """The results of a map: an iterator with a length, which is the number of calls.

    In the order of the calls, or (`ordered=False`) as they come. With `on_error="raise"` the first exception
    that is met ends the iteration; with "collect" it stands where the result would. An iteration that ends
    before its last result, by whatever, cancels what has not begun, and stops what has after a second.
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
        self._taken = 0
        self._has_begun = False
        self._count = count
        self._deadline_s = deadline_s
        self._process = os.getpid()
        #: takes the outcomes
        self.sink = _Outcomes(count, is_ordered, is_collecting, cancel)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<MapResults {self.sink.done} of {self._count} calls done>"

    def __iter__(self) -> MapResults[_T]:
        return self

    def __next__(self) -> _T:
        if self._taken == self._count:
            raise StopIteration
        self._has_begun = True
        sink = self.sink
        call = self._taken if sink.is_ordered else -1
        try:
            if not (sink.states[call] if sink.is_ordered else sink.arrived):
                self._wait(call)
            if not sink.is_ordered:
                call = sink.arrived.popleft()
            self._taken += 1
            value, sink.values[call] = sink.values[call], None
            if sink.states[call] == 2 and not sink.is_collecting:
                raise no_stop(value)
        except BaseException:
            self.close()
            raise
        return value  # type: ignore[no-any-return]

    def _wait(self, call: int) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(IN_A_FORK)
        sink = self.sink
        with sink.changed:
            sink.is_waited_for = True
            try:
                while not (sink.states[call] if sink.is_ordered else sink.arrived):
                    left_s = None if self._deadline_s is None else self._deadline_s - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        raise TimeoutError(f"{sink.done} of {self._count} calls were done in time")
                    sink.changed.wait(left_s)
            finally:
                sink.is_waited_for = False

    @property
    def progress(self) -> CallProgress:
        """Calls that are done, of all."""
        return CallProgress(self.sink.done, self._count)

    def cancel(self) -> None:
        """Begin no further call, stop those that run; what is not done ends with CancelledError."""
        if self.sink.done < self._count:
            self.sink.cancel()

    def close(self) -> None:
        """End the iteration, and cancel what is not done."""
        self._taken = self._count
        self.cancel()

    def __del__(self) -> None:
        # One that was never asked for a result lets its calls be done, as the standard library's.
        if self._has_begun and self._taken < self._count and os.getpid() == self._process:
            self.close()

    def future(self) -> Future[list[_T]]:
        """All results as one future, in the order of the calls: `await
        asyncio.wrap_future(results.future())`.

        Its exception is that of the first call, in their order, that has failed (unless they are collected).
        What is taken by iteration is not in it, so do one or the other.
        """
        sink = self.sink
        with sink.changed:
            if sink.future is None:
                sink.future = _AllResults(sink.cancel)
            future = sink.future
        sink.settle_future()
        return future


class LazyResults(Iterator[_T]):
    """The results of a map that reads its input as results are taken: at most so many calls are under way.

    How it ends is as of `MapResults`. Its length is not known.
    """

    def __init__(
        self,
        submit: Callable[[tuple[Any, ...]], Future[_T]],
        items: Iterator[tuple[Any, ...]],
        buffersize: int,
        *,
        is_ordered: bool,
        is_collecting: bool,
        deadline_s: float | None,
        abandon: Callable[[Sequence[Future[_T]]], None],
    ) -> None:
        self._has_begun = False
        #: calls whose results were not taken, in their order
        self._under_way: dict[Future[_T], None] = {}
        self._submit = submit
        self._items: Iterator[tuple[Any, ...]] | None = items
        self._is_collecting = is_collecting
        self._deadline_s = deadline_s
        self._abandon = abandon
        self._arrived: SimpleQueue[Future[_T]] | None = None if is_ordered else SimpleQueue()
        self._done = 0
        try:
            while len(self._under_way) < buffersize and self._add():
                pass
        except BaseException:
            self.close()
            raise

    def _add(self) -> bool:
        """Submit the next call, if there is one."""
        if self._items is None:
            return False
        for item in self._items:
            future = self._submit(item)
            self._under_way[future] = None
            if self._arrived is not None:
                future.add_done_callback(self._arrived.put)
            return True
        self._items = None
        return False

    def __repr__(self) -> str:
        return f"<LazyResults {self._done} calls done, {len(self._under_way)} under way>"

    def __iter__(self) -> LazyResults[_T]:
        return self

    def __next__(self) -> _T:
        if not self._under_way:
            raise StopIteration
        self._has_begun = True
        try:
            left_s = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
            try:
                future = (
                    next(iter(self._under_way)) if self._arrived is None else self._arrived.get(True, left_s)
                )
                error = future.exception(left_s)
            except (Empty, TimeoutError):
                raise TimeoutError(f"{self._done} calls were done in time") from None
            except CancelledError as cancelled:
                error = cancelled
            self._under_way.pop(future, None)
            self._done += 1
            if error is not None and not self._is_collecting:
                raise no_stop(error)
            self._add()
        except BaseException:
            self.close()
            raise
        return future.result() if error is None else error  # type: ignore[return-value]

    @property
    def progress(self) -> CallProgress:
        """Calls whose results were taken."""
        return CallProgress(self._done, None)

    def cancel(self) -> None:
        """Begin no further call, stop those that run; what is not done ends with CancelledError."""
        self._items = None
        self._abandon(tuple(self._under_way))

    def close(self) -> None:
        """End the iteration, and cancel what is not done."""
        self.cancel()
        self._under_way.clear()

    def __del__(self) -> None:
        if self._has_begun and self._under_way:
            self.close()
