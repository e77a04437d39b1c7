"""Objects on their way to calls and back: each call has its own copies, and an odd object harms no other
call.
"""

import asyncio
import copy
import json
import random
import stat
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import called
import numpy as np
import pytest
from running import Running, needs_mpiexec, poll_until, serving
from waiting import DEADLINE_S

from mallob_py import Executor
from mallob_py.kit.calls.values import CallError, CannotSend, RemoteTraceback

pytestmark = needs_mpiexec
CALLS = 60
#: kind of object -> function that makes an object, which a call then changes
THINGS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"mode": "fast", "other": 1},
    "list": lambda: [1, 2, 3],
    "set": lambda: {1, 2},
    "deque": lambda: deque([1]),
    "bytearray": lambda: bytearray(b"abc"),
    "small array": lambda: np.zeros(10),
    "large array": lambda: np.zeros(5000),
    "strided array": lambda: np.zeros(20000)[::2],
    "read-only view": lambda: np.zeros(5000)[:4000],
    "list in a tuple": lambda: ([1], 2),
    "numpy's generator": lambda: np.random.default_rng(1),
    "random's generator": lambda: random.Random(1),
    "object": called.Counter,
    "iterator": lambda: iter(range(5)),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), "--preload", "CALLS", ranks=2) as running:
        yield running


@pytest.fixture(scope="module")
def executor(service: Running) -> Iterator[Executor]:
    with Executor(service.api_dir) as one:
        yield one


def _results(futures: list[Future[Any]]) -> list[Any]:
    return [future.result(DEADLINE_S) for future in futures]


@pytest.mark.parametrize("kind", THINGS)
def test_each_call_has_its_arguments_to_itself(kind: str, executor: Executor) -> None:
    thing = THINGS[kind]()
    right = [called.changed(copy.deepcopy(thing))] * CALLS
    assert list(executor.map(called.changed, [thing] * CALLS)) == right
    assert list(executor.map(called.changed, [thing] * CALLS, chunksize=20)) == right
    assert list(executor.map(called.changed, [thing] * CALLS, buffersize=5)) == right
    assert _results([executor.submit(called.changed, thing) for _ in range(CALLS)]) == right
    assert _results([executor.submit(called.changed, thing=thing) for _ in range(CALLS)]) == right
    assert executor.submit(called.changed_within, thing, 10).result() == (right[:10], right[:10])


@pytest.mark.parametrize("size", [10, 5000])
def test_a_call_gets_its_arguments_as_they_were_when_it_was_handed_in(size: int, executor: Executor) -> None:
    array = np.zeros(size)
    futures = []
    for number in range(CALLS):
        array[:] = number
        futures.append(executor.submit(called.changed, array))
    assert _results(futures) == [(number + 1.0, number + 1.0) for number in range(CALLS)]
    arrays = [np.full(size, number) for number in range(CALLS)]
    results = executor.map(called.changed, arrays)
    for one in arrays:
        one[:] = -1
    assert list(results) == [(number + 1.0, number + 1.0) for number in range(CALLS)]


def test_a_result_is_what_it_was_when_its_call_returned(executor: Executor) -> None:
    futures = [executor.submit(called.filled, number) for number in range(CALLS)]
    for results in (_results(futures), list(executor.map(called.filled, range(CALLS)))):
        for number, (small, large, items) in enumerate(results):
            assert (small[0], small[-1], large[0], large[-1]) == (number,) * 4
            assert items == [number]


def test_what_a_function_holds_is_each_calls_own(executor: Executor) -> None:
    counter, items = called.Counter(), [1]
    array = np.zeros(5000)

    def grow(_: object = None, default: list[int] = [], *, held: list[int] = items) -> int:  # noqa: B006
        default.append(1)
        items.append(1)
        return len(default) + len(items) + len(held)

    functions: list[tuple[Callable[[], Any], Any]] = [
        (counter.bump, 1),
        (counter, 1),
        (partial(counter.bump, 2), 2),
        (partial(called.changed, items), 2),
        (partial(called.changed, array), (1.0, 1.0)),
        (partial(partial(called.changed), thing=([1],)), 2),
        (grow, 5),
        ([3, 4].pop, 4),
    ]
    for function, right in functions:
        assert _results([executor.submit(function) for _ in range(CALLS)]) == [right] * CALLS
        got = list(executor.map(lambda _, function=function: function(), range(CALLS)))
        assert got == [right] * CALLS
    assert (counter.count, items, array[0]) == (0, [1], 0.0)


def test_joblib_s_calls_have_their_objects_to_themselves(executor: Executor) -> None:
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    from mallob_py import register_joblib_backend

    register_joblib_backend()
    items = [1, 2, 3]
    with joblib.parallel_config(backend="mallob", executor=executor):
        for batch_size in ("auto", 8):
            parallel = joblib.Parallel(n_jobs=2, batch_size=batch_size)
            lengths = parallel(joblib.delayed(called.changed)(items) for _ in range(CALLS))
            assert lengths == [4] * CALLS
            filled = parallel(joblib.delayed(called.filled)(number) for number in range(CALLS))
            assert [(small[0], large[0]) for small, large, _ in filled] == [(n, n) for n in range(CALLS)]


def test_each_try_gets_the_arguments_as_they_were(executor: Executor, tmp_path: Path) -> None:
    paths, items = [str(tmp_path / "a"), str(tmp_path / "b")], [[1], [1, 2]]
    assert list(executor.map(called.adds_until_third_try, paths, items, retries=2)) == [2, 3]
    lazily = [str(tmp_path / "c"), str(tmp_path / "d")]
    assert list(executor.map(called.adds_until_third_try, lazily, items, retries=2, buffersize=1)) == [2, 3]


# --- unusual objects ------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"ordered": False}, {"buffersize": 2}])
def test_a_call_that_raises_stop_iteration_does_not_end_a_map_silently(
    more: dict[str, Any], executor: Executor
) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(executor.map(called.first_below, range(5), [2] * 5, **more))
    collected = list(executor.map(called.first_below, range(5), [2] * 5, on_error="collect", **more))
    assert sorted(type(each).__name__ for each in collected) == ["RuntimeError"] * 3 + ["int"] * 2


def test_stop_iteration_ends_no_nested_map_and_no_await(executor: Executor) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        executor.submit(called.map_that_stops).result(DEADLINE_S)

    async def ask() -> None:
        await asyncio.wait_for(asyncio.wrap_future(executor.submit(called.first_below, 3, 2)), DEADLINE_S)

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(ask())


@pytest.mark.parametrize("kind", called.EXCEPTIONS)
def test_an_odd_exception_is_its_call_s_alone(kind: str, executor: Executor) -> None:
    error = executor.submit(called.raises, kind).exception(DEADLINE_S)
    assert executor.submit(abs, -4).result(DEADLINE_S) == 4
    others: dict[str, type[BaseException]] = {
        "stop": RuntimeError,
        "not shown": CallError,
        "holds a lock": CallError,
    }
    assert type(error) is others.get(kind, type(called.EXCEPTIONS[kind]()))
    assert kind in others or isinstance(error.__cause__, RemoteTraceback)
    if isinstance(error, called.TwoArguments):
        assert (error.code, str(error), error.args) == (7, "7: seven", ("7: seven",))
    outcomes = list(executor.map(called.raises, [kind] * 2, on_error="collect"))
    assert [type(each) for each in outcomes] == [type(error)] * 2


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_value_that_cannot_be_pickled_or_read_is_its_call_s_alone(where: str, executor: Executor) -> None:
    wrong = CannotSend | CallError
    futures = [executor.submit(called.gives_odd, where), executor.submit(repr, called.Odd(where))]
    for future in futures:
        assert isinstance(future.exception(DEADLINE_S), wrong)
    outcomes = list(executor.map(repr, [1, called.Odd(where), 3], on_error="collect"))
    assert isinstance(outcomes.pop(1), wrong)
    assert outcomes == ["1", "3"]
    assert executor.submit(abs, -4).result(DEADLINE_S) == 4


def test_a_future_that_somebody_else_ends_costs_no_other_call(executor: Executor) -> None:
    futures = [executor.submit(called.whose, 0) for _ in range(10)]
    for future in futures[3:]:
        future.set_exception(ValueError("mine"))
    assert all(isinstance(future.exception(DEADLINE_S), ValueError) for future in futures[3:])
    assert executor.submit(abs, -4).result(DEADLINE_S) == 4


def test_the_key_of_an_executor_is_in_no_file_that_others_can_read(
    service: Running, executor: Executor
) -> None:
    keys: set[str] = set()
    modes: dict[str, int] = {}

    def look() -> bool:
        """Read the job files, before and after they are taken in, and the replies."""
        for path in service.api_dir.rglob("*.json"):
            with suppress(OSError, ValueError):
                content = json.loads(path.read_text())
                if (secret := content.get("configuration", {}).get("secret")) is not None:
                    keys.add(secret)
                modes[path.read_text()] = stat.S_IMODE(path.stat().st_mode)
        return bool(keys)

    running = executor.submit(called.whose, 0)
    poll_until(lambda: look() or running.done(), "the job's file")
    list(executor.map(called.whose, [0], max_demand=1))  # the map has a job of its own, which ends at once
    poll_until(lambda: any((service.box() / "out").iterdir()), "a reply")
    look()
    (key,) = keys
    assert len(key) == 64
    assert {mode for content, mode in modes.items() if key in content} == {0o600}
    assert any('"CALLS"' in content and "result" in content for content in modes)
