"""Orders to shrink or grow, carried out without sockets or threads.

    shrink   pre_shrink chooses the places and moves their work away -> their processes end
             -> the scheduler receives their hosts -> post_shrink
    grow     pre_grow -> processes start on the new hosts -> post_grow

A host must be reported to the scheduler only after its process has ended: the next job starts on it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from mallob_py.malleable.wire import Grow, Order, Shrink


class OrderError(Exception):
    """Error: an order, or the result of a handler's method, is impossible. One line states the reason."""


class Place(msgspec.Struct, frozen=True, order=True):
    """A place: a process of the program, and its host. Ids count from 0 and are never used again."""

    id: int
    host: str


class MalleableHandler(Protocol):
    """The program's part in orders. Its methods are called in one thread, for one order at a time."""

    def pre_shrink(self, count: int) -> Sequence[Place]:
        """Choose `count` places and move all work away from them: their processes end after this call."""
        ...

    def post_shrink(self, now: int, removed: Sequence[Place]) -> None:
        """Called after a shrink: `now` places are left; the processes of the `removed` places have ended."""
        ...

    def pre_grow(self, count: int) -> None:
        """Called before growth: `count` further processes will start."""
        ...

    def post_grow(self, now: int, continued: Sequence[Place], added: Sequence[Place]) -> None:
        """Called after growth: `now` places in all, the continued and the added ones, which run."""
        ...


class Processes(Protocol):
    """Starts and ends the processes of a program; `PlaceProcesses` does so for child processes."""

    @property
    def places(self) -> Sequence[Place]:
        """Return the places of running processes."""
        ...

    def start(self, hosts: Sequence[str]) -> Sequence[Place]:
        """Start a process for each entry of `hosts`, which may repeat a host; return their places."""
        ...

    def end(self, places: Sequence[Place]) -> None:
        """End the processes of `places`; return when they have ended."""
        ...


def carry_out(
    order: Order, handler: MalleableHandler, processes: Processes, release: Callable[[Sequence[str]], None]
) -> None:
    """Carry out an order; `release` is called with the hosts that the program leaves. Raises OrderError."""
    match order:
        case Shrink(count):
            _shrink(count, handler, processes, release)
        case Grow(hosts):
            _grow(hosts, handler, processes)


def _shrink(
    count: int, handler: MalleableHandler, processes: Processes, release: Callable[[Sequence[str]], None]
) -> None:
    places = tuple(processes.places)
    if count > len(places):
        raise OrderError(f"{count} places must be released, but there are only {len(places)}")
    chosen = tuple(handler.pre_shrink(count))
    if len(chosen) != count or len(set(chosen)) != count or not set(chosen) <= set(places):
        raise OrderError(f"pre_shrink({count}) has chosen {list(chosen)} of the places {list(places)}")
    processes.end(chosen)
    release([place.host for place in chosen])
    handler.post_shrink(len(places) - count, chosen)


def _grow(hosts: Sequence[str], handler: MalleableHandler, processes: Processes) -> None:
    handler.pre_grow(len(hosts))
    continued = tuple(processes.places)
    added = tuple(processes.start(hosts))
    handler.post_grow(len(continued) + len(added), continued, added)
