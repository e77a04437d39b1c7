"""The profile of free nodes over time, and the one hot loop of conservative backfilling.

A profile is a step function of time, with a new step only where the number of free nodes changes: hundreds of
steps, not thousands, for a long queue. Its functions are plain loops over two rows of numbers. If numba is
installed (`pip install "mallob-py[fast]"`), they are compiled, and the rows are numpy arrays; if not, they
run in Python on lists, with the same results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _find_njit() -> Any:
    """Return numba's `njit`; None: numba is not installed."""
    try:
        from numba import njit
    except ImportError:
        return None
    return njit


_NJIT = _find_njit()

#: the number of steps for which a new profile has room
_ROOM = 1024
#: the greatest number of steps that one change adds to a profile
_CUTS = 2


def _compiled(function: _Function) -> _Function:
    if _NJIT is None:
        return function
    try:
        cached: _Function = _NJIT(cache=True)(function)
    except RuntimeError:  # no writable folder for compiled code
        fresh: _Function = _NJIT(function)
        return fresh
    return cached


def row_of(values: Sequence[float], kind: type) -> Any:
    """Return a row of numbers as this module's functions need it: an array with numba, else a list."""
    return [kind(value) for value in values] if _NJIT is None else np.array(values, dtype=kind)


class Profile:
    """A step function: the number of free nodes over time. Times [s] ascend; the last step has no end."""

    def __init__(self, now_s: float, free: int) -> None:
        self._times_s = row_of([now_s] * _ROOM, float)
        self._free = row_of([free] * _ROOM, int)
        self._count = 1

    def add(self, begin_s: float, end_s: float, nodes: int) -> None:
        """Add a number of free nodes (negative: remove nodes) from `begin_s` to `end_s`."""
        self._grow(1)
        self._count = _add(self._times_s, self._free, self._count, begin_s, end_s, nodes)

    def forget(self, now_s: float) -> None:
        """Remove the steps that end at `now_s` or before."""
        self._count = _forget(self._times_s, self._free, self._count, now_s)

    def earliest(self, now_s: float, nodes: int, duration_s: float) -> float:
        """Return the earliest time [s], from `now_s` on, at which `nodes` nodes are free for a duration."""
        return float(_earliest(self._times_s, self._free, self._count, now_s, nodes, duration_s, math.inf))

    def move_up(self, now_s: float, count: int, nodes: Any, durations_s: Any, places_s: Any) -> list[int]:
        """Move `count` jobs, one after the other, each to the earliest place that is then free.

        Args:
            now_s: the time now [s]
            count: the number of jobs, which are the first elements of the following rows
            nodes: each job's number of nodes
            durations_s: each job's duration [s]
            places_s: the time [s] at which each job's place begins; changed for moved jobs

        Returns:
            The indices of the jobs that have moved.
        """
        self._grow(2 * count)
        moved = row_of([0] * count, int)
        self._count, moves = _move_up(
            self._times_s, self._free, self._count, now_s, count, nodes, durations_s, places_s, moved
        )
        return [int(job) for job in moved[:moves]]

    def _grow(self, changes: int) -> None:
        while self._count + _CUTS * changes > len(self._free):
            self._times_s = row_of([*self._times_s, *self._times_s], float)
            self._free = row_of([*self._free, *self._free], int)


@_compiled
def _place_of(times_s: Any, count: int, at_s: float) -> int:
    """Return the index of the first step that begins at `at_s` or later."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if times_s[middle] < at_s:
            low = middle + 1
        else:
            high = middle
    return low


@_compiled
def _join(times_s: Any, free: Any, count: int, place: int) -> int:
    """Join a step with the one before if both have as many free nodes; return the new number of steps."""
    if place == 0 or free[place] != free[place - 1]:
        return count
    times_s[place : count - 1] = times_s[place + 1 : count]
    free[place : count - 1] = free[place + 1 : count]
    return count - 1


@_compiled
def _add(times_s: Any, free: Any, count: int, begin_s: float, end_s: float, nodes: int) -> int:
    """Add free nodes from `begin_s` to `end_s`; return the new number of steps."""
    if begin_s >= end_s:
        return count
    first = last = 0
    for at_s in (begin_s, end_s):
        first, last = last, _place_of(times_s, count, at_s)
        if last == count or times_s[last] != at_s:
            times_s[last + 1 : count + 1] = times_s[last:count]
            free[last + 1 : count + 1] = free[last:count]
            times_s[last] = at_s
            free[last] = free[last - 1]
            count += 1
    for step in range(first, last):
        free[step] += nodes
    return int(_join(times_s, free, _join(times_s, free, count, last), first))


@_compiled
def _forget(times_s: Any, free: Any, count: int, now_s: float) -> int:
    past = 0
    while past + 1 < count and times_s[past + 1] <= now_s:
        past += 1
    if past:
        times_s[: count - past] = times_s[past:count]
        free[: count - past] = free[past:count]
    return count - past


@_compiled
def _earliest(
    times_s: Any, free: Any, count: int, now_s: float, nodes: int, duration_s: float, place_s: float
) -> float:
    """Return the earliest time [s] before `place_s` from which the nodes are free; infinite: no such time.

    Steps from `place_s` on are not examined.
    """
    begin_s = math.inf
    for step in range(count):
        time_s = times_s[step]
        if time_s >= place_s:
            break
        if free[step] >= nodes:
            if begin_s == math.inf:
                begin_s = max(now_s, time_s)
        elif begin_s < math.inf:
            if begin_s + duration_s <= time_s:
                break
            begin_s = math.inf
    return begin_s


@_compiled
def _move_up(
    times_s: Any,
    free: Any,
    steps: int,
    now_s: float,
    count: int,
    nodes: Any,
    durations_s: Any,
    places_s: Any,
    moved: Any,
) -> tuple[int, int]:
    """Do the work of `Profile.move_up`; return the new number of steps and the number of moved jobs."""
    moves = 0
    for job in range(count):
        need, duration_s, was_s = nodes[job], durations_s[job], places_s[job]
        # Steps from `was_s` on need no test: the job has its nodes there.
        place_s = _earliest(times_s, free, steps, now_s, need, duration_s, was_s)
        if place_s < was_s:
            steps = _add(times_s, free, steps, was_s, was_s + duration_s, need)
            steps = _add(times_s, free, steps, place_s, place_s + duration_s, -need)
            places_s[job] = place_s
            moved[moves] = job
            moves += 1
    return steps, moves
