"""The shelf: the objects that an executor shares, and which workers have them.

A worker opens an object that the executor, or another worker, has on the worker's host. On a host without the
executor, the first worker gets the object's bytes, and the other workers wait until they can open the object.
If the service belongs to another user, the first worker on the executor's host gets the bytes, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mallob_py.api.calls.book import Group
from mallob_py.kit.calls import messages, sharing
from mallob_py.kit.calls.wire import Buffer


class Worker(Protocol):
    """A connection to a worker that runs calls with shared objects."""

    host: str
    pid: int

    def send(self, message: messages.ToWorker, buffers: Sequence[Buffer] = ()) -> None: ...


@dataclass(slots=True)
class _Kept:
    region: sharing.Region
    #: worker that has the object -> the worker's descriptor of the object
    places: dict[Worker, int] = field(default_factory=dict)
    #: host -> worker to which the object's bytes are sent
    receivers: dict[str, Worker] = field(default_factory=dict)
    #: workers that wait until the receiver on their host has the object
    waiting: list[Worker] = field(default_factory=list)
    #: groups of calls that were open when the handle was dropped; None: the handle was not dropped
    users: list[Group] | None = None


class Shelf:
    """The objects that an executor shares. Only the hub's thread uses a shelf."""

    def __init__(self, *, is_others: bool) -> None:
        """Begin without objects; `is_others`: another user runs the workers, and cannot open our objects."""
        self._own_host = None if is_others else socket.gethostname()
        self._kept: dict[str, _Kept] = {}

    def add(self, mark: str, region: sharing.Region) -> None:
        self._kept[mark] = _Kept(region)

    def drop(self, mark: str, users: Iterable[Group]) -> None:
        """Have an object removed once all groups of calls in `users` are done."""
        if (kept := self._kept.get(mark)) is not None:
            kept.users = list(users)

    def turn(self) -> None:
        """Remove the dropped objects that no call needs any more."""
        for mark, kept in tuple(self._kept.items()):
            if kept.users is not None and not any(group.left for group in kept.users):
                self._remove(mark)

    def clear(self) -> None:
        for mark in tuple(self._kept):
            self._remove(mark)

    def hear(self, worker: Worker, message: messages.Fetch | messages.Kept) -> None:
        """Take in a message from a worker."""
        kept = self._kept.get(message.mark)
        if isinstance(message, messages.Fetch):
            self._find(worker, message.mark, kept, is_refused=message.is_refused)
        elif kept is None:
            worker.send(messages.Release(message.mark))
        else:
            kept.places[worker] = message.fd
            self._end_receiving(worker, message.mark, kept)

    def lost(self, worker: Worker) -> None:
        for mark, kept in self._kept.items():
            kept.places.pop(worker, None)
            if worker in kept.waiting:
                kept.waiting.remove(worker)
            self._end_receiving(worker, mark, kept)

    def _end_receiving(self, worker: Worker, mark: str, kept: _Kept) -> None:
        if kept.receivers.get(worker.host) is worker:
            del kept.receivers[worker.host]
            waiting, kept.waiting = kept.waiting, []
            for each in waiting:
                self._find(each, mark, kept)

    def _find(self, worker: Worker, mark: str, kept: _Kept | None, *, is_refused: bool = False) -> None:
        """Tell a worker where an object is, or send the object. `is_refused`: the worker cannot open it."""
        if kept is None:
            worker.send(messages.Found(mark))
            return
        place = None if is_refused else self._place(worker, kept)
        if place is not None:
            worker.send(messages.Found(mark, *place))
        elif worker.host in kept.receivers and not is_refused:
            kept.waiting.append(worker)
        else:
            kept.receivers.setdefault(worker.host, worker)
            worker.send(messages.Found(mark), [kept.region.memory])

    def _place(self, worker: Worker, kept: _Kept) -> tuple[int, int] | None:
        """Return the process id and descriptor of a process on the worker's host that has the object."""
        if worker.host == self._own_host:
            return os.getpid(), kept.region.fd
        for other, fd in kept.places.items():
            if other.host == worker.host:
                return other.pid, fd
        return None

    def _remove(self, mark: str) -> None:
        kept = self._kept.pop(mark)
        sharing.regions.pop(mark, None)
        for worker in kept.places:
            worker.send(messages.Release(mark))
        for each in kept.waiting:
            each.send(messages.Found(mark))
