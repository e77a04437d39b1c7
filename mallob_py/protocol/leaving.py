"""Leaving in order: a process hands over its work while its PE already has another worker.

Applications may ask to leave in order (`WorkerStarted.leaves`). When such a worker must leave, since its job
shrinks or memory is short, its place in the tree and its PE are free at once, as with any other worker. But
its process is not stopped: it is told to leave (`LeaveWorker`) and runs on for a while beside the PE's next
worker. Messages to the worker's address still arrive, and the process can answer. It ends by itself
(`WorkerLeft`), or is ended when its time for leaving is up, its job ends, or too many other workers leave the
same PE.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Log, Outbox, TerminateWorker
from mallob_py.protocol.messages import RootLeft
from mallob_py.protocol.placement import Succession
from mallob_py.protocol.worker import Worker


class Leaver(msgspec.Struct, frozen=True, gc=False):
    """A leaving worker: its process `number`, and its place in the tree in that `stay`."""

    number: int
    job: int
    index: int
    stay: int
    client: int
    parent: int
    parent_stay: int
    until_s: float


class Leaving:
    """The leaving workers of one PE, in the order in which they were told to leave."""

    def __init__(self, out: Outbox, config: Config) -> None:
        self._out = out
        self._config = config
        self._leavers: dict[int, Leaver] = {}
        #: time when the first leaving worker must have ended
        self.deadline_s = math.inf

    def __len__(self) -> int:
        return len(self._leavers)

    def __iter__(self) -> Iterator[Leaver]:
        return iter(self._leavers.values())

    def add(self, worker: Worker, now: float) -> None:
        """Add a worker whose process was told to leave."""
        if len(self._leavers) >= self._config.leavers_max:
            self._end(next(iter(self)))
        self._leavers[worker.number] = Leaver(
            number=worker.number,
            job=worker.job,
            index=worker.index,
            stay=worker.stay,
            client=worker.client,
            parent=worker.parent,
            parent_stay=worker.parent_stay,
            until_s=now + self._config.leave_grace_s,
        )
        self._note_deadline()
        self._out.act(Log("leaving", {"job": worker.job, "index": worker.index}))

    def take_over(self, former: Leaving, succession: Succession) -> None:
        """Go on with the leaving workers of the last generation."""
        for one in former:
            client, parent = succession.heir(one.client), succession.heir(one.parent)
            self._leavers[one.number] = msgspec.structs.replace(one, client=client, parent=parent)
        self._note_deadline()

    def get(self, number: int) -> Leaver | None:
        return self._leavers.get(number)

    def at(self, stay: int) -> Leaver | None:
        """Return the leaving worker that had this stay in the tree."""
        if not self._leavers:
            return None
        return next((one for one in self if one.stay == stay), None)

    def left(self, number: int) -> None:
        """Forget a process that has ended."""
        leaver = self._remove(number)
        self._out.act(Log("left", {"job": leaver.job, "index": leaver.index}))

    def end_job(self, job: int) -> None:
        """End the leaving workers of an ended job, whose work no other worker would take."""
        for leaver in [one for one in self if one.job == job]:
            self._end(leaver)

    def tick(self, now: float) -> None:
        """End leaving workers whose time for leaving is up."""
        for leaver in [one for one in self if one.until_s <= now]:
            self._end(leaver)

    def _remove(self, number: int) -> Leaver:
        leaver = self._leavers.pop(number)
        self._note_deadline()
        if leaver.index == 0:
            self._out.send(leaver.client, RootLeft(leaver.job))
        return leaver

    def _note_deadline(self) -> None:
        self.deadline_s = next((one.until_s for one in self), math.inf)

    def _end(self, leaver: Leaver) -> None:
        self._remove(leaver.number)
        self._out.act(TerminateWorker(leaver.number))
        self._out.act(Log("terminated", {"job": leaver.job, "index": leaver.index}))
