"""Delivering outcomes of calls to the user's code (unpickling, callbacks), which may be slow.

One thread delivers, in order. If a delivery is slow while others wait, for example because a callback waits
for a call, another thread takes the waiting deliveries. So no callback keeps a call from being done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

#: duration of a delivery after which another thread takes the remaining deliveries
_LONG_S = 0.1
#: greatest number of threads held by slow deliveries
_HELD_MAX = 256


class Deliverer:
    """The queue of deliveries. Any thread may use the queue; its owner must call `look` now and then."""

    def __init__(self, name: str, when_done: Callable[[], object] = lambda: None) -> None:
        """Make an empty queue. `when_done` is called whenever all deliveries are made."""
        self._name = name
        self._when_done = when_done
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        #: the thread that takes the next delivery, and the time at which its present delivery began
        self._current: threading.Thread | None = None
        self._begun_s: float | None = None
        #: all threads that deliver, including threads held by slow deliveries
        self._threads: set[int] = set()
        self._at_work = 0
        self._is_closed = False

    def put(self, delivery: Callable[[], object]) -> None:
        with self._changed:
            self._waiting.append(delivery)
            if self._current is None:
                self._start()
            else:
                self._changed.notify()

    @property
    def is_own_thread(self) -> bool:
        """Tell whether the calling thread is one that makes deliveries."""
        return threading.get_ident() in self._threads

    @property
    def is_done(self) -> bool:
        return not self._waiting and not self._at_work

    def look(self, now_s: float) -> float | None:
        """Start another thread if a slow delivery holds the present one.

        Return the time when `look` must be called again; None: not needed.
        """
        with self._changed:
            if not self._waiting or self._begun_s is None:
                return None
            due_s = self._begun_s + _LONG_S
            if now_s < due_s or len(self._threads) > _HELD_MAX:
                return max(due_s, now_s + _LONG_S)
            self._start()
            return now_s + _LONG_S

    def close(self) -> None:
        """End the threads once all deliveries put so far are made."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _start(self) -> None:
        self._begun_s = None
        self._current = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._current.start()

    def _run(self) -> None:
        own = threading.current_thread()
        with self._changed:
            self._threads.add(threading.get_ident())
        try:
            while (delivery := self._next(own)) is not None:
                with suppress(BaseException):  # callbacks are the user's and may raise anything
                    delivery()
                del delivery
                self._end_of_one(own)
        finally:
            with self._changed:
                self._threads.discard(threading.get_ident())

    def _next(self, own: threading.Thread) -> Callable[[], object] | None:
        with self._changed:
            while self._current is own:
                if self._waiting:
                    self._at_work += 1
                    self._begun_s = time.monotonic()
                    return self._waiting.popleft()
                if self._is_closed:
                    self._current = None
                    return None
                self._changed.wait()
            return None

    def _end_of_one(self, own: threading.Thread) -> None:
        with self._changed:
            self._at_work -= 1
            if self._current is own:
                self._begun_s = None
        if self.is_done:
            self._when_done()
