"""Python functions in a campaign, over objects of every kind: does each call get its own objects?

In each round, an executor submits calls that change their arguments, or that return objects of their module,
in all ways of submission. The results must be those of a sequential run on copies, even if processes are
killed meanwhile. A call may end with an error of the service (a full disk, or three lost workers), but never
with another call's value.
"""

import copy
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from faults.processes import Wrong
from mallob_py import Executor, JobError
from mallob_py.kit.calls.values import CallError
from mallob_py.service import ServiceError

CALLS_MAX = 40
_AWAIT_S = 180.0
#: errors with which a call may end
_NO_VALUES = (ServiceError, JobError, CallError)


class Counting:
    """An object that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def bump(self, step: int = 1) -> int:
        self.count += step
        return self.count


#: name of a kind -> function that makes an object of the kind, function that changes the object
THINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "dict": (lambda: {"mode": "fast"}, lambda thing: thing.pop("mode")),
    "list": (lambda: [1, 2], lambda thing: (thing.append(3), len(thing))[1]),
    "set": (lambda: {1}, lambda thing: (thing.add(len(thing) + 1), len(thing))[1]),
    "deque": (lambda: deque([1]), lambda thing: (thing.append(3), len(thing))[1]),
    "bytearray": (lambda: bytearray(b"ab"), lambda thing: (thing.append(3), len(thing))[1]),
    "array": (lambda: np.zeros(9), lambda thing: float(np.add(thing, 1, out=thing).sum())),
    "large array": (lambda: np.zeros(9000), lambda thing: float(np.add(thing, 1, out=thing).sum())),
    "numpy's generator": (lambda: np.random.default_rng(1), lambda thing: int(thing.integers(10**9))),
    "generator": (lambda: random.Random(1), lambda thing: thing.random()),
    "iterator": (lambda: iter(range(9)), next),
    "object": (Counting, lambda thing: thing.bump()),
    "nested": (lambda: ([1], {"a": [2]}), lambda thing: (thing[1]["a"].append(3), len(thing[1]["a"]))[1]),
}
BUFFER, LARGE_BUFFER = np.zeros(9), np.zeros(9000)


def changed(kind: str, thing: Any) -> Any:
    return THINGS[kind][1](thing)


def filled(number: int) -> tuple[Any, Any]:
    """Fill arrays of this module and return them: the same two arrays at each call."""
    BUFFER[:] = LARGE_BUFFER[:] = number
    return BUFFER, LARGE_BUFFER


def changed_within(kind: str, thing: Any, count: int) -> list[Any]:
    with Executor() as executor:
        return list(executor.map(changed, [kind] * count, [thing] * count))


def _futures(executor: Any, function: Callable[..., Any], calls: int) -> list[Future[Any]]:
    return [executor.submit(function) for _ in range(calls)]


def _outcomes(results: Iterable[Any]) -> Iterator[Any]:
    """Yield the value of each result, or its exception."""
    for one in results:
        if not isinstance(one, Future):
            yield one
        elif (error := one.exception(_AWAIT_S)) is not None:
            yield error
        else:
            yield one.result()


class Functions:
    """Rounds of calls, one after the other."""

    def __init__(self, make: Callable[[], Any], seed: int) -> None:
        """Prepare the rounds; `make` makes an executor of the campaign's service."""
        self._make = make
        self._rng = random.Random(f"{seed} functions")
        self._executor: Any = None
        #: submitted calls: name, results, expected results
        self._handed_in: list[tuple[str, Iterable[Any], list[Any]]] = []
        self.outcomes: Counter[str] = Counter()

    def begin(self) -> None:
        self._executor = self._make()
        for _ in range(self._rng.randint(1, 6)):
            self._hand_in(self._rng.choice(list(THINGS)), self._rng.randint(1, CALLS_MAX))
        calls = self._rng.randint(1, CALLS_MAX)
        futures = [self._executor.submit(filled, number) for number in range(calls)]
        self._handed_in.append(("buffers", futures, [(number,) * 4 for number in range(calls)]))

    def _hand_in(self, kind: str, calls: int) -> None:
        executor, rng, thing = self._executor, self._rng, THINGS[kind][0]()
        right = [changed(kind, copy.deepcopy(thing))] * calls
        how: dict[str, Any] = {"on_error": "collect"}
        ways: dict[str, Callable[[], Iterable[Any]]] = {
            "submit": lambda: _futures(executor, partial(changed, kind, thing), calls),
            "arguments": lambda: [executor.submit(changed, kind, thing) for _ in range(calls)],
            "keywords": lambda: [executor.submit(changed, kind=kind, thing=thing) for _ in range(calls)],
            "map": lambda: executor.map(changed, [kind] * calls, [thing] * calls, **how),
            "unordered": lambda: executor.map(changed, [kind] * calls, [thing] * calls, ordered=False, **how),
            "lazy": lambda: list(executor.map(changed, [kind] * calls, [thing] * calls, buffersize=3, **how)),
            "nested": lambda: [executor.submit(changed_within, kind, thing, calls)],
        }
        if isinstance(thing, Counting):
            ways["method"] = lambda: _futures(executor, thing.bump, calls)
        way = rng.choice(list(ways))
        results = ways[way]()
        self._handed_in.append((f"{kind}, {way}", results, [right] if way == "nested" else right))
        changed(kind, thing)  # a change after the submission must not affect the calls

    def finish(self) -> None:
        """Await all calls and compare their results. Raises Wrong."""
        handed_in, self._handed_in = self._handed_in, []
        for name, results, right in handed_in:
            for value, wanted in zip(_outcomes(results), right, strict=True):
                if isinstance(value, _NO_VALUES):
                    self.outcomes[type(value).__name__] += 1
                    continue
                got = (
                    tuple(float(each[end]) for each in value for end in (0, -1))
                    if name == "buffers"
                    else value
                )
                if got != wanted:
                    raise Wrong(f"a call of functions ({name}) returned {got!r} instead of {wanted!r}")
                self.outcomes["right"] += 1
        self._executor.shutdown()

    def check(self) -> None:
        """Raise Wrong unless some calls returned their values."""
        if not self.outcomes["right"]:
            raise Wrong(f"no call of a function returned its value: {dict(self.outcomes)}")
