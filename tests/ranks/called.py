"""Functions that tests call in workers; workers import this module."""

import concurrent.futures
import contextlib
import dataclasses
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mallob_py import Executor, Shared, report_progress


def whose(_: object) -> int:
    time.sleep(0.02)
    return os.getpid()


def is_main_thread(_: object) -> bool:
    return threading.current_thread() is threading.main_thread()


def touch_and_wait(path: str, other: str) -> str:
    """Make the file `path`, then wait until the file `other` exists."""
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
    """Fork; return the exit code of the child, which returns from the call, too."""
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


def threads_after_drops(count: int) -> int:
    """Make executors that are not shut down; return how many threads are left in the end."""
    for number in range(count):
        assert Executor().submit(abs, -number).result() == number
    end_s = time.monotonic() + 20
    while (left := threading.active_count()) >= count and time.monotonic() < end_s:
        time.sleep(0.01)
    return left


def tree_within(depth: int) -> int:
    """Make nested calls that wait in `concurrent.futures.wait`, which no executor can notice."""
    if depth == 0:
        return 1
    with Executor() as executor:
        futures = [executor.submit(tree_within, depth - 1) for _ in range(2)]
        concurrent.futures.wait(futures)
        return sum(future.result() for future in futures)


def of_shared(shared: Shared[Any], place: int) -> tuple[int, int]:
    return int(shared.value[place]), os.getpid()


def killed_with_shared(shared: Shared[Any], path: str) -> int:
    """Kill the process at the first call, once it has the shared object."""
    found = int(shared.value[7])
    killed_at_first(path)
    return found


def shares_within(place: int) -> int:
    with Executor() as executor:
        shared = executor.share(np.arange(5000))
        return sum(number for number, _ in executor.map(of_shared, [shared] * 20, range(place, place + 20)))


def tells(path: str) -> str:
    report_progress(3, 10)
    while not os.path.exists(path):
        time.sleep(0.005)
    return "told"


def cannot_come_back(_: object) -> object:
    return threading.Lock()


def append_and_nap(folder: str, call: int, awaited: str = "") -> int:
    """Make a file for each run of a call, sleep for 10 ms, then wait for the file `awaited`."""
    Path(folder, f"{call}.{os.getpid()}").touch()
    time.sleep(0.01)
    while awaited and not os.path.exists(awaited):
        time.sleep(0.005)
    return call


def host_of(_: object) -> str:
    time.sleep(0.02)
    return socket.gethostname()


# --- calls that change arguments or results --------------------------------------------------------------


class Counter:
    """A callable that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, step: int = 1) -> int:
        self.count += step
        return self.count

    bump = __call__


BUFFER = np.zeros(20)
LARGE_BUFFER = np.zeros(5000)
LIST: list[int] = []


def changed(thing: Any) -> Any:
    """Change an object in place, and return a description of the object."""
    if isinstance(thing, dict):
        return thing.pop("mode"), len(thing)
    if isinstance(thing, list | deque | bytearray):
        thing.append(1)
        return len(thing)
    if isinstance(thing, set):
        thing.add(len(thing))
        return len(thing)
    if isinstance(thing, np.random.Generator | random.Random):
        return float(thing.random())
    if isinstance(thing, np.ndarray):
        thing += 1
        return float(thing[0]), float(thing[-1])
    if isinstance(thing, tuple):
        return changed(thing[0])
    return thing.bump() if isinstance(thing, Counter) else next(thing)


def filled(number: int) -> Any:
    """Return the same objects of the module at each call."""
    BUFFER[:] = LARGE_BUFFER[:] = number
    LIST[:] = [number]
    return BUFFER, LARGE_BUFFER, LIST


def changed_within(thing: Any, count: int) -> tuple[list[Any], list[Any]]:
    with Executor() as executor:
        futures = [executor.submit(changed, thing) for _ in range(count)]
        return list(executor.map(changed, [thing] * count)), [future.result() for future in futures]


def adds_until_third_try(path: str, items: list[int]) -> int:
    """Add an item at each try; the third try returns the number of items."""
    items.append(0)
    fails_twice(path)
    return len(items)


def first_below(number: int, bound: int) -> int:
    return next(iter(range(number, bound)))


def map_that_stops() -> list[int]:
    with Executor() as executor:
        return list(executor.map(first_below, range(5), [2] * 5))


@dataclasses.dataclass(frozen=True)
class Notice(Exception):
    text: str = "noticed"


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class GuardsAttributes(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise SystemExit(name)


class OddNotes(Exception):
    __notes__ = 3  # type: ignore[assignment]


class CannotBeShown(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class QuitsWhereItIsRead(Exception):
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


class HoldsALock(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock())


EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "frozen": Notice,
    "two arguments": lambda: TwoArguments(7, "seven"),
    "guarded": GuardsAttributes,
    "odd notes": OddNotes,
    "not shown": CannotBeShown,
    "quits": QuitsWhereItIsRead,
    "holds a lock": HoldsALock,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "stop": lambda: StopIteration(1),
    "group": lambda: ExceptionGroup("two", [ValueError(1), Notice()]),
}


def raises(kind: str) -> None:
    raise EXCEPTIONS[kind]()


class Odd:
    """An object that raises when it is pickled, or when it is unpickled."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        if self.where == "here":
            sys.exit(3)
        return (sys.exit, (3,)) if self.where == "there" else (Odd, (self.where,))


def gives_odd(where: str) -> Odd:
    return Odd(where)


def starts(path: str, mark: str) -> None:
    """Initializer that leaves a file per process and `mark`, with one letter for each call."""
    global STARTED
    STARTED = mark
    with Path(path, f"{os.getpid()}.{mark}").open("a") as file:
        file.write("x")
    if mark == "bad":
        raise ValueError("cannot start")


STARTED = ""


def started_as(_: object) -> str:
    return STARTED


def started_within(path: str) -> tuple[str, list[str]]:
    with Executor(initializer=starts, initargs=(path, "inner")) as executor:
        return executor.submit(started_as, 0).result(), list(executor.map(started_as, range(4)))


def waits_within() -> list[object]:
    """Call, in the callback of a nested call, all methods of an executor that are permitted there."""
    found: list[object] = []
    done = threading.Event()
    executor = Executor()

    def callback(_: object) -> None:
        found.append(executor.submit(abs, -1).result(20))
        found.append(list(executor.map(abs, [-2])))
        executor.shutdown()
        found.append("shut down")
        done.set()

    executor.submit(abs, -3).add_done_callback(callback)
    done.wait(20)
    return found


def ends_its_worker(how: str, path: str) -> str:
    """Stop or end the worker's process at the first call."""
    if not os.path.exists(path):
        Path(path).touch()
        if how == "exit":
            os._exit(0)
        elif how == "close":
            os.closerange(3, 256)
        else:
            os.kill(os.getpid(), signal.Signals[how])
    return "done"


def naps_long(path: str) -> None:
    Path(path).touch()
    time.sleep(600)


def will_not_be_stopped(path: str) -> None:
    Path(path).touch()
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(600)
