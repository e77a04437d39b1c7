"""The service as an executor of the standard library, whose calls are formulas.

    from mallob_py import FormulaExecutor, solve

    with FormulaExecutor(".api") as executor:
        future = executor.submit(solve, "formula.cnf.xz", wallclock_limit_s=600)
        for answer in executor.map(solve, formulas):       # in their order
            print(answer.satisfiable)

What is executed elsewhere can be named, but not any function of this process; so there is one callable,
`solve`, whose arguments are those of `Client.submit`. All else is as with other executors: `map` hands in
everything at once and gives answers in order, `shutdown` waits for what was submitted, a future that is
cancelled ends its job.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import Any

from mallob_py.api.client import Answer, Client


def solve(*args: Any, **fields: Any) -> Answer:
    """Of a formula, on the service of the working folder's `.api`; or what an executor is to do."""
    with Client() as client:
        return client.solve(*args, **fields)


class FormulaExecutor(Executor):
    """Its own client of the service on `api_dir`; `options` are those of `Client`."""

    def __init__(self, api_dir: str | os.PathLike[str] = ".api", **options: Any) -> None:
        self._client = Client(api_dir, **options)
        self._mutex = threading.Lock()
        self._futures: set[Future[Any]] = set()
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """`submit(solve, formula, assumptions, **fields)`. Raises TypeError for any other callable."""
        if fn is not solve:
            name = getattr(fn, "__name__", repr(fn))
            raise TypeError(f"the service executes formulas, not {name}; submit(solve, formula)")
        with self._mutex:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = self._client.submit(*args, **kwargs)
            self._futures.add(future)
        future.add_done_callback(self._forget)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Without `wait`, what was submitted is answered all the same, and the client closed then."""
        with self._mutex:
            is_first, self._is_shut_down = not self._is_shut_down, True
            futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            self._finish(futures)
        elif is_first:
            threading.Thread(target=self._finish, args=(futures,), name="mallob-py-executor").start()

    def _finish(self, futures: list[Future[Any]]) -> None:
        wait(futures)
        self._client.close()

    def _forget(self, future: Future[Any]) -> None:
        with self._mutex:
            self._futures.discard(future)
