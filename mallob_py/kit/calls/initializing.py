"""An executor's `initializer`, called in each worker's process before the executor's first call there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from typing import Any

from mallob_py.kit.calls.values import load, told
from mallob_py.kit.calls.wire import Buffer

_mutex = threading.Lock()
#: marks of executors whose initializer has run in this process
_done: set[str] = set()


class NotInitialized(BrokenExecutor):
    """An executor's initializer raised in a worker; none of the executor's calls is done any more."""


class Initialized:
    """A function that calls the initializer first, once per process.

    `mark` names the executor; `initializer` is the pickled initializer with its arguments.
    """

    def __init__(self, mark: str, initializer: list[Buffer], func: Callable[..., Any]) -> None:
        self._mark = mark
        self._initializer = initializer
        self.func = func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._mark not in _done:
            self._initialize()
        return self.func(*args, **kwargs)

    def _initialize(self) -> None:
        with _mutex:
            if self._mark in _done:
                return
            try:
                initializer, initargs = load(self._initializer)
                initializer(*initargs)
            except BaseException as error:
                raise NotInitialized(f"the initializer has raised {told(error)}") from error
            _done.add(self._mark)
