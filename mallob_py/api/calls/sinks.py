"""Sinks of outcomes: futures of single calls, the results of a map."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from mallob_py.api.settled import IN_A_FORK, SettledOnce
from mallob_py.api.shown import BAR_PERIOD_S, NO_BAR, Bar
from mallob_py.kit.calls.values import no_stop

_T = TypeVar("_T")


class CallProgress(NamedTuple):
    """The progress of calls: `done` of `total` (None: unknown)."""

    done: float
    total: float | None

    @property
    def share(self) -> float | None:
        """The done part of the total, from 0 to 1; None: unknown."""
        return None if not self.total else min(1.0, self.done / self.total)


class Sink(Protocol):
    """Takes one outcome of each call of a group."""

    def begin(self, calls: Sequence[int]) -> Sequence[int]:
        """Return which of the calls about to be sent are still wanted. Called in the hub's thread."""
        ...

    def deliver(self, calls: Sequence[int], is_ok: Sequence[bool], values: Sequence[Any]) -> None:
        """Take each call's value or exception. Called in a delivering thread; may run the user's code."""
        ...

    def told(self, call: int, progress: CallProgress) -> None:
        """Take a call's report of its progress."""
        ...


class CallFuture(SettledOnce[_T]):
    """The future outcome of one call; cancelling the future ends the call, also if the call is running."""

    #: the call's last report by `mallob_py.report_progress`; (0, None): no report yet
    _progress = CallProgress(0, None)
    #: sink and number of the call, from when the hub takes the call in until the call has an outcome
    _place: tuple[FutureSink, int] | None = None
    #: whether the call has been sent to a worker
    _has_begun = False
    #: the callbacks, of the base class
    _done_callbacks: list[Callable[[Future[_T]], object]]

    def __repr__(self) -> str:
        state = "running" if self.running() else self._state.partition("_")[0].lower()
        return f"<CallFuture {state}>"

    def running(self) -> bool:
        return self._has_begun and not self.done()

    def cancel(self) -> bool:
        """End the call unless it has an outcome; a worker that runs the call is stopped after a second."""
        is_cancelled = super().cancel()
        if is_cancelled and (place := self._place) is not None:
            self._place = None
            place[0].abandon(*place)
        return is_cancelled

    @property
    def progress(self) -> CallProgress:
        """The call's last report by `mallob_py.report_progress`; (1, 1) for an ended call without a total."""
        if self.done() and self._progress.total is None:
            return CallProgress(1, 1)
        return self._progress


class FutureSink:
    """A sink of separately submitted calls: their futures."""

    def __init__(
        self, abandon: Callable[[FutureSink, int], None], put: Callable[[Callable[[], object]], None]
    ) -> None:
        """Create a sink; `abandon` ends a call, and may be called by any thread; `put` adds a delivery."""
        self.abandon = abandon
        self._put = put
        #: future of each call, by the call's number; None: the call has an outcome
        self.futures: list[CallFuture[Any] | None] = []

    def add(self, future: CallFuture[Any]) -> None:
        future._place = self, len(self.futures)
        self.futures.append(future)

    def begin(self, calls: Sequence[int]) -> Sequence[int]:
        return [call for call in calls if self._begins(call)]

    def _begins(self, call: int) -> bool:
        future = self.futures[call]
        if future is None or future.done():  # the future is cancelled, or other code has set its outcome
            return False
        future._has_begun = True
        return True

    def deliver(self, calls: Sequence[int], is_ok: Sequence[bool], values: Sequence[Any]) -> None:
        for call, ok, value in zip(calls, is_ok, values, strict=True):
            future, self.futures[call] = self.futures[call], None
            if future is None:
                continue
            future._place = None
            # A callback may wait for further calls of this batch, so it runs in a delivery of its own.
            if future._done_callbacks or isinstance(value, CancelledError):
                self._put(partial(_settle, future, ok, value))
                continue
            with suppress(InvalidStateError):  # other code has set the future's outcome
                if future.wants_outcome():
                    self._set(future, ok, value)

    def _set(self, future: CallFuture[Any], ok: bool, value: Any) -> None:
        """Set a future's outcome; if the future has callbacks meanwhile, in a delivery of its own."""
        with future._condition:  # nobody can add a callback in between
            if not future._done_callbacks:
                _set_outcome(future, ok, value)
                return
        self._put(partial(_set_outcome, future, ok, value))

    def told(self, call: int, progress: CallProgress) -> None:
        if (future := self.futures[call]) is not None:
            future._progress = progress


def _settle(future: CallFuture[Any], ok: bool, value: Any) -> None:
    """Set or cancel a future. This runs the future's callbacks, which may raise any exception."""
    if isinstance(value, CancelledError):
        future.cancel()
    elif future.wants_outcome():
        _set_outcome(future, ok, value)


def _set_outcome(future: CallFuture[Any], ok: bool, value: Any) -> None:
    if ok:
        future.set_result(value)
    else:
        future.set_exception(value)


class _Outcomes:
    """The sink of a map: keeps the outcomes that have arrived."""

    def __init__(self, count: int, is_ordered: bool, is_collecting: bool, cancel: Callable[[], None]) -> None:
        self.count = count
        self.is_ordered = is_ordered
        self.is_collecting = is_collecting
        self.cancel = cancel
        self.values: list[Any] = [None] * count
        #: state of each call: 0: no outcome; 1: a result; 2: an exception
        self.states = bytearray(count)
        #: calls whose outcomes have arrived and were not taken; used by unordered maps only
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
        # The user may cancel the future at any time.
        if failed < 0:
            if future.wants_outcome():
                future.set_result(values)
        elif self.done == self.count or not isinstance(values[failed], CancelledError):
            if future.wants_outcome():
                future.set_exception(values[failed])
            self.cancel()


class _AllResults(SettledOnce[_T]):
    """The future of all results of a map; cancelling it cancels the map."""

    def __init__(self, cancel_map: Callable[[], None]) -> None:
        super().__init__()
        self._cancel_map = cancel_map

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            self._cancel_map()
        return is_cancelled


class MapResults(Iterator[_T]):
    """The results of a map: an iterator whose length is the number of calls.

    Results come in the order of the calls or, with `ordered=False`, as they arrive. With `on_error="raise"`
    the first exception ends the iteration; with "collect", exceptions are yielded instead of the missing
    results. An iteration that ends early cancels the waiting calls, and stops running ones after a second.
    """

    def __init__(
        self,
        count: int,
        *,
        is_ordered: bool,
        is_collecting: bool,
        deadline_s: float | None,
        cancel: Callable[[], None],
        bar: Bar,
    ) -> None:
        self._taken = 0
        self._has_begun = False
        self._count = count
        self._deadline_s = deadline_s
        self._bar = bar
        self._process = os.getpid()
        #: the sink of the map's outcomes
        self.sink = _Outcomes(count, is_ordered, is_collecting, cancel)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<MapResults {self.sink.done} of {self._count} calls done>"

    def __iter__(self) -> MapResults[_T]:
        return self

    def __next__(self) -> _T:
        if self._taken == self._count:
            self._bar.close()
            raise StopIteration
        self._has_begun = True
        sink = self.sink
        self._show()
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
                    if self._bar is not NO_BAR:
                        left_s = min(left_s or BAR_PERIOD_S, BAR_PERIOD_S)
                    sink.changed.wait(left_s)
                    self._show()
            finally:
                sink.is_waited_for = False

    def _show(self) -> None:
        """Redraw the progress bar; called in the thread of the iteration."""
        if self._bar is not NO_BAR:
            self._bar.update(self.sink.done - self._bar.n)

    @property
    def progress(self) -> CallProgress:
        """The number of calls done, and the number of all calls."""
        return CallProgress(self.sink.done, self._count)

    def cancel(self) -> None:
        """Begin no further call and stop the running ones; open calls end with CancelledError."""
        if self.sink.done < self._count:
            self.sink.cancel()

    def close(self) -> None:
        """End the iteration, and cancel the open calls."""
        self._taken = self._count
        self.cancel()
        self._bar.close()

    def __del__(self) -> None:
        # If no result was ever asked for, the calls go on, as in the standard library.
        if self._has_begun and self._taken < self._count and os.getpid() == self._process:
            self.close()

    def future(self) -> Future[list[_T]]:
        """Return one future of all results, in the order of the calls.

        Unless exceptions are collected, the future's exception is that of the first failed call. The future
        has None for results that an iteration has taken, so use either the future or the iteration.
        """
        sink = self.sink
        with sink.changed:
            if sink.future is None:
                sink.future = _AllResults(sink.cancel)
            future = sink.future
        sink.settle_future()
        return future


class LazyResults(Iterator[_T]):
    """The results of a map that reads input only as results are taken: `buffersize` calls are under way.

    An iteration ends like that of `MapResults`; the number of results is unknown.
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
        bar: Bar,
    ) -> None:
        self._has_begun = False
        self._bar = bar
        #: futures of calls whose results were not taken, in the order of the calls
        self._under_way: dict[Future[_T], None] = {}
        self._submit = submit
        self._items: Iterator[tuple[Any, ...]] | None = items
        self._is_collecting = is_collecting
        self._deadline_s = deadline_s
        self._arrived: SimpleQueue[Future[_T]] | None = None if is_ordered else SimpleQueue()
        self._done = 0
        try:
            while len(self._under_way) < buffersize and self._add():
                pass
        except BaseException:
            self.close()
            raise

    def _add(self) -> bool:
        """Submit the next call, if the input has one."""
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
            self._bar.close()
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
            self._bar.update(1)
            if error is not None and not self._is_collecting:
                raise no_stop(error)
            self._add()
        except BaseException:
            self.close()
            raise
        return future.result() if error is None else error  # type: ignore[return-value]

    @property
    def progress(self) -> CallProgress:
        """The number of calls whose results were taken."""
        return CallProgress(self._done, None)

    def cancel(self) -> None:
        """Begin no further call and stop the running ones; open calls end with CancelledError."""
        self._items = None
        for future in tuple(self._under_way):
            future.cancel()

    def close(self) -> None:
        """End the iteration, and cancel the open calls."""
        self.cancel()
        self._under_way.clear()
        self._bar.close()

    def __del__(self) -> None:
        if self._has_begun and self._under_way:
            self.close()
