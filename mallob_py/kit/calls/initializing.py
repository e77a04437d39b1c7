"""An executor's `initializer`, called in each worker's process before the executor's first call there.

Functions of the program's own script are sent by value, each with its own copy of the globals that it uses.
So globals that the initializer has set are copied to each called function of the initializer's module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from inspect import getattr_static
from types import FunctionType
from typing import Any

from mallob_py.kit.calls.values import load, told
from mallob_py.kit.calls.wire import Buffer

_mutex = threading.Lock()
#: random id (mark) of an executor whose initializer has run in this process -> module -> name -> global
#: that the initializer has set
_done: dict[str, dict[str, dict[str, Any]]] = {}
#: greatest depth of functions within partials, methods and decorations
_NESTED_MAX = 20


class NotInitialized(BrokenExecutor):
    """An executor's initializer raised an exception in a worker; no more of the executor's calls are done."""


class Initialized:
    """A function that calls the initializer first, once per process.

    `mark` names the executor; `initializer` is the pickled initializer with its arguments.
    """

    def __init__(self, mark: str, initializer: list[Buffer], func: Callable[..., Any]) -> None:
        self._mark = mark
        self._initializer = initializer
        self.func = func
        self._is_ready = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._is_ready:
            self._prepare()
        return self.func(*args, **kwargs)

    def _prepare(self) -> None:
        """Call the initializer, once per process, and copy the globals that it has set into the function."""
        with _mutex:
            if self._mark not in _done:
                try:
                    initializer, initargs = load(self._initializer)
                    _done[self._mark] = _globals_set_by(initializer, initargs)
                except BaseException as error:
                    raise NotInitialized(f"the initializer has raised {told(error)}") from error
            known = _done[self._mark]
            for names in _globals_of(self.func):
                names.update(known.get(names.get("__name__", ""), {}))
            self._is_ready = True


def _globals_set_by(
    initializer: Callable[..., object], initargs: tuple[Any, ...]
) -> dict[str, dict[str, Any]]:
    """Call the initializer and return the globals that it has set: module -> name -> value."""
    before = [(names, dict(names)) for names in _globals_of(initializer)]
    initializer(*initargs)
    return {
        names["__name__"]: {name: one for name, one in names.items() if old.get(name, old) is not one}
        for names, old in before
        if "__name__" in names
    }


def _globals_of(called: Any) -> Iterator[dict[str, Any]]:
    """Yield the globals of each function in `called`: a function, partial, method, decoration or class."""
    for _ in range(_NESTED_MAX):
        made = getattr_static(called, "__init__", None)
        for one in (called, made, getattr_static(type(called), "__call__", None)):
            if isinstance(one, FunctionType):
                yield one.__globals__
        inner = (getattr(called, name, None) for name in ("func", "__func__", "__wrapped__"))
        called = next((one for one in inner if one is not None), None)
