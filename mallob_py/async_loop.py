"""The asyncio loops of our servers: turns are counted, and one line reports that descriptors have run out.

If no descriptor is free, asyncio itself tries every second to accept the waiting connection, as many times as
the listener's backlog, and logs a traceback for each try. The connection waits until a descriptor is free.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mallob_py.accepting import is_shortage
from mallob_py.loop_rate import LoopRate

T = TypeVar("T")

#: shortest time between two lines about a lack of descriptors
_SAY_AGAIN_S = 60.0
#: shortest time over which the rate of turns is averaged
_WINDOW_S = 1.0


class LoopWatch:
    """Runs one asyncio loop, and measures how often the loop turns."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.rate = LoopRate()
        self._say = say
        self._said_s = -math.inf
        self._per_second = 0.0
        self._counted_s = -math.inf

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, as `asyncio.run` does."""
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            return runner.run(main)

    def per_second(self) -> float:
        """Return the turns per second, averaged over a second or more; at most about a second old."""
        now = time.monotonic()
        if now - self._counted_s >= _WINDOW_S:
            self._counted_s = now
            self._per_second = self.rate.per_second(now)
        return self._per_second

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(_Counting(self.rate))
        loop.set_exception_handler(self._note)
        return loop

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and is_shortage(error) and "socket" in context):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._said_s + _SAY_AGAIN_S:
            self._said_s = time.monotonic()
            self._say(
                f"no connection can be accepted, callers wait: {error.strerror}; raise the limit (ulimit -n)"
            )


class _Counting(selectors.DefaultSelector):
    """A selector that counts turns: asyncio calls `select` once in each turn."""

    def __init__(self, rate: LoopRate) -> None:
        super().__init__()
        self._rate = rate

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._rate.turns += 1
        found: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return found
