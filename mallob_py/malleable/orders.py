"""A malleable program shrinks or grows as it is told, without sockets or threads.

    shrink   pre_shrink chooses the places and moves their work away -> their processes end
             -> the scheduler is told their hosts -> post_shrink
    grow     pre_grow -> processes start on the new hosts -> post_grow

A host is named to the scheduler only when its process is gone: the next job starts there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from mallob_py.malleable.wire import Grow, Order, Shrink


class OrderError(Exception):
    """An order, or what a handler makes of it, is impossible. One line says why."""


class Place(msgspec.Struct, frozen=True, order=True):
    """A process of the program and its host. Ids count from 0 and are never used again."""

    id: int
    host: str


class MalleableHandler(Protocol):
    """The knowledge of a program's author. Methods are called from one thread, an order at a time."""

    def pre_shrink(self, count: int) -> Sequence[Place]:
        """Choose so many places and move all work away from them: their processes end when this returns."""
        ...

    def post_shrink(self, now: int, removed: Sequence[Place]) -> None:
        """Take note that so many places are left; the processes of the removed ones are gone."""
        ...

    def pre_grow(self, count: int) -> None:
        """Take note that so many processes are about to start."""
        ...

    def post_grow(self, now: int, continued: Sequence[Place], added: Sequence[Place]) -> None:
        """There are so many places now: those that there were, and the added ones, which run."""
        ...


class Processes(Protocol):
    """The processes of a program are started and ended here; `PlaceProcesses` does so for plain ones."""

    @property
    def places(self) -> Sequence[Place]:
        """Where processes run."""
        ...

    def start(self, hosts: Sequence[str]) -> Sequence[Place]:
        """Start a process on each of the hosts, which may be named several times; return their places."""
        ...

    def end(self, places: Sequence[Place]) -> None:
        """End these processes, and return when they are gone."""
        ...


def carry_out(
    order: Order,
    handler: MalleableHandler,
    processes: Processes,
    release: Callable[[Sequence[str]], None],
) -> None:
    """Shrink or grow; `release` is told the hosts that the program has left. Raises OrderError."""
    match order:
        case Shrink(count):
            _shrink(count, handler, processes, release)
        case Grow(hosts):
            _grow(hosts, handler, processes)


def _shrink(
    count: int,
    handler: MalleableHandler,
    processes: Processes,
    release: Callable[[Sequence[str]], None],
) -> None:
    places = tuple(processes.places)
    if count > len(places):
        raise OrderError(f"{count} places are to be released, there are {len(places)}")
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
