"""Calls that a running call submits: done by a thread of this process, and by other idle workers.

Each executor that is created within a call is a pool with one thread, so that a call that waits for its calls
always continues, however deep calls are nested. The pools offer waiting calls to the outer executor. When
workers are idle, the outer executor fetches some of these calls, and sends back their outcomes. If a worker
is lost, the outer executor has other workers do its calls; this process just waits longer for the outcomes.

The function and the arguments are pickled when a call is submitted, and its result when the call returns, on
any worker. A call that cannot be pickled is done in this process with the objects themselves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from mallob_py.kit.calls import messages, values
from mallob_py.kit.calls.delivering import Deliverer
from mallob_py.kit.calls.wire import Buffer


class _Entry(NamedTuple):
    """A submitted call. `pickled` is the pickled function, or None if no other process can do the call."""

    function: Callable[..., Any]
    pickled: values.Pickled | None
    #: args and kwargs, or a snapshot of both
    call: Any
    future: Future[Any]


class Pools:
    """All pools of a worker's process. Several threads use this object."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._mutex = threading.Lock()
        self.deliverer = Deliverer("mallob-py-inner-results")
        self._pools: list[_Pool] = []
        #: group -> calls that were given to other workers
        self._away: dict[int, list[_Entry]] = {}
        self._groups = 0
        self._offered = 0

    def new(self) -> _Pool:
        pool = _Pool(self)
        with self._mutex:
            self._pools = [each for each in self._pools if not each.is_over]
            self._pools.append(pool)
        return pool

    def offer(self, is_news: bool = False) -> None:
        """Offer the waiting calls to other workers if their number has doubled or halved, or if `is_news`."""
        with self._mutex:
            count = sum(len(pool.waiting) for pool in self._pools)
            if not is_news and not (count >= 2 * self._offered or count * 2 < self._offered):
                return
            if count == self._offered and not is_news:
                return
            self._offered = count
        self._send(messages.Offered(count))

    def give(self, count: int) -> None:
        """Give at most `count` calls, all of one function, to other workers."""
        entries: list[_Entry] = []
        with self._mutex:
            for pool in self._pools:
                while len(entries) < count and (entry := pool.take_last(entries)) is not None:
                    entries.append(entry)
                if entries:
                    break
        entries = [each for each in entries if each.future.set_running_or_notify_cancel()]
        if entries and (function := entries[0].pickled) is not None:
            self._give(function, entries)
        self.offer(is_news=True)

    def _give(self, function: values.Pickled, entries: list[_Entry]) -> None:
        buffers = values.packed(entry.call for entry in entries)
        with self._mutex:
            self._groups += 1
            group = self._groups
            self._away[group] = entries
        count = len(function.buffers)
        message = messages.Inner(group, len(entries), count, function.is_kept)
        self._send(message, [*function.buffers, *buffers])

    def take_results(self, group: int, is_ok: Sequence[bool], buffers: Sequence[Buffer]) -> None:
        with self._mutex:
            entries = self._away.pop(group, [])
        for entry, ok, value in zip(entries, is_ok, values.load(buffers), strict=True):
            self.deliverer.put(partial(_deliver, entry, ok, value))


class _Pool:
    """The calls of one executor that was created within a call (see `kit.calls.here.InnerPool`)."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self.waiting: deque[_Entry] = deque()
        self._news = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        return self._is_closed and not self.waiting

    @property
    def is_own_thread(self) -> bool:
        return self._pools.deliverer.is_own_thread

    def submit(
        self,
        function: Callable[..., Any],
        known: values.Pickled | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Future[Any]:
        future: Future[Any] = Future()
        entry = _Entry(function, None, (args, kwargs), future)
        if known is not None:
            with suppress(values.CannotSend):
                entry = _Entry(function, known, values.snapshot_of_call(args, kwargs), future)
        self.waiting.append(entry)
        self._news.release()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mallob-py-inner", daemon=True)
            self._thread.start()
        self._pools.offer()
        return future

    def close(self) -> None:
        self._is_closed = True
        self._news.release()

    def take_last(self, others: Sequence[_Entry]) -> _Entry | None:
        """Remove and return the last waiting call if it may be given away and has `others`' function."""
        try:
            entry = self.waiting.pop()
        except IndexError:
            return None
        if entry.pickled is None or (others and entry.pickled != others[0].pickled):
            self.waiting.append(entry)
            self._news.release()
            return None
        return entry

    def _run(self) -> None:
        while True:
            self._news.acquire()
            try:
                entry = self.waiting.popleft()
            except IndexError:
                if self._is_closed:
                    return
                continue
            if entry.future.set_running_or_notify_cancel():
                self._pools.deliverer.put(partial(_deliver, entry, *_outcome(entry)))


def _outcome(entry: _Entry) -> tuple[bool, Any]:
    """Do a call. Return True and a snapshot of its result, or False and the exception that it raised."""
    try:
        function, known = entry.function, entry.pickled
        if known is not None and not known.is_kept:
            function = values.load(values.copied(known.buffers))
        args, kwargs = values.restored(entry.call)
        value = function(*args, **kwargs)
    except BaseException as error:
        return False, error
    try:
        return True, values.snapshot(value)
    except values.CannotSend:
        return True, _Itself(value)


class _Itself(NamedTuple):
    """A result that cannot be pickled."""

    value: Any


def _deliver(entry: _Entry, is_ok: bool, value: Any) -> None:
    """Set the outcome of a call's future. If not `is_ok`, `value` is an exception, as an object or dumped."""
    if is_ok:
        try:
            result = value.value if isinstance(value, _Itself) else values.restored(value)
        except BaseException as error:
            is_ok, value = False, error
        else:
            entry.future.set_result(result)
            return
    if not isinstance(value, BaseException):
        assert entry.pickled is not None
        value = values.load_error(value, f"a call of {entry.pickled.name} within a call")
    entry.future.set_exception(values.no_stop(value))
