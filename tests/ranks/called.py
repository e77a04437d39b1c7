"""Functions that tests have called in workers, which import them from here."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from mallob_py import Executor, report_progress


def whose(_: object) -> int:
    time.sleep(0.02)
    return os.getpid()


def is_main_thread(_: object) -> bool:
    return threading.current_thread() is threading.main_thread()


def touch_and_wait(path: str, other: str) -> str:
    """Say that it has begun, and wait for a word."""
    Path(path).touch()
    while not Path(other).exists():
        time.sleep(0.005)
    return path


def killed_at_first(path: str) -> str:
    if not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def killed(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def forks(how: str) -> int:
    """The exit code of a child that comes back from the call as well."""
    if (child := os.fork()) > 0:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == "exit":
        sys.exit(3)
    if how == "raise":
        raise ValueError(how)
    return -1


def fails_at(number: int, bad: int) -> int:
    if number == bad:
        raise ValueError(f"{number} is bad")
    return number


def fails_twice(path: str) -> int:
    with open(path, "a") as file:
        file.write("x")
    if (tries := Path(path).stat().st_size) < 3:
        raise OSError("not yet")
    return tries


def sum_within(count: int) -> int:
    with Executor() as executor:
        return sum(executor.map(abs, range(count)))


def tree_within(depth: int) -> int:
    """Waits in a way that no executor can see."""
    if depth == 0:
        return 1
    with Executor() as executor:
        futures = [executor.submit(tree_within, depth - 1) for _ in range(2)]
        concurrent.futures.wait(futures)
        return sum(future.result() for future in futures)


def tells(path: str) -> str:
    report_progress(3, 10)
    while not os.path.exists(path):
        time.sleep(0.005)
    return "told"


def cannot_come_back(_: object) -> object:
    return threading.Lock()


def append_and_nap(folder: str, call: int) -> int:
    """Leaves a file for each time that it was called."""
    Path(folder, f"{call}.{os.getpid()}").touch()
    time.sleep(0.01)
    return call


def host_of(_: object) -> str:
    time.sleep(0.02)
    return socket.gethostname()
