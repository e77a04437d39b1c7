"""A standard executor that runs Python functions on the workers of a service, or of its own ranks.

    from mallob_py import Executor

    with Executor(ranks=4) as executor:                 # or Executor(".api"): a running service
        future = executor.submit(pow, 2, 10)
        for result in executor.map(function, items):    # in the order of items; ordered=False: as they come
            ...

One malleable job does all calls with the same terms (`priority`, `max_demand`, limits): it begins with the
first call and ends a second after the last one. A map with terms of its own has a job of its own. If a worker
is lost, other workers repeat its open calls; each call has one outcome.

Calls may submit calls: an `Executor` made within a call uses the pool that runs the call, whatever its
arguments are.
"""

from __future__ import annotations

import concurrent.futures
import math
import os
import socket
import threading
import time
import types
import uuid
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

from mallob_py.api.calls.hub import Hub, MapCalls
from mallob_py.api.calls.lane import Terms, shown_arguments
from mallob_py.api.calls.ranks import OwnRanks
from mallob_py.api.calls.sinks import CallFuture, CallProgress, LazyResults, MapResults
from mallob_py.api.client import Client
from mallob_py.api.settled import IN_A_FORK
from mallob_py.api.shown import html_table, progress_bar
from mallob_py.kit.calls import here, sharing
from mallob_py.kit.calls.initializing import Initialized
from mallob_py.kit.calls.sharing import Shared
from mallob_py.kit.calls.values import (
    CannotSend,
    Pickled,
    are_atoms,
    copied,
    dump,
    dump_to_share,
    is_kept,
    name_of,
    pickled,
    restored,
    snapshot_of_call,
)
from mallob_py.service import ServiceError
from mallob_py.service.client import user_name

if TYPE_CHECKING:
    from mallob_py.kit.calls.here import InnerPool

_P = ParamSpec("_P")
_T = TypeVar("_T")
#: the values of `map`'s `on_error`
_ON_ERROR = ("raise", "collect")
#: numbers of calls and of pickled bytes after which a map hands its next part to the hub
_HANDED_IN_CALLS, _HANDED_IN_BYTES = 500, 4 << 20
#: function -> its pickle, if the pickle holds only the function's name
_known_by_name: WeakKeyDictionary[Any, Pickled] = WeakKeyDictionary()


class Executor(concurrent.futures.Executor):
    """Executor whose calls run on the workers of a service; several threads may use it."""

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
        """Use the service on `api_dir`, or start `ranks` ranks.

        Args:
            api_dir: the folder of a service.
            ranks: the number of ranks to start instead; the ranks end with the executor.
            user: the user of the jobs; "": the login name.
            client: which of the service's folders `jobs.<i>` to use.
            priority: the priority of the executor's jobs; `map` may set its own.
            max_demand: the greatest number of workers at a time, 0: no bound; `map` may set its own.
            name: the name of the first job; `map` may set its own.
            max_workers: another name for `max_demand`.
            initializer: called with `initargs` in each worker before the worker's first call; if the
                initializer raises, all calls end with BrokenExecutor.
            initargs: the arguments of `initializer`.
            trust: the user who runs the service, if it is another user whose answers may run code here.

        Raises:
            ServiceError: no service has used the folder, a user who is not trusted runs the service, or
                the ranks do not start.
            TypeError: `api_dir` is a number, `ranks` is not an integer, or `initializer` is not callable.
            ValueError: `ranks` is below 1.
        """
        if isinstance(api_dir, int):
            raise TypeError(
                f"Executor({api_dir}) names no folder; to start ranks, use Executor(ranks={api_dir})"
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
            weakref.finalize(self, self._inner.close).atexit = False
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
        #: ends the ranks and the hub's thread once nothing refers to the executor
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

    def _repr_html_(self) -> str:
        """Return a table in HTML of the numbers of workers and calls, for notebooks."""
        title = repr(self).strip("<>").partition(",")[0]
        rows: dict[str, object] = {"workers": self.workers}
        if self._ranks is not None:
            rows["ranks"] = self._ranks.count
        if self._hub is not None:
            rows |= {"calls ended": self._hub.done, "running": self._hub.running, "left": self._hub.left}
        if self._is_shut_down:
            rows["state"] = "shut down"
        return html_table(title, rows)

    @property
    def workers(self) -> int:
        """The number of workers that the jobs can have at a time; 1 within a call."""
        if self._inner is not None:
            return 1
        most = self._terms.max_demand or math.inf
        if (ranks := self._ranks) is not None:
            return int(min(most, ranks.count))
        try:
            pes = self._client.status().pes
        except Exception:
            pes = 1  # the service has just started, or is restarting
        return int(min(most, max(1, pes)))

    @property
    def _max_workers(self) -> int:
        """Another name for `workers`, which Dask reads from executors."""
        return self.workers

    def share(self, value: _T) -> Shared[_T]:
        """Keep an object in the workers, for any number of calls.

        The object is sent to each host once, into shared memory; a worker unpickles it when one of its calls
        first asks for it. Arrays of numbers are not copied, and are read-only. The memory is freed when the
        handle is dropped and all present calls are done, or when the executor is shut down. If `share` is
        called within a call, the object is sent with its handle.

        Args:
            value: any object that cloudpickle can pickle; later changes of the object are not shared.

        Returns:
            A handle, which calls take as an argument or in a closure; its `value` is the object.

        Raises:
            CannotSend: the object cannot be pickled.
            OSError: there is not enough memory.
            RuntimeError: the executor is shut down.
        """
        self._check_process()
        buffers = dump_to_share(value)
        if self._inner is not None:
            return sharing.share_within_call(buffers)
        assert self._hub is not None
        with self._mutex:
            self._check_open()
            handle, mark, region = sharing.share(buffers)
            self._hub.share(mark, region)
        weakref.finalize(handle, _drop_shared, os.getpid(), self._hub, mark).atexit = False
        return handle

    # --- the interface of concurrent.futures.Executor -----------------------------------------------

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> CallFuture[_T]:
        """Call `fn(*args, **kwargs)` on a worker; later changes of the arguments have no effect.

        Args:
            fn: any callable that cloudpickle can pickle.
            *args: positional arguments.
            **kwargs: keyword arguments.

        Returns:
            The future of the call, whose `progress` is the call's last report of progress.

        Raises:
            CannotSend: `fn` or an argument cannot be pickled.
        """
        if self._inner is not None:
            called = self._initialized(fn)
            return self._submit_inner(self._inner, called, self._known(fn), args, kwargs)  # type: ignore[return-value]
        return self._submit(self._terms, self._pickled(fn), args, kwargs)

    def _submit(
        self, terms: Terms, function: Pickled, args: tuple[Any, ...], kwargs: dict[str, Any], retries: int = 0
    ) -> CallFuture[Any]:
        assert self._hub is not None
        future: CallFuture[Any] = CallFuture()
        try:
            call = snapshot_of_call(args, kwargs)
        except CannotSend as error:
            error.add_note(f"{function.name}({shown_arguments(args, kwargs)})")
            future.wants_outcome()
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
        progress: bool = False,
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
        progress: bool = False,
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
        progress: bool = False,
    ) -> MapResults[_T] | LazyResults[_T]:
        """Call `fn` with items of the iterables, which are read at once unless `buffersize` is given.

        Args:
            fn: any callable that cloudpickle can pickle.
            *iterables: the arguments: each call takes the next item of each iterable.
            timeout: seconds from now within which an awaited result must come.
            chunksize: number of calls that are sent together; None: chosen by the duration of the calls.
            buffersize: greatest number of calls under way; the iterables are read as results are taken.
            ordered: whether results come in the order of the calls, or as calls end.
            retries: how often a call that raises is repeated.
            on_error: "raise": raise the first exception and cancel the other calls; "collect": yield
                exceptions instead of the missing results. An exception's `__cause__` is the worker's
                traceback, and a note names the call.
            priority: the priority of the map's own job; None: the executor's priority.
            max_demand: the greatest number of workers of the map's own job; None: the executor's.
            time_limit: seconds that the map's job may have a PE; open calls then end with TimeLimit.
            cpu_limit: seconds of all PEs of the map's job, added up; open calls then end with TimeLimit.
            name: the name of the map's own job.
            progress: whether the iteration shows a bar of done calls, drawn by tqdm.

        Returns:
            An iterator over the results, which raises TimeoutError after `timeout`.

        Raises:
            CannotSend: `fn` or an argument cannot be pickled.
            ImportError: `progress` is true, and tqdm is not installed.
            TypeError: an argument has the wrong type.
            ValueError: an argument is out of range.
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
            how["bar"] = progress_bar(progress, None, "call")
            if given:
                terms = terms._replace(map=uuid.uuid4().hex)
            submit = self._one_by_one(fn, terms, retries)
            if given and self._hub is not None:
                ended = weakref.finalize(submit, self._hub.end_lane, terms)
                ended.atexit = False
            return LazyResults(submit, zip(*iterables, strict=False), buffersize, **how)
        items = list(zip(*iterables, strict=False))
        how["bar"] = progress_bar(progress, len(items), "call")
        if self._inner is not None:
            submit = self._one_by_one(fn, terms, retries)
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
        """Hand in all calls of a map. `begin` is `Hub.map`, `how` holds the arguments of `MapResults`."""
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
    ) -> Callable[[tuple[Any, ...]], concurrent.futures.Future[_T]]:
        """Return a function that submits one call of a map."""
        if (inner := self._inner) is not None:
            wanted = _Retried(fn, retries) if retries else fn
            called, known = self._initialized(wanted), self._known(wanted)
            return lambda item: self._submit_inner(inner, called, known, item, {})
        function = self._pickled(fn)

        def submit(item: tuple[Any, ...], _keeping: object = fn) -> CallFuture[_T]:
            """Submit a call; `_keeping` keeps alive the shared objects to which `fn` refers."""
            return self._submit(terms, function, item, {}, retries)

        return submit

    def _known(self, fn: Callable[..., Any]) -> Pickled | None:
        """Return the pickle of a function in its present state; None if it cannot be pickled."""
        with suppress(CannotSend):
            return self._pickled(fn)
        return None

    def _pickled(self, fn: Callable[..., Any]) -> Pickled:
        """Pickle a function. Raises CannotSend."""
        if self._initializer is None or not callable(fn):
            return _pickled(fn)
        name = name_of(fn)
        return Pickled(dump(self._initialized(fn), f"the function {name}"), name, is_kept(fn))

    def _initialized(self, fn: Callable[..., _T]) -> Callable[..., _T]:
        """Return a function that calls the initializer, if there is one, before `fn`."""
        return fn if self._initializer is None else Initialized(self._mark, self._initializer, fn)

    def interrupt(self) -> None:
        """End all open calls, also running ones, with CancelledError; further calls are still taken."""
        self._check_process()
        if self._hub is not None:
            self._hub.cancel_all()
        _cancel_all(tuple(self._inner_futures))

    def __exit__(self, exc_type: type[BaseException] | None, *further: object) -> None:
        """Shut down when all calls are done; Ctrl-C ends the calls."""
        if exc_type is not None and issubclass(exc_type, KeyboardInterrupt):
            self.interrupt()
        self.shutdown()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further calls; the executor ends when all calls are done.

        Args:
            wait: whether to return only when the executor has ended; ignored in a callback of a call, which
                would wait for itself.
            cancel_futures: whether to cancel the calls that no worker has begun.
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
    """End the ranks once all calls are done."""
    hub.join()
    if ranks is not None:
        ranks.stop()


def _drop(process: int, hub: Hub, ranks: OwnRanks | None) -> None:
    """End the thread and the ranks of a dropped executor once all calls are done."""
    if os.getpid() != process:
        return
    hub.close()
    if ranks is not None:
        try:
            threading.Thread(target=_end, args=(hub, ranks), name="mallob-py-executor").start()
        except RuntimeError:  # the interpreter is shutting down
            ranks.stop()


def _drop_shared(process: int, hub: Hub, mark: str) -> None:
    if os.getpid() == process:
        hub.drop_shared(mark)


def _lose_ranks(hub: Hub, last_words: Callable[[], str], _: object) -> None:
    """End open calls with an error, since the ranks have ended; if the executor ended them, none is open."""
    why = f"the executor's ranks have ended: {last_words()}"
    hub.break_off(lambda call: ServiceError(f"{why}; not done: {call}"))


def _has_other_hosts(client: Client) -> bool:
    try:
        hosts = client.status().hosts
    except Exception:
        return False  # the service has just started, or is restarting
    return any(host.name not in ("", socket.gethostname()) for host in hosts)


def _trusted(service_user: int, trust: str) -> int:
    """Return `service_user`. Raises ServiceError unless it is the present user or is trusted."""
    if service_user == os.geteuid():
        return service_user
    name = user_name(service_user)
    if trust in (name, str(service_user)):
        return service_user
    raise ServiceError(
        f"the service is run by {name}, whose answers can run code with your rights; if you trust {name},"
        f" and all users who may hand in code there, use Executor(..., trust={name!r})"
    )


def report_progress(done: float, total: float | None = None) -> None:
    """Report, within a call, how much of the call is done; outside of calls, do nothing.

    Args:
        done: the amount that is done, in any unit; shown by `CallFuture.progress`.
        total: the whole amount, in the same unit; None: unknown.
    """
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
            raise ValueError(f"{name} must be a number of seconds above 0, not {value}")
    if terms.priority <= 0:
        raise ValueError(f"priority must be a number above 0, not {terms.priority}")
    if terms.max_demand < 0:
        raise ValueError(f"max_demand must be 0 (no bound) or a number of workers, not {terms.max_demand}")
    return terms


def _check_map(on_error: str, chunksize: int | None, buffersize: int | None, retries: int) -> None:
    if on_error not in _ON_ERROR:
        raise ValueError(f"on_error must be one of {', '.join(_ON_ERROR)}, not {on_error!r}")
    if chunksize is not None and chunksize < 1:
        raise ValueError(f"chunksize must be None or a number above 0, not {chunksize}")
    if buffersize is not None and not isinstance(buffersize, int):
        raise TypeError("buffersize must be an integer or None")
    if buffersize is not None and buffersize < 1:
        raise ValueError("buffersize must be None or > 0")
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, not {retries}")


def _pickled(fn: Callable[..., Any]) -> Pickled:
    """Pickle a function. Raises CannotSend."""
    is_by_name = isinstance(fn, types.FunctionType) or (
        isinstance(fn, types.BuiltinFunctionType) and isinstance(fn.__self__, types.ModuleType)
    )
    if is_by_name and (known := _known_by_name.get(fn)) is not None:
        return known
    found = pickled(fn)
    if is_by_name and b"cloudpickle" not in found.buffers[0]:  # a function sent by value may change
        _known_by_name[fn] = found
    return found


def _hand_in(calls: MapCalls, items: list[tuple[Any, ...]], name: str) -> None:
    """Pickle the arguments of a map's calls in their present state, and hand the calls in."""
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
    """Run a map within a call: each call of the map is submitted separately."""
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
    """A function that is called up to `retries` more times, with the original arguments, if it raises."""

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


__all__ = ["CallProgress", "Executor", "LazyResults", "MapResults", "Shared", "report_progress"]
