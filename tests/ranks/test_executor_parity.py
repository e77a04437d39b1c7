"""An executor behaves as the standard library's executors: cancelling, initializers, lazy input, forks,
callbacks.
"""

import asyncio
import contextlib
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future, as_completed, wait
from pathlib import Path
from typing import Any

import called
import pytest
from running import Running, needs_mpiexec, poll_until, serving
from waiting import DEADLINE_S

from mallob_py import Executor
from mallob_py.api.calls.lane import Lane

pytestmark = needs_mpiexec


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), "--preload", "CALLS", ranks=2) as running:
        yield running


# --- maps that are left early ---------------------------------------------------------------------------


def _leave_by_exception(results: Any) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        for _ in results:
            raise KeyboardInterrupt


def _leave_in_the_loop(results: Any) -> None:
    for _ in results:
        break


LEAVING: dict[str, Callable[[Any], None]] = {
    "exception": _leave_by_exception,
    "break": _leave_in_the_loop,
    "next": lambda results: print(next(results)),
    "close": lambda results: results.close(),
    "cancel": lambda results: results.cancel(),
    "cancel of its future": lambda results: print(results.future().cancel()),
}


#: (way of leaving a map, arguments of the map); a lazy map has no `future`
LEFT: list[tuple[str, dict[str, Any]]] = [
    (way, more)
    for way in LEAVING
    for more in ({}, {"ordered": False}, {"buffersize": 3})
    if not ("future" in way and "buffersize" in more)
]


@pytest.mark.parametrize(("way", "more"), LEFT)
def test_a_map_that_is_left_begins_nothing_more_and_gives_its_workers_back(
    way: str, more: dict[str, Any], executor: Executor, tmp_path: Path
) -> None:
    paths = [str(tmp_path / str(call)) for call in range(60)]
    (tmp_path / "go").touch()
    goes = [str(tmp_path / "go"), *[str(tmp_path / "never")] * 59]
    LEAVING[way](executor.map(called.touch_and_wait, paths, goes, **more))
    # Even if both workers run calls that never end, one more call must be done.
    assert executor.submit(abs, -4).result(DEADLINE_S) == 4
    assert len(list(tmp_path.iterdir())) < 20


def test_a_map_that_nobody_has_begun_to_take_is_done(executor: Executor, tmp_path: Path) -> None:
    executor.map(called.append_and_nap, [str(tmp_path)] * 20, range(20))
    gc.collect()
    poll_until(lambda: len(list(tmp_path.iterdir())) == 20, "all calls")


def test_a_call_that_will_not_be_stopped_ends_with_its_worker(service: Running, tmp_path: Path) -> None:
    with Executor(service.api_dir, max_workers=1) as executor:
        results = executor.map(called.will_not_be_stopped, [str(tmp_path / "begun")])
        poll_until((tmp_path / "begun").exists, "the call")
        results.close()
        assert executor.submit(abs, -4).result(DEADLINE_S) == 4


def test_calls_whose_results_are_wanted_are_not_stopped_with_others(
    executor: Executor, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    wanted = executor.submit(called.touch_and_wait, str(tmp_path / "wanted"), str(go))
    results = executor.map(called.naps_long, [str(tmp_path / "unwanted")], buffersize=1)
    for name in ("wanted", "unwanted"):
        poll_until((tmp_path / name).exists, name)
    results.close()
    assert executor.submit(abs, -4).result(DEADLINE_S) == 4  # runs on the worker whose call was stopped
    go.touch()
    assert wanted.result(DEADLINE_S) == str(tmp_path / "wanted")


def test_futures_that_shutdown_cancels_are_cancelled(service: Running, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    executor = Executor(service.api_dir, max_workers=1)
    running = executor.submit(called.touch_and_wait, str(tmp_path / "begun"), go)
    poll_until((tmp_path / "begun").exists, "the first call")
    waiting = [executor.submit(abs, each) for each in range(5)]
    executor.shutdown(wait=False, cancel_futures=True)
    assert wait(waiting, DEADLINE_S).done == set(waiting)
    assert all(future.cancelled() for future in waiting)
    with pytest.raises(CancelledError):
        waiting[0].result()
    Path(go).touch()
    assert running.result(DEADLINE_S) == str(tmp_path / "begun")
    executor.shutdown()


def test_a_running_call_that_is_cancelled_gives_its_worker_back(service: Running, tmp_path: Path) -> None:
    with Executor(service.api_dir, max_workers=1) as executor:
        running = executor.submit(called.naps_long, str(tmp_path / "begun"))
        poll_until((tmp_path / "begun").exists, "the call")
        assert running.running()
        assert repr(running) == "<CallFuture running>"
        assert running.cancel()
        assert running.cancelled()
        assert not running.running()
        assert repr(running) == "<CallFuture cancelled>"
        assert wait([running], DEADLINE_S).done == {running}
        assert executor.submit(abs, -4).result(DEADLINE_S) == 4


def test_a_call_awaited_in_a_task_ends_with_the_task(service: Running, tmp_path: Path) -> None:
    async def times_out(executor: Executor) -> None:
        call = asyncio.wrap_future(executor.submit(called.naps_long, str(tmp_path / "begun")))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0)

    with Executor(service.api_dir, max_workers=1) as executor:
        asyncio.run(times_out(executor))
        assert executor.submit(abs, -4).result(DEADLINE_S) == 4


def test_an_executor_that_is_interrupted_ends_its_calls_and_takes_others(
    executor: Executor, tmp_path: Path
) -> None:
    calls = [executor.submit(called.naps_long, str(tmp_path / str(call))) for call in range(4)]
    results = executor.map(called.naps_long, [str(tmp_path / str(call)) for call in range(4, 8)])
    poll_until(lambda: any(tmp_path.iterdir()), "a call")
    executor.interrupt()
    assert wait(calls, DEADLINE_S).done == set(calls)
    assert all(call.cancelled() for call in calls)
    with pytest.raises(CancelledError):
        next(results)
    assert executor.submit(abs, -4).result(DEADLINE_S) == 4


def test_an_interrupt_ends_the_calls_of_an_executor_that_is_left(service: Running, tmp_path: Path) -> None:
    def is_interrupted() -> None:
        with Executor(service.api_dir) as executor:
            executor.submit(called.naps_long, str(tmp_path / "begun"))
            poll_until((tmp_path / "begun").exists, "the call")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        is_interrupted()


# --- parameters ------------------------------------------------------------------------------------------


def test_max_workers_is_the_bound_of_workers(service: Running) -> None:
    with Executor(service.api_dir, max_workers=1) as executor:
        assert executor.workers == 1
        assert len(set(executor.map(called.whose, range(10)))) == 1
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            Executor(service.api_dir, max_workers=wrong)
    with pytest.raises(ValueError, match="give one of them"):
        Executor(service.api_dir, max_workers=1, max_demand=2)


def test_an_initializer_is_called_once_in_each_worker(service: Running, tmp_path: Path) -> None:
    with Executor(service.api_dir, initializer=called.starts, initargs=(str(tmp_path), "good")) as executor:
        assert set(executor.map(called.started_as, range(100))) == {"good"}
        assert executor.submit(called.started_as, 0).result(DEADLINE_S) == "good"
        assert all(path.suffix == ".good" and path.read_text() == "x" for path in tmp_path.iterdir())
        outer, inner = executor.submit(called.started_within, str(tmp_path)).result(DEADLINE_S)
        assert (outer, inner) == ("inner", ["inner"] * 4)
    with pytest.raises(TypeError, match="initializer must be a callable"):
        Executor(service.api_dir, initializer=3)  # type: ignore[arg-type]


def test_an_initializer_that_raises_breaks_the_executor(service: Running, tmp_path: Path) -> None:
    with Executor(service.api_dir, initializer=called.starts, initargs=(str(tmp_path), "bad")) as executor:
        for error in (executor.submit(abs, -1).exception(DEADLINE_S) for _ in range(3)):
            assert isinstance(error, BrokenExecutor)
            assert "ValueError: cannot start" in str(error)
        with pytest.raises(BrokenExecutor):
            list(executor.map(abs, range(3)))


def test_a_map_with_a_buffersize_leaves_no_lane(executor: Executor) -> None:
    def lanes() -> int:
        gc.collect()
        return sum(type(one) is Lane and bool(one.terms.map) for one in gc.get_objects())

    for _ in range(6):
        assert list(executor.map(abs, range(-3, 0), buffersize=2, priority=2.0)) == [3, 2, 1]
    poll_until(lambda: lanes() < 4)  # the last jobs keep their lanes


@pytest.mark.parametrize("ordered", [True, False])
def test_a_map_with_a_buffersize_reads_as_results_are_taken(ordered: bool, executor: Executor) -> None:
    numbers = itertools.count()
    results = executor.map(pow, numbers, itertools.repeat(2), buffersize=4, ordered=ordered)
    assert next(numbers) == 4
    first = [next(results) for _ in range(10)]
    assert next(numbers) == 15
    assert set(first) <= {number**2 for number in range(15)}
    assert not ordered or first == [number**2 for number in range(11) if number != 4]
    results.close()
    assert list(results) == []
    assert list(executor.map(abs, range(-3, 0), buffersize=10)) == [3, 2, 1]
    assert list(executor.map(abs, [], buffersize=1)) == []
    with pytest.raises(ZeroDivisionError):
        list(executor.map(divmod, itertools.repeat(1), itertools.count(-3), buffersize=2))
    with pytest.raises(TimeoutError):
        list(executor.map(time.sleep, itertools.repeat(60), buffersize=1, timeout=0.01))
    with pytest.raises(TypeError, match="buffersize must be an integer or None"):
        executor.map(abs, [1], buffersize=1.5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="buffersize must be None or > 0"):
        executor.map(abs, [1], buffersize=0)


def test_an_input_that_raises_while_it_is_read_lazily_ends_the_map(executor: Executor) -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)
        raise OSError("no more to be read")

    results = executor.map(abs, numbers(), buffersize=2)
    with pytest.raises(OSError, match="no more"):
        list(results)


def test_what_it_is_can_be_seen(service: Running) -> None:
    with Executor(service.api_dir) as executor:
        assert repr(executor) == f"<Executor on {str(service.api_dir)!r}, 0 calls left>"
        results = executor.map(abs, range(3))
        assert list(results) == [0, 1, 2]
        assert repr(results) == "<MapResults 3 of 3 calls done>"
        assert repr(executor.map(abs, [], buffersize=1)) == "<LazyResults 0 calls done, 0 under way>"
    assert repr(executor).endswith("0 calls left, shut down>")


# --- forks, ends, threads ---------------------------------------------------------------------------------


def _in_a_fork(do: Callable[[], object]) -> str:
    read_end, write_end = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            said = repr(do())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


def test_an_executor_is_of_no_use_in_a_fork(executor: Executor, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    pending = executor.submit(called.touch_and_wait, str(tmp_path / "begun"), go)
    results = executor.map(called.touch_and_wait, [str(tmp_path / "other")], [go])
    lazy = executor.map(called.touch_and_wait, [str(tmp_path / "third")], [go], buffersize=1)
    deeds: list[Callable[[], object]] = [
        lambda: executor.submit(abs, 1),
        lambda: executor.map(abs, [1]),
        lambda: executor.map(abs, [1], buffersize=1),
        pending.result,
        pending.exception,
        lambda: next(results),
        lambda: next(lazy),
    ]
    for do in deeds:
        assert "RuntimeError: executors, clients and their futures cannot be used in a fork" in _in_a_fork(do)
    assert _in_a_fork(executor.shutdown) == "None"
    Path(go).touch()
    assert pending.result(DEADLINE_S) == str(tmp_path / "begun")
    assert [*results, *lazy] == [str(tmp_path / "other"), str(tmp_path / "third")]


def test_an_executor_that_is_dropped_ends_its_ranks_when_its_calls_are_done() -> None:
    def children() -> set[str]:
        tasks = Path("/proc/self/task").glob("*/children")
        return {pid for path in tasks for pid in path.read_text().split()}

    before = children()
    executor = Executor(ranks=1)
    (started,) = children() - before
    futures = [executor.submit(called.whose, 0) for _ in range(20)]
    del executor
    gc.collect()
    assert all(future.result(DEADLINE_S) for future in futures)
    poll_until(lambda: started not in children(), "the end of the ranks")


@pytest.mark.parametrize("how", ["SIGSTOP", "SIGTERM", "SIGKILL", "SIGUSR2", "SIGHUP", "exit", "close"])
def test_a_call_that_stops_its_own_worker_does_not_stop_the_pool(
    how: str, executor: Executor, tmp_path: Path
) -> None:
    paths = [str(tmp_path / str(call)) for call in range(3)]
    stopping = executor.map(called.ends_its_worker, [how] * 3, paths, on_error="collect")
    assert list(executor.map(abs, range(50))) == list(range(50))
    assert len(list(stopping)) == 3
    assert executor.submit(abs, -4).result(DEADLINE_S) == 4


#: methods that may wait or submit calls, each with the result that it must return
DEEDS: dict[str, tuple[Callable[[Executor, Future[Any]], object], object]] = {
    "submit": (lambda executor, _: executor.submit(abs, -1).result(DEADLINE_S), 1),
    "exception": (lambda executor, _: executor.submit(abs, -1).exception(DEADLINE_S), None),
    "map": (lambda executor, _: list(executor.map(abs, range(100))), [*range(100)]),
    "map as it comes": (lambda executor, _: sorted(executor.map(abs, range(9), ordered=False)), [*range(9)]),
    "lazy map": (lambda executor, _: list(executor.map(abs, range(10), buffersize=2)), [*range(10)]),
    "map with terms": (lambda executor, _: list(executor.map(abs, range(10), max_demand=1)), [*range(10)]),
    "map's future": (lambda executor, _: executor.map(abs, [-1]).future().result(DEADLINE_S), [1]),
    "map's close": (lambda executor, _: executor.map(abs, range(10)).close(), None),
    "wait": (lambda executor, _: len(wait([executor.submit(abs, -1)], DEADLINE_S).done), 1),
    "as_completed": (lambda executor, _: len([*as_completed([executor.submit(abs, -1)])]), 1),
    "other": (lambda _, other: other.result(DEADLINE_S) > 0, True),
    "workers": (lambda executor, _: executor.workers, 2),
    "repr": (lambda executor, _: repr(executor)[:13], "<Executor on "),
    "another": (lambda executor, _: _another(executor), 1),
    "shutdown": (lambda executor, _: executor.shutdown(), None),
    "shutdown, cancelling": (lambda executor, _: executor.shutdown(cancel_futures=True), None),
    "with": (lambda executor, _: executor.__exit__(None, None, None), None),
    "exception of its own": (lambda executor, _: 1 / 0, ZeroDivisionError),
    "exit": (lambda executor, _: exit(3), SystemExit),
}


def _another(executor: Executor) -> object:
    with Executor(repr(executor).split("'")[1]) as another:
        return another.submit(abs, -1).result(DEADLINE_S)


@pytest.mark.parametrize("deed", DEEDS)
def test_a_callback_may_use_every_method(deed: str, service: Running) -> None:
    do, right = DEEDS[deed]
    results: list[object] = []
    with Executor(service.api_dir) as executor:
        others = [executor.submit(called.whose, 0) for _ in range(6)]
        done = threading.Event()

        def callback(_: object) -> None:
            try:
                results.append(do(executor, others[-1]))
            except BaseException as error:
                results.append(type(error))
                raise
            finally:
                done.set()

        others[0].add_done_callback(callback)
        assert done.wait(DEADLINE_S)
        wait(others, DEADLINE_S)
        assert all(future.done() for future in others)
    assert results == [right]


def test_a_callback_of_a_nested_call_may_wait(executor: Executor) -> None:
    assert executor.submit(called.waits_within).result(DEADLINE_S) == [1, [2], "shut down"]
