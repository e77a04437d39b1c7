"""The asyncio loops of our servers: their turns are counted, and a lack of descriptors is told in one line.

Once a second, asyncio tries to accept a connection that it has no descriptor for, as often as the listener's
backlog says, and logs a traceback each time. The connection waits meanwhile, and is accepted when
a descriptor is free again.
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

#: between two lines that say so
_SAY_AGAIN_S = 60.0
#: of which the rate of turns is the mean
_WINDOW_S = 1.0


class LoopWatch:
    """Runs one asyncio loop, and knows how often it turns."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.rate = LoopRate()
        self._say = say
        self._said_s = -math.inf
        self._per_second = 0.0
        self._counted_s = -math.inf

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """As `asyncio.run`."""
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            return runner.run(main)

    def per_second(self) -> float:
        """Turns a second, over at least the last second."""
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
                f"no connection can be accepted, they wait: {error.strerror}; raise the limit (ulimit -n)"
            )


class _Counting(selectors.DefaultSelector):
    """asyncio asks it once in each turn."""

    def __init__(self, rate: LoopRate) -> None:
        super().__init__()
        self._rate = rate

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._rate.turns += 1
        found: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return found
