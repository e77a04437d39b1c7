"""Sinks of outcomes: futures of single calls, the results of a map."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from concurrent.futures import Future
from typing import Any

from waiting import DEADLINE_S, poll_until

from mallob_py.api.calls.sinks import CallFuture, FutureSink, MapResults
from mallob_py.api.shown import NO_BAR
from mallob_py.kit.calls.delivering import Deliverer


def test_the_future_of_a_cancelled_map_ends_a_wait() -> None:
    cancelled: list[str] = []
    results: MapResults[Any] = MapResults(
        2,
        is_ordered=True,
        is_collecting=False,
        deadline_s=None,
        cancel=lambda: cancelled.append("all"),
        bar=NO_BAR,
    )
    future = results.future()
    assert future.cancel()
    assert concurrent.futures.wait([future], 1).done == {future}
    assert list(concurrent.futures.as_completed([future], DEADLINE_S)) == [future]
    assert cancelled == ["all"]
    results.sink.deliver([0, 1], [True, True], [0, 1])
    assert future.cancelled()


def test_a_callback_may_wait_for_another_call_of_its_batch() -> None:
    deliverer = Deliverer("test")
    sink = FutureSink(print, deliverer.put)
    futures: list[CallFuture[int]] = [CallFuture() for _ in range(3)]
    for future in futures:
        sink.add(future)
    heard: Future[list[int]] = Future()
    rung = threading.Event()

    def wait_for_the_others(_: object) -> None:
        heard.set_result([future.result(DEADLINE_S) for future in futures if rung.wait(DEADLINE_S)])

    futures[0].add_done_callback(wait_for_the_others)
    futures[1].add_done_callback(lambda _: rung.set())
    deliverer.put(lambda: sink.deliver([0, 1, 2], [True] * 3, [0, 1, 2]))
    poll_until(lambda: deliverer.look(time.monotonic()) is None and heard.done())
    assert heard.result() == [0, 1, 2]
    deliverer.close()
