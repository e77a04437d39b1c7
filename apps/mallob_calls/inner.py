"""Calls that a running call wants: done by a thread of this process, and by other workers that have nothing
to do.

Each executor that is made within a call is a pool with one thread, so that a call that waits for its calls
always gets on, however deep that goes. Calls that have not begun are offered to the executor outside; it asks
for some when workers are idle, and brings back what they have come to. What an outer worker loses is its own
matter: here the calls have just not been answered yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from mallob_py.kit.calls import messages
from mallob_py.kit.calls.values import CannotSend, dump, load, load_error, name_of
from mallob_py.kit.calls.wire import Buffer

#: calls of which this many are waiting are told anew when their number has doubled
_OFFER_FIRST = 1

_Entry = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], "Future[Any]"]


class Pools:
    """All of a worker's process; used by several threads."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._mutex = threading.Lock()
        self._pools: list[_Pool] = []
        #: calls given away, by group
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
        """Tell how many calls others could do, if that is another order of magnitude."""
        with self._mutex:
            count = sum(len(pool.waiting) for pool in self._pools)
            if not is_news and not (count >= 2 * self._offered or count * 2 < self._offered):
                return
            if count == self._offered and not is_news:
                return
            self._offered = count
        self._send(messages.Offered(count))

    def give(self, count: int) -> None:
        """Let others have up to so many calls of one function."""
        entries: list[_Entry] = []
        with self._mutex:
            for pool in self._pools:
                while len(entries) < count and (entry := pool.take_last(entries)) is not None:
                    entries.append(entry)
                if entries:
                    break
        entries = [each for each in entries if each[3].set_running_or_notify_cancel()]
        if entries:
            self._give(entries)
        self.offer(is_news=True)

    def _give(self, entries: list[_Entry]) -> None:
        function = entries[0][0]
        try:
            function_buffers = dump(function, f"the function {name_of(function)}")
            buffers = dump([(tuple(args), dict(kwargs)) for _, args, kwargs, _ in entries], "its arguments")
        except CannotSend:
            for entry in entries:  # nobody else can do them
                threading.Thread(target=_call, args=(entry,), daemon=True).start()
            return
        with self._mutex:
            self._groups += 1
            group = self._groups
            self._away[group] = entries
        self._send(messages.Inner(group, len(entries), len(function_buffers)), [*function_buffers, *buffers])

    def take_results(self, group: int, is_ok: Sequence[bool], buffers: Sequence[Buffer]) -> None:
        with self._mutex:
            entries = self._away.pop(group, [])
        try:
            values = load(buffers)
        except Exception as error:
            for entry in entries:
                entry[3].set_exception(error)
            return
        for (function, _, _, future), ok, value in zip(entries, is_ok, values, strict=True):
            if ok:
                future.set_result(value)
            else:
                future.set_exception(load_error(value, f"a call of {name_of(function)} within a call"))


class _Pool:
    """Calls of one executor that was made within a call (see `kit.calls.here.InnerPool`)."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self.waiting: deque[_Entry] = deque()
        self._news = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        return self._is_closed and not self.waiting

    def submit(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((function, args, kwargs, future))
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
        """A call of the same function as the others, if there are any."""
        try:
            entry = self.waiting.pop()
        except IndexError:
            return None
        if others and entry[0] is not others[0][0]:
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
            if entry[3].set_running_or_notify_cancel():
                _call(entry)


def _call(entry: _Entry) -> None:
    function, args, kwargs, future = entry
    try:
        value = function(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(value)
