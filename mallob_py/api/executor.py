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
import pwd
import socket
import threading
import time
import types
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

from mallob_py.api.calls.hub import Hub, MapCalls
from mallob_py.api.calls.lane import Terms, shown_arguments
from mallob_py.api.calls.ranks import OwnRanks
from mallob_py.api.calls.sinks import IN_A_FORK, CallFuture, CallProgress, LazyResults, MapResults
from mallob_py.api.client import Client
from mallob_py.kit.calls import here
from mallob_py.kit.calls.initializing import Initialized
from mallob_py.kit.calls.values import (
    CannotSend,
    Pickled,
    are_atoms,
    copied,
    dump,
    is_kept,
    name_of,
    pickled,
    restored,
    snapshot_of_call,
)
from mallob_py.service import ServiceError

if TYPE_CHECKING:
    from mallob_py.kit.calls.here import InnerPool

_P = ParamSpec("_P")
_T = TypeVar("_T")
#: what `map` does with exceptions
_ON_ERROR = ("raise", "collect")
#: arguments of a map that are pickled before the hub gets them
_HANDED_IN_CALLS, _HANDED_IN_BYTES = 500, 4 << 20
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
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        trust: str = "",
    ) -> None:
        """Use the service on `api_dir`, or start so many `ranks`, which end with the executor.

        `user`, `client`: as of `Client`. `priority` (of its jobs beside others), `max_demand` (most workers
        at a time; 0: no bound) and `name` (of its first job) are what `map` may say for itself.
        `max_workers`: the same as `max_demand`.
        `initializer` is called with `initargs` in each worker before its first call; if it raises, all calls
        end with BrokenExecutor.
        `trust`: the user who runs the service, if that is another one: what he answers may run code here.

        Raises ServiceError if no service has used the folder, it is another user's who is not trusted, or
        the ranks do not start.
        """
        if isinstance(api_dir, int):
            raise TypeError(
                f"Executor({api_dir}) names no folder; with ranks of its own: Executor(ranks={api_dir})"
            )
        if max_workers is not None:
            max_demand = _bound(max_workers, max_demand)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._terms = _terms(priority=priority, max_demand=max_demand, name=name)
        self._initializer = None if initializer is None else dump((initializer, initargs), "the initializer")
        self._mark = uuid.uuid4().hex
        self._process = os.getpid()
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
            self._client = client_of = Client(api_dir, user, client)
            service_user = os.geteuid() if ranks is not None else _trusted(client_of.service_user(), trust)
            other_hosts = (lambda: False) if ranks is not None else partial(_has_other_hosts, client_of)
            self._hub = Hub(client_of, other_hosts, service_user)
            if self._ranks is not None:
                self._ranks.ended.add_done_callback(partial(_lose_ranks, self._hub, self._ranks.last_words))
        except BaseException:
            if self._ranks is not None:
                self._ranks.stop()
            raise
        #: ends the ranks and the hub's thread if nobody has this executor any more
        self._finalizer = weakref.finalize(self, _drop, self._process, self._hub, self._ranks)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        if self._inner is not None:
            what = "within a call"
        elif self._ranks is not None:
            what = f"of {self._ranks.count} ranks"
        else:
            what = f"on {str(self._client.api_dir)!r}"
        left = len(self._inner_futures) if self._hub is None else self._hub.left
        return f"<Executor {what}, {left} calls left{', shut down' if self._is_shut_down else ''}>"

    @property
    def workers(self) -> int:
        """The workers that its jobs can have at a time: PEs of the service now, or its own; 1 in a call."""
        if self._inner is not None:
            return 1
        most = self._terms.max_demand or math.inf
        if (ranks := self._ranks) is not None:
            return int(min(most, ranks.count))
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
        """Have `fn(*args, **kwargs)` called, as these are now. Raises CannotSend for such an `fn`."""
        if self._inner is not None:
            called = self._initialized(fn)
            return self._submit_inner(self._inner, called, self._known(fn), args, kwargs)  # type: ignore[return-value]
        return self._submit(self._terms, self._pickled(fn), args, kwargs)

    def _submit(
        self,
        terms: Terms,
        function: Pickled,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        retries: int = 0,
    ) -> CallFuture[Any]:
        assert self._hub is not None
        future: CallFuture[Any] = CallFuture()
        try:
            call = snapshot_of_call(args, kwargs)
        except CannotSend as error:
            error.add_note(f"{function.name}({shown_arguments(args, kwargs)})")
            future.set_running_or_notify_cancel()
            future.set_exception(error)
            call = None
        self._check_process()
        with self._mutex:
            self._check_open()
            if call is not None:
                self._hub.submit(terms, function, call, future, retries)
        return future

    def _submit_inner(
        self,
        pool: InnerPool,
        fn: Callable[..., Any],
        known: Pickled | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> concurrent.futures.Future[Any]:
        self._check_process()
        self._check_open()
        future = pool.submit(fn, known, args, kwargs)
        self._inner_futures.add(future)
        future.add_done_callback(self._inner_futures.discard)
        return future

    @overload
    def map(
        self,
        fn: Callable[..., _T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: None = None,
        ordered: bool = True,
        retries: int = 0,
        on_error: str = "raise",
        priority: float | None = None,
        max_demand: int | None = None,
        time_limit: float | None = None,
        cpu_limit: float | None = None,
        name: str = "",
    ) -> MapResults[_T]: ...

    @overload
    def map(
        self,
        fn: Callable[..., _T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int,
        ordered: bool = True,
        retries: int = 0,
        on_error: str = "raise",
        priority: float | None = None,
        max_demand: int | None = None,
        time_limit: float | None = None,
        cpu_limit: float | None = None,
        name: str = "",
    ) -> LazyResults[_T]: ...

    def map(
        self,
        fn: Callable[..., _T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        retries: int = 0,
        on_error: str = "raise",
        priority: float | None = None,
        max_demand: int | None = None,
        time_limit: float | None = None,
        cpu_limit: float | None = None,
        name: str = "",
    ) -> MapResults[_T] | LazyResults[_T]:
        """Call `fn` with items of the iterables, as `map` does. The results come by iteration.

        The iterables are read at once, and each call gets its items as they are now.

        `timeout`: seconds from now on until a result that is awaited must be there (TimeoutError).
        `chunksize`: calls that are sent together; None: as is best, by how long they take.
        `buffersize`: the iterables are read as results are taken: at most so many calls are under way.
        `ordered`: in the order of the calls, or else as they come.
        `retries`: a call that raises is repeated as often.
        `on_error`: "raise" the first exception that is met and cancel the rest, or "collect" exceptions in
        the results' places. An exception has the worker's traceback as its `__cause__`, and a note names the
        call.
        `priority`, `max_demand`, `name`: as of the executor, for a job of this map's own.
        `time_limit`, `cpu_limit`: seconds that its job may have a PE, and all its workers together;
        calls that are not done by then end with TimeLimit or JobEnded.

        Raises CannotSend, TypeError, ValueError.
        """
        _check_map(on_error, chunksize, buffersize, retries)
        deadline_s = None if timeout is None else time.monotonic() + timeout
        own: dict[str, Any] = {"priority": priority, "max_demand": max_demand, "time_limit_s": time_limit}
        own |= {"cpu_limit_s": cpu_limit, "name": name or None}
        given = {key: value for key, value in own.items() if value is not None}
        terms = _terms(**(self._terms._asdict() | given))
        how: dict[str, Any] = {"is_ordered": ordered, "is_collecting": on_error == "collect"}
        how["deadline_s"] = deadline_s
        if buffersize is not None:
            if given:
                terms = terms._replace(map=uuid.uuid4().hex)
            submit, abandon = self._one_by_one(fn, terms, retries)
            return LazyResults(submit, zip(*iterables, strict=False), buffersize, abandon=abandon, **how)
        items = list(zip(*iterables, strict=False))
        if self._inner is not None:
            submit, abandon = self._one_by_one(fn, terms, retries)
            return _inner_map(submit, items, lambda cancel: MapResults(len(items), cancel=cancel, **how))
        assert self._hub is not None
        function = self._pickled(fn)
        begin = partial(self._hub.map, terms, function, len(items), chunksize or 0, retries, bool(given))
        return self._map_at_once(begin, function.name, items, how)

    def _map_at_once(
        self,
        begin: Callable[..., tuple[MapCalls, MapResults[Any]]],
        name: str,
        items: list[Any],
        how: dict[str, Any],
    ) -> MapResults[Any]:
        """Have all calls of a map done. `begin`: of the hub. `how`: for the results."""
        self._check_process()
        with self._mutex:
            self._check_open()
            calls, results = begin(lambda cancel: MapResults(len(items), cancel=cancel, **how))
        try:
            _hand_in(calls, items, name)
        except BaseException:
            results.close()
            raise
        return results

    def _one_by_one(
        self, fn: Callable[..., _T], terms: Terms, retries: int
    ) -> tuple[
        Callable[[tuple[Any, ...]], concurrent.futures.Future[_T]],
        Callable[[Sequence[concurrent.futures.Future[_T]]], None],
    ]:
        """Return a function that submits one call of a map, and one that gives up some."""
        if (inner := self._inner) is not None:
            wanted = _Retried(fn, retries) if retries else fn
            called, known = self._initialized(wanted), self._known(wanted)
            return (lambda item: self._submit_inner(inner, called, known, item, {})), _cancel_all
        assert self._hub is not None
        function, abandon = self._pickled(fn), self._hub.abandon
        return (lambda item: self._submit(terms, function, item, {}, retries)), abandon  # type: ignore[return-value]

    def _known(self, fn: Callable[..., Any]) -> Pickled | None:
        """A function as it is now; None: it cannot be pickled, and can only be called here."""
        with suppress(CannotSend):
            return self._pickled(fn)
        return None

    def _pickled(self, fn: Callable[..., Any]) -> Pickled:
        """Raises CannotSend."""
        if self._initializer is None or not callable(fn):
            return _pickled(fn)
        name = name_of(fn)
        return Pickled(dump(self._initialized(fn), f"the function {name}"), name, is_kept(fn))

    def _initialized(self, fn: Callable[..., _T]) -> Callable[..., _T]:
        """Return the function, or one that has the initializer called before it."""
        return fn if self._initializer is None else Initialized(self._mark, self._initializer, fn)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further calls; end when those that are there are done, or (`cancel_futures`) have begun.

        Does not `wait` in a callback of one of its calls, which would have to end first.
        """
        if os.getpid() != self._process:
            return
        with self._mutex:
            is_first = not self._is_shut_down
            self._is_shut_down = True
        if self._inner is not None:
            futures = tuple(self._inner_futures)
            if cancel_futures:
                _cancel_all(futures)
            if wait and not self._inner.is_own_thread:
                concurrent.futures.wait(futures)
            self._inner.close()
            return
        assert self._hub is not None
        self._finalizer.detach()
        if cancel_futures:
            self._hub.cancel_waiting()
        self._hub.close()
        if wait and not self._hub.is_own_thread:
            _end(self._hub, self._ranks)
        elif is_first and self._ranks is not None:
            threading.Thread(target=_end, args=(self._hub, self._ranks), name="mallob-py-executor").start()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(IN_A_FORK)

    def _check_open(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._hub is not None and self._hub.failure:
            raise concurrent.futures.BrokenExecutor(self._hub.failure)


def _end(hub: Hub, ranks: OwnRanks | None) -> None:
    """End the ranks when all calls are done."""
    hub.join()
    if ranks is not None:
        ranks.stop()


def _drop(process: int, hub: Hub, ranks: OwnRanks | None) -> None:
    """End the thread and the ranks of a dropped executor when all calls are done."""
    if os.getpid() != process:
        return
    hub.close()
    if ranks is not None:
        try:
            threading.Thread(target=_end, args=(hub, ranks), name="mallob-py-executor").start()
        except RuntimeError:  # the program ends
            ranks.stop()


def _lose_ranks(hub: Hub, last_words: Callable[[], str], _: object) -> None:
    """Have calls end with an error; there are none if the executor itself has ended the ranks."""
    why = f"the executor's ranks have ended: {last_words()}"
    hub.break_off(lambda call: ServiceError(f"{why}; not done: {call}"))


def _has_other_hosts(client: Client) -> bool:
    try:
        hosts = client.status().hosts
    except Exception:
        return False  # it has just started, or is between two starts
    return any(host.name not in ("", socket.gethostname()) for host in hosts)


def _trusted(service_user: int, trust: str) -> int:
    """Return the user id of the service. Raises ServiceError if it is another user's who is not trusted."""
    if service_user == os.geteuid():
        return service_user
    try:
        name = pwd.getpwuid(service_user).pw_name
    except KeyError:
        name = str(service_user)
    if trust in (name, str(service_user)):
        return service_user
    raise ServiceError(
        f"the service is run by {name}, whose answers can run code with your rights; if you trust that user,"
        f" and all that may hand in code there: Executor(..., trust={name!r})"
    )


def report_progress(done: float, total: float | None = None) -> None:
    """Tell from within a call how far it is; its future's `progress` shows it. Elsewhere without effect."""
    if here.worker is not None:
        here.worker.report_progress(done, total)


def _bound(max_workers: int, max_demand: int) -> int:
    if max_demand:
        raise ValueError("max_workers and max_demand are the same bound: give one of them")
    if max_workers <= 0:
        raise ValueError("max_workers must be greater than 0")
    return max_workers


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


def _check_map(on_error: str, chunksize: int | None, buffersize: int | None, retries: int) -> None:
    if on_error not in _ON_ERROR:
        raise ValueError(f"on_error is one of {', '.join(_ON_ERROR)}, not {on_error!r}")
    if chunksize is not None and chunksize < 1:
        raise ValueError(f"chunksize is a number above 0, or None, not {chunksize}")
    if buffersize is not None and not isinstance(buffersize, int):
        raise TypeError("buffersize must be an integer or None")
    if buffersize is not None and buffersize < 1:
        raise ValueError("buffersize must be None or > 0")
    if retries < 0:
        raise ValueError(f"retries is a number, 0 or more, not {retries}")


def _pickled(fn: Callable[..., Any]) -> Pickled:
    """Raises CannotSend."""
    is_by_name = isinstance(fn, types.FunctionType) or (
        isinstance(fn, types.BuiltinFunctionType) and isinstance(fn.__self__, types.ModuleType)
    )
    if is_by_name and (known := _known_by_name.get(fn)) is not None:
        return known
    found = pickled(fn)
    if is_by_name and b"cloudpickle" not in found.buffers[0]:  # a function that is sent by value may change
        _known_by_name[fn] = found
    return found


def _hand_in(calls: MapCalls, items: list[tuple[Any, ...]], name: str) -> None:
    """Hand in the arguments of a map's calls, as they are now."""
    if are_atoms(chain.from_iterable(items)):
        calls.extend(items, {})
        return
    taken: list[Any] = []
    bad: dict[int, BaseException] = {}
    size_bytes = 0
    for call, item in enumerate(items):
        snapshot: Any = item
        if not are_atoms(item):
            try:
                snapshot = dump(item, "its arguments")
                size_bytes += sum(map(len, snapshot))
            except CannotSend as error:
                error.add_note(f"call {call} of {len(items)}: {name}({shown_arguments(item, {})})")
                bad[call] = error
        taken.append(snapshot)
        if len(taken) >= _HANDED_IN_CALLS or size_bytes >= _HANDED_IN_BYTES:
            calls.extend(taken, bad)
            taken, bad, size_bytes = [], {}, 0
    calls.extend(taken, bad)


def _cancel_all(futures: Iterable[concurrent.futures.Future[Any]]) -> None:
    for future in futures:
        future.cancel()


def _inner_map(
    submit: Callable[[tuple[Any, ...]], concurrent.futures.Future[_T]],
    items: list[tuple[Any, ...]],
    results_of: Callable[[Callable[[], None]], MapResults[_T]],
) -> MapResults[_T]:
    """A map within a call: each call by itself, as the pool takes them."""
    futures: list[concurrent.futures.Future[_T]] = []
    results = results_of(lambda: _cancel_all(futures))
    sink = results.sink

    def hand_on(call: int, future: concurrent.futures.Future[_T]) -> None:
        if future.cancelled():
            sink.deliver([call], [False], [concurrent.futures.CancelledError()])
        elif (error := future.exception()) is not None:
            sink.deliver([call], [False], [error])
        else:
            sink.deliver([call], [True], [future.result()])

    for call, item in enumerate(items):
        future = submit(item)
        futures.append(future)
        future.add_done_callback(partial(hand_on, call))
    return results


class _Retried:
    """A function that is called once more if it raises, with its arguments as they were."""

    def __init__(self, func: Callable[..., Any], retries: int) -> None:
        self.func = func
        self._retries = retries

    def __call__(self, *args: Any) -> Any:
        call: Any = args, {}
        with suppress(CannotSend):
            call = snapshot_of_call(args, {})
        for _ in range(self._retries):
            try:
                return self.func(*restored(copied(call))[0])
            except Exception:
                continue
        return self.func(*restored(call)[0])


__all__ = ["CallProgress", "Executor", "LazyResults", "MapResults", "report_progress"]
