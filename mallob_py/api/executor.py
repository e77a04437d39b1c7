"""Python functions on the workers of a service, or of ranks of one's own, as an executor of the standard
library.

    from mallob_py import Executor

    with Executor(ranks=4) as executor:              # or Executor(".api"): a service that runs
        future = executor.submit(pow, 2, 10)
        for result in executor.map(function, items):     # in their order, as they come: ordered=False
            ...

All calls with the same terms (`priority`, `max_demand`, limits) are done by one malleable job: it begins with
the first call, has as many workers as it gets and has calls for, loses and gains some meanwhile, and ends a
second after the last call. A job with a time limit is a map's own. What is not done by a worker that is lost
is done by another one; of each call one outcome counts.

Within a call an `Executor` is the pool that the call runs on, whatever its arguments say: calls may want
calls.
"""

from __future__ import annotations

import concurrent.futures
import math
import os
import socket
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from mallob_py.api.calls.hub import Hub, Pickled
from mallob_py.api.calls.lane import Terms
from mallob_py.api.calls.ranks import OwnRanks
from mallob_py.api.calls.sinks import CallFuture, CallProgress, MapResults
from mallob_py.api.client import Client
from mallob_py.kit.calls import here
from mallob_py.kit.calls.values import dump, name_of

if TYPE_CHECKING:
    from mallob_py.kit.calls.here import InnerPool

_P = ParamSpec("_P")
_T = TypeVar("_T")
#: what `map` does with exceptions
_ON_ERROR = ("raise", "collect")
#: functions whose pickle says nothing but where they are
_known_by_name: WeakKeyDictionary[Any, Pickled] = WeakKeyDictionary()


class Executor(concurrent.futures.Executor):
    """Calls functions on a service's workers; see the module's docstring. May be used by several threads."""

    def __init__(
        self,
        api_dir: str | os.PathLike[str] = ".api",
        *,
        ranks: int | None = None,
        user: str = "",
        client: int = 0,
        priority: float = 1.0,
        max_demand: int = 0,
        name: str = "",
    ) -> None:
        """Use the service on `api_dir`, or start so many `ranks`, which end with the executor.

        `user`, `client`: as of `Client`. `priority` (of its jobs beside others), `max_demand` (most workers
        at a time; 0: no bound) and `name` (of its first job) are what `map` may say for itself.

        Raises ServiceError if no service has used the folder, or the ranks do not start.
        """
        if isinstance(api_dir, int):
            raise TypeError(
                f"Executor({api_dir}) names no folder; with ranks of its own: Executor(ranks={api_dir})"
            )
        self._terms = _terms(priority=priority, max_demand=max_demand, name=name)
        self._mutex = threading.Lock()
        self._is_shut_down = False
        self._inner: InnerPool | None = None
        self._inner_futures: set[concurrent.futures.Future[Any]] = set()
        self._hub: Hub | None = None
        self._ranks: OwnRanks | None = None
        if here.worker is not None:
            self._inner = here.worker.inner_pool()
            return
        if ranks is not None:
            self._ranks = OwnRanks(ranks)
            api_dir = self._ranks.api_dir
        try:
            self._client = Client(api_dir, user, client)
            self._hub = Hub(self._client, self._has_other_hosts, self._client.service_user())
            if self._ranks is not None:
                self._ranks.ended.add_done_callback(self._lose_ranks)
        except BaseException:
            self._end_ranks()
            raise

    def _lose_ranks(self, _: concurrent.futures.Future[None]) -> None:
        """Have calls end with an error, unless the executor itself has ended the ranks."""
        if (ranks := self._ranks) is not None and self._hub is not None:
            self._hub.lose_service(f"the executor's ranks have ended: {ranks.last_words()}")

    def _has_other_hosts(self) -> bool:
        if self._ranks is not None:
            return False
        try:
            hosts = self._client.status().hosts
        except Exception:
            return False  # it has just started, or is between two starts
        return any(host.name not in ("", socket.gethostname()) for host in hosts)

    @property
    def workers(self) -> int:
        """The workers that its jobs can have at a time: PEs of the service now, or its own; 1 in a call."""
        if self._inner is not None:
            return 1
        most = self._terms.max_demand or math.inf
        if self._ranks is not None:
            return int(min(most, self._ranks.count))
        try:
            pes = self._client.status().pes
        except Exception:
            pes = 1  # it has just started, or is between two starts
        return int(min(most, max(1, pes)))

    @property
    def _max_workers(self) -> int:
        """The number of workers, under the name of the standard library's executors; Dask asks for it."""
        return self.workers

    # --- as of any executor -------------------------------------------------------------------------

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> CallFuture[_T]:
        """Have `fn(*args, **kwargs)` called. Raises CannotSend if the function cannot be pickled."""
        if self._inner is not None:
            return self._submit_inner(self._inner, fn, args, kwargs)  # type: ignore[return-value]
        return self._submit(self._terms, fn, args, kwargs)

    def _submit(
        self, terms: Terms, fn: Callable[..., _T], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CallFuture[_T]:
        assert self._hub is not None
        function = _pickled(fn)
        future: CallFuture[_T] = CallFuture()
        with self._mutex:
            self._check_open()
            self._hub.submit(terms, function, (args, kwargs), future)
        return future

    def _submit_inner(
        self, pool: InnerPool, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> concurrent.futures.Future[Any]:
        self._check_open()
        future = pool.submit(fn, args, kwargs)
        self._inner_futures.add(future)
        future.add_done_callback(self._inner_futures.discard)
        return future

    def map(
        self,
        fn: Callable[..., _T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        ordered: bool = True,
        retries: int = 0,
        on_error: str = "raise",
        priority: float | None = None,
        max_demand: int | None = None,
        time_limit: float | None = None,
        cpu_limit: float | None = None,
        name: str = "",
    ) -> MapResults[_T]:
        """Call `fn` with items of the iterables, as `map` does; they are read at once. The results come by
        iteration.

        `timeout`: seconds from now on until a result that is awaited must be there (TimeoutError).
        `chunksize`: calls that are sent together; None: as is best, by how long they take.
        `ordered`: in the order of the calls, or else as they come.
        `retries`: a call that raises is repeated as often.
        `on_error`: "raise" the first exception that is met and cancel the rest, or "collect" exceptions in
        the results' places. An exception has the worker's traceback as its `__cause__`, and a note names the
        call.
        `priority`, `max_demand`, `name`: as of the executor, for a job of this map's own.
        `time_limit`, `cpu_limit`: seconds that its job may have a PE, and all its workers together;
        calls that are not done by then end with TimeLimit or JobEnded.

        Raises CannotSend, ValueError.
        """
        _check_map(on_error, chunksize, retries)
        deadline_s = None if timeout is None else time.monotonic() + timeout
        items = list(zip(*iterables, strict=False))
        own: dict[str, Any] = {"priority": priority, "max_demand": max_demand, "time_limit_s": time_limit}
        own |= {"cpu_limit_s": cpu_limit, "name": name or None}
        given = {key: value for key, value in own.items() if value is not None}
        terms = _terms(**(self._terms._asdict() | given))

        how: dict[str, Any] = {"is_ordered": ordered, "is_collecting": on_error == "collect"}

        def results_of(cancel: Callable[[], None]) -> MapResults[_T]:
            return MapResults(len(items), deadline_s=deadline_s, cancel=cancel, **how)

        if self._inner is not None:
            submit = partial(self._submit_inner, self._inner)
            return _inner_map(lambda each, item: submit(each, item, {}), fn, items, retries, results_of)
        assert self._hub is not None
        function = _pickled(fn)
        with self._mutex:
            self._check_open()
            is_own = bool(given)
            return self._hub.map(terms, function, items, False, chunksize or 0, retries, is_own, results_of)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further calls; end when those that are there are done, or (`cancel_futures`) have begun."""
        with self._mutex:
            is_first = not self._is_shut_down
            self._is_shut_down = True
        if self._inner is not None:
            futures = tuple(self._inner_futures)
            if cancel_futures:
                for future in futures:
                    future.cancel()
            if wait:
                concurrent.futures.wait(futures)
            self._inner.close()
            return
        assert self._hub is not None
        if cancel_futures:
            self._hub.cancel_waiting()
        self._hub.close()
        if wait:
            self._hub.join()
            self._end_ranks()
        elif is_first and self._ranks is not None:
            threading.Thread(target=self._end, name="mallob-py-executor").start()

    def _end(self) -> None:
        assert self._hub is not None
        self._hub.join()
        self._end_ranks()

    def _end_ranks(self) -> None:
        with self._mutex:
            ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.stop()

    def _check_open(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")


def report_progress(done: float, total: float | None = None) -> None:
    """Tell from within a call how far it is; its future's `progress` shows it. Elsewhere without effect."""
    if here.worker is not None:
        here.worker.report_progress(done, total)


def _terms(**fields: Any) -> Terms:
    terms = Terms(**fields)
    for name, value in (("time_limit", terms.time_limit_s), ("cpu_limit", terms.cpu_limit_s)):
        if value is not None and value <= 0:
            raise ValueError(f"{name} is a number of seconds above 0, not {value}")
    if terms.priority <= 0:
        raise ValueError(f"priority is a number above 0, not {terms.priority}")
    if terms.max_demand < 0:
        raise ValueError(f"max_demand is a number of workers, 0 for no bound, not {terms.max_demand}")
    return terms


def _check_map(on_error: str, chunksize: int | None, retries: int) -> None:
    if on_error not in _ON_ERROR:
        raise ValueError(f"on_error is one of {', '.join(_ON_ERROR)}, not {on_error!r}")
    if chunksize is not None and chunksize < 1:
        raise ValueError(f"chunksize is a number above 0, or None, not {chunksize}")
    if retries < 0:
        raise ValueError(f"retries is a number, 0 or more, not {retries}")


def _pickled(fn: Callable[..., Any]) -> Pickled:
    """Raises CannotSend."""
    if not callable(fn):
        raise TypeError(f"{fn!r:.80} cannot be called")
    is_by_name = isinstance(fn, types.FunctionType) or (
        isinstance(fn, types.BuiltinFunctionType) and isinstance(fn.__self__, types.ModuleType)
    )
    if is_by_name and (known := _known_by_name.get(fn)) is not None:
        return known
    name = name_of(fn)
    buffers = dump(fn, f"the function {name}")
    if is_by_name and b"cloudpickle" not in buffers[0]:  # a function that is sent by value may change
        _known_by_name[fn] = (buffers, name)
    return buffers, name


def _inner_map(
    submit: Callable[[Callable[..., Any], Any], concurrent.futures.Future[Any]],
    fn: Callable[..., _T],
    items: list[Any],
    retries: int,
    results_of: Callable[[Callable[[], None]], MapResults[_T]],
) -> MapResults[_T]:
    """A map within a call: each call by itself, as the pool takes them."""
    futures: list[concurrent.futures.Future[Any]] = []

    def cancel() -> None:
        for future in futures:
            future.cancel()

    results = results_of(cancel)

    def hand_on(call: int, future: concurrent.futures.Future[Any]) -> None:
        if future.cancelled():
            results.deliver([call], [False], [concurrent.futures.CancelledError()])
        elif (error := future.exception()) is not None:
            results.deliver([call], [False], [error])
        else:
            results.deliver([call], [True], [future.result()])

    for call, item in enumerate(items):
        future = submit(_Retried(fn, retries) if retries else fn, item)
        futures.append(future)
        future.add_done_callback(partial(hand_on, call))
    return results


class _Retried:
    """A function that is called once more if it raises."""

    def __init__(self, function: Callable[..., Any], retries: int) -> None:
        self._function = function
        self._retries = retries

    def __call__(self, *args: Any) -> Any:
        for _ in range(self._retries):
            try:
                return self._function(*args)
            except Exception:
                continue
        return self._function(*args)


__all__ = ["CallProgress", "Executor", "MapResults", "report_progress"]
