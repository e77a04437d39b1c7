"""Rules for all tests: tests can be interrupted, have a deadline, and leave no process behind."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.processes import command_line, processes_with
from hypothesis import settings
from known_skips import STEP_VARIABLE, unexcused
from running import kill_processes
from waiting import TEST_DEADLINE_S

#: variable in the environment of all processes that the tests start
_SESSION = "MALLOB_PY_TEST_SESSION"
_FOUNDED = pytest.StashKey[str]()


# The duration of an example depends more on the machine than on the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    # A process in the background of a script ignores SIGINT, and so would all processes of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _SESSION not in os.environ:  # otherwise another process has begun this session of tests
        os.environ[_SESSION] = config.stash[_FOUNDED] = uuid.uuid4().hex


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("timeout") is not None:
        return
    for item in items:
        item.add_marker(pytest.mark.timeout(TEST_DEADLINE_S))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a step of CI that has skipped a test which no other step runs and the machine does not excuse."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if (step := os.environ.get(STEP_VARIABLE)) is None or reporter is None:
        return
    reasons = [each.longrepr[2] for each in reporter.stats.get("skipped", ()) if type(each.longrepr) is tuple]
    if found := unexcused(reasons, step):
        print(f"\nskipped, and not excused in tests/skips.txt for {step}:", *found, sep="\n    ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Kill the processes that the tests have left behind. Called even after a test without end."""
    if (session := config.stash.get(_FOUNDED, None)) is None:
        return
    left = [f"{pid} {command_line(pid)}" for pid in processes_with(_SESSION, session) if pid != os.getpid()]
    if left:
        print("left behind by the tests, and killed:", *left, sep="\n    ")
        kill_processes(_SESSION, session)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Any]:
    """Yield the folder of a client, from the service's side."""
    from mallob_py.service.store.directory import JobDirectory

    opened = JobDirectory(tmp_path / "api", tmp_dir=tmp_path)
    yield opened
    opened.close()
