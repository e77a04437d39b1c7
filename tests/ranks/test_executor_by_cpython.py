"""CPython's own tests of executors, run with this project's executor. Not every package of CPython has
them.
"""

from __future__ import annotations

import os
import time
import unittest
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from running import needs_mpiexec, poll_until, serving

from mallob_py import Executor

pytest.importorskip(
    "test.test_concurrent_futures.executor", reason="CPython's package `test` is not installed"
)

from test.test_concurrent_futures.executor import ExecutorTest
from test.test_concurrent_futures.test_as_completed import AsCompletedTests
from test.test_concurrent_futures.test_shutdown import ExecutorShutdownTest
from test.test_concurrent_futures.test_wait import WaitTests

pytestmark = [needs_mpiexec, pytest.mark.slow]

#: CPython's tests that an `Executor` need not pass -> the reason
EXCUSED = {
    "test_interpreter_shutdown": "starts an executor by its name in `concurrent.futures`",
    "test_submit_after_interpreter_shutdown": "the same",
    "test_hang_gh83386": "the same",
    "test_map_timeout": "takes five seconds; tests/ranks/test_executor.py has one that takes 0.1 s",
    "test_cancel_futures": "wants some of 50 calls to have begun at once; ours begin with a job",
}


class _OurExecutor(Executor):
    """An executor on the module's service, which has fewer than `worker_count` workers."""

    api_dir: ClassVar[Any] = None

    def __init__(self, max_workers: int | None = None) -> None:
        super().__init__(self.api_dir, max_workers=max_workers)


class _Ours(unittest.TestCase):
    executor_type = _OurExecutor
    worker_count = 5
    #: whether the tests compare times of calls that must run at once
    needs_workers = False

    def setUp(self) -> None:
        self.t1 = time.monotonic()
        self.executor = self.executor_type(max_workers=self.worker_count)
        if self.needs_workers:
            nap = lambda _: (time.sleep(0.05), os.getpid())[1]  # noqa: E731 (a lambda travels by value)
            poll_until(lambda: len(set(self.executor.map(nap, range(8)))) >= 3)

    def tearDown(self) -> None:
        self.executor.shutdown(wait=True)


@pytest.fixture(scope="module", autouse=True)
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with serving(tmp_path_factory.mktemp("service"), "--preload", "CALLS", ranks=4) as running:
        _OurExecutor.api_dir = running.api_dir
        yield


def _excusing(tests: type) -> type:
    return type(tests.__name__, (tests,), dict.fromkeys(set(dir(tests)) & EXCUSED.keys()))


class TestExecutor(_excusing(ExecutorTest), _Ours):  # type: ignore[misc]
    """CPython's tests of `submit`, `map` and references."""


class TestAsCompleted(_excusing(AsCompletedTests), _Ours):  # type: ignore[misc]
    """CPython's tests of `as_completed`."""


class TestWait(_excusing(WaitTests), _Ours):  # type: ignore[misc]
    """CPython's tests of `wait`."""

    needs_workers = True


class TestShutdown(_excusing(ExecutorShutdownTest), _Ours):  # type: ignore[misc]
    """CPython's tests of `shutdown`."""


def test_what_is_excused_is_there() -> None:
    tests = {
        name
        for each in (ExecutorTest, AsCompletedTests, WaitTests, ExecutorShutdownTest)
        for name in dir(each)
    }
    assert EXCUSED.keys() <= tests
